"""A folder for as long as a drill runs, with the few bytes that its daemons are started with."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from soak.lab import process_mark

_NAME = "soakd-drill-"


@contextmanager
def folder(root: Path | None = None) -> Iterator[Path]:
    """Give a new one; what killed drills of this user left is cleared away first."""
    root = root or Path(tempfile.gettempdir())
    for left in root.glob(f"{_NAME}{process_mark.ours()}-*"):
        if process_mark.is_gone(left.name.removeprefix(_NAME).rpartition("-")[0]):
            shutil.rmtree(left, ignore_errors=True)  # another user's stays
    with tempfile.TemporaryDirectory(prefix=f"{_NAME}{process_mark.here()}-", dir=root) as made:
        yield Path(made)
