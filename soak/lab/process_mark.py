"""The name of a process in what it leaves on a machine, by which others know later that it is gone."""

from __future__ import annotations

import os
from pathlib import Path

from soak.lab.standing import start_ticks

_PARTS = 3


def of(pid: int) -> str:
    """Return a name of three numbers: containers may share a folder, and their processes' numbers repeat."""
    return f"{_namespace()}-{pid}-{start_ticks(pid)}"


def here() -> str:
    """Return that of this process."""
    return of(os.getpid())


def ours() -> str:
    """Return a glob of the names of all processes that this one could see."""
    return f"{_namespace()}-*-*"


def is_gone(mark: str) -> bool:
    """Return whether it is the name of a process that this one could see, and that has ended."""
    parts = mark.split("-")
    if len(parts) != _PARTS or not all(part.isdecimal() for part in parts):
        return False
    return int(parts[0]) == _namespace() and mark != of(int(parts[1]))


def _namespace() -> int:
    return Path("/proc/self/ns/pid").stat().st_ino
