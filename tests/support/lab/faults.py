"""Inject faults by name, as a drill does, and faults that cannot be undone."""

from __future__ import annotations

from collections.abc import Callable

from soak.core.errors import LabError
from soak.lab.faults import find_fault
from soak.lab.faults.active import Fault
from soak.lab.faults.clients import QuietConfig
from soak.lab.ports import Active, Target


def inject(name: str, target: Target, **settings: object) -> Active:
    """Inject a fault whose other settings are the defaults."""
    fault = find_fault(name)
    return fault.inject(target, fault.config(**settings))


class Stuck:
    """A fault that cannot be undone."""

    onset_wall_ns = 23

    def __init__(self, why: str) -> None:
        self._why = why

    def lift(self) -> None:
        raise LabError(self._why)

    close = lift


def giving(*faults: Active) -> Callable[[str], Fault]:
    """Return a lookup of faults that become these when they are injected, one after another."""
    remaining = iter(faults)
    return lambda _: Fault(config=QuietConfig, inject=lambda *_: next(remaining))
