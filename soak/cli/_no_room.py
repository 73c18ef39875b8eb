"""A drive that takes no more, told in a line: what was to be written, which drive it is, what is needed."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from soak.cli._drives import existing
from soak.core.errors import RunFolderError
from soak.core.units import format_size

_FULL = (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def told(folder: Path, needed: str) -> Iterator[None]:
    """Tell of what is written below `folder` and finds no room; `needed` says how much there has to be.

    Raises:
        RunFolderError: instead of the system's error.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in _FULL:
            raise
        path = Path(error.filename or folder)
        drive = _drive_of(Path(existing(path)))
        free = format_size(shutil.disk_usage(drive).free // 2**10 * 2**10)
        raise RunFolderError(
            f"cannot write {path}: {error.strerror}; the drive at {drive} has {free} free; {needed}"
        ) from error


def _drive_of(path: Path) -> Path:
    """Return where the filesystem that holds a path is mounted."""
    while not path.is_mount():
        path = path.parent
    return path
