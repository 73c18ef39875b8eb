"""A folder for as long as a drill runs, with the few bytes that its daemons are started with."""

from __future__ import annotations

import os
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
        mark = left.name.removeprefix(_NAME).rpartition("-")[0]
        if process_mark.is_gone(mark) and left.lstat().st_uid == os.getuid():
            shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=f"{_NAME}{process_mark.here()}-", dir=root) as made:
        yield Path(made)
