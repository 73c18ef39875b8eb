"""How much of what is written the kernel may hold back from one drive: `strict_limit`, since Linux 6.2."""

from __future__ import annotations

import contextlib
from pathlib import Path

from soak.core.errors import LabError

_BLOCK = Path("/sys/class/block")
_ALL = Path("/sys/class/bdi")


def missing(drives: Path = _ALL) -> str:
    """Return what keeps this machine from limiting it, or ""."""
    if any(drives.glob("*/strict_limit")):
        return ""
    return "a limit on what the kernel holds back from one drive needs Linux 6.2"


def limit(device: str, most_bytes: int) -> None:
    """Let about so much be held back from a block device, and who writes more wait for it.

    The kernel keeps it as a share of what it may hold back from all, and so of the memory that is free.

    Raises:
        LabError: it refuses.
    """
    limits = _BLOCK / device / "bdi"
    try:
        (limits / "max_bytes").write_text(str(most_bytes), encoding="ascii")
        (limits / "strict_limit").write_text("1", encoding="ascii")
    except OSError as error:
        raise LabError(f"cannot limit what is held back from {device}: {error}") from error


def lift(device: str) -> None:
    """Undo it; nothing where there is none, or no such device."""
    limits = _BLOCK / device / "bdi"
    with contextlib.suppress(OSError):
        (limits / "strict_limit").write_text("0", encoding="ascii")
        (limits / "max_ratio").write_text("100", encoding="ascii")
