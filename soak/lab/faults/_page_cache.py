"""Has the kernel forget files, as it would have forgotten them in the hours that a drill does not have."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path


def forget(files: Iterable[Path]) -> None:
    """Have the kernel keep nothing of these in memory; what is not yet written to the drive stays."""
    for path in files:
        try:
            file = os.open(path, os.O_RDONLY)
        except FileNotFoundError:  # deleted meanwhile
            continue
        try:
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(file)
