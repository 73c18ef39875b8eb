"""Marks on what a process leaves on a machine, so that a later process recognises and removes it."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from soak.lab.standing import start_ticks

_PARTS = 3


def mark_of(pid: int) -> str:
    """Return a name of three numbers: containers may share a folder, and their processes' numbers repeat."""
    return f"{_namespace()}-{pid}-{start_ticks(pid)}"


def own_mark() -> str:
    """Return that of this process."""
    return mark_of(os.getpid())


def visible_marks() -> str:
    """Return a glob of the names of all processes that this one could see."""
    return f"{_namespace()}-*-*"


def has_ended(mark: str) -> bool:
    """Return whether it is the name of a process that this one could see, and that has ended."""
    parts = mark.split("-")
    if len(parts) != _PARTS or not all(part.isdecimal() for part in parts):
        return False
    return int(parts[0]) == _namespace() and mark != mark_of(int(parts[1]))


def _namespace() -> int:
    return Path("/proc/self/ns/pid").stat().st_ino


# --- A folder for as long as a drill runs, with the few bytes that its daemons are started with.

_NAME = "soakd-drill-"


@contextmanager
def scratch_folder(root: Path | None = None) -> Iterator[Path]:
    """Give a new one; what killed drills of this user left is cleared away first."""
    root = root or Path(tempfile.gettempdir())
    for left in root.glob(f"{_NAME}{visible_marks()}-*"):
        mark = left.name.removeprefix(_NAME).rpartition("-")[0]
        if has_ended(mark) and left.lstat().st_uid == os.getuid():
            shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=f"{_NAME}{own_mark()}-", dir=root) as made:
        yield Path(made)
