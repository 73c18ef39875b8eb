"""Has the kernel forget files, as it would have forgotten them in the hours that a drill does not have."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path


def forget(path: Path) -> None:
    """Have the kernel keep nothing of a file in memory; what is not yet written to the drive stays."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(file)


def forget_all(paths: Iterable[Path]) -> None:
    """Do so with each that is still there."""
    for path in paths:
        with suppress(FileNotFoundError):  # deleted meanwhile
            forget(path)
