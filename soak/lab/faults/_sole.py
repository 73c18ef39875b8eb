"""What a fault sets for itself alone, so that no other beside it may: the `sole` of such faults."""

from __future__ import annotations

from soak.lab.faults._lacking import OfNode


def relay(_config: object) -> tuple[str, int]:
    """Return what every fault of a network sets: one relay does one thing."""
    return "what the relay does", 0


def drive_answers(config: OfNode) -> tuple[str, int]:
    """Return that, and whose drive it is, of faults by which it answers late, in error or not at all."""
    return "how the drive answers", config.node


def group(_config: object) -> tuple[str, int]:
    """Return what a limit on writes sets: one process has one group for all that it holds back."""
    return "a limit on writes", 0


def drive_pages(config: OfNode) -> tuple[str, int]:
    """Return the same of faults that let a drive live on a pool of erased pages."""
    return "the drive's erased pages", config.node
