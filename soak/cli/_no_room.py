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

_TAKES_NOTHING = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


@contextmanager
def told(folder: Path, needed: str) -> Iterator[None]:
    """Tell of what is written below `folder` and not taken; `needed` says how much room there has to be.

    Raises:
        RunFolderError: instead of the system's error.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in _TAKES_NOTHING:
            raise
        path = Path(error.filename or folder)
        drive = _drive_of(Path(existing(path)))
        free = format_size(shutil.disk_usage(drive).free // 2**10 * 2**10)
        room = "" if error.errno == errno.EROFS else f" has {free} free; {needed}"
        raise RunFolderError(
            f"cannot write {path}: {error.strerror}: the drive at {drive}{room}"
        ) from error


def _drive_of(path: Path) -> Path:
    """Return where the filesystem that holds a path is mounted."""
    while not path.is_mount():
        path = path.parent
    return path
