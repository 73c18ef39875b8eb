"""The file that the fsync probe flushes: no larger than told, gone at the end, never what fills a drive.

Everything here may hang in the kernel, so it runs on a thread of its own.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Sync = Callable[[int], None]
How = Literal["fsync", "fdatasync", "directory"]

FILE_NAME = ".soak-fsync"
MOST_FILES = 8  # in one folder, of as many probes
_BROKEN = (errno.EIO, errno.EROFS)  # what a filesystem says that is to be checked or mounted anew
_CALLS: Mapping[How, Sync] = {
    "fsync": os.fsync,
    "fdatasync": os.fdatasync,
    "directory": os.fsync,  # of the folder's own descriptor
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """What a flush is: which call, of how much, where in the file."""

    sync: How
    payload_bytes: int
    is_appending: bool
    limit_bytes: int  # an appended file begins anew at this size
    floor_bytes: int  # with less free space nothing is written


class FlushFile:
    """One file in one folder. `sync` stands for the system call in tests."""

    def __init__(self, directory: Path, way: Way, sync: Sync | None = None) -> None:
        self._place = str(directory)
        self._way = way
        self._sync = sync or _CALLS[way.sync]
        self._payload = b"\xa5" * way.payload_bytes
        self._names = _names(0)
        self._folder = self._file = -1
        self._size = 0

    def open(self) -> None:
        """Make the file; one that a killed probe left is replaced, and no link is followed.

        A second probe in the folder, such as `soak probe --once`, has names of its own.

        Raises:
            OSError: it cannot be made.
        """
        self._folder = os.open(self._place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._names = self._free_names()
        self._begin()

    def flush(self) -> None:
        """Write and flush once.

        Raises:
            OSError: either failed, the write was cut short, the drive is too full for it, or the folder
                is another one now: `renew` goes there.
        """
        try:
            self._flush()
        except OSError as error:
            self._let_go(error)
            raise

    def renew(self) -> None:
        """Begin a new file where there is none, or when the next payload would make it too large.

        Raises:
            OSError: it cannot be made.
        """
        try:
            if self._folder < 0:
                self.open()
            elif self._file < 0 or self._size + len(self._payload) > self._way.limit_bytes:
                self._begin()
        except OSError as error:
            self._let_go(error)
            raise

    def close(self) -> None:
        """Remove the file; may be called when it was never opened."""
        if self._folder >= 0:
            self._leave()

    def _flush(self) -> None:
        if not os.path.samestat(os.stat(self._place), os.fstat(self._folder)):  # noqa: PTH116  # five a second
            self._leave()  # a drive was mounted over it, or the broker made it anew
            raise OSError(errno.ESTALE, "another folder has taken its place")
        free = os.fstatvfs(self._folder)
        if free.f_bavail * free.f_frsize < self._way.floor_bytes + self._way.payload_bytes:
            raise OSError(errno.ENOSPC, "less space is free than free_space_floor says")
        if self._way.sync == "directory":
            try:
                os.rename(*self._names, src_dir_fd=self._folder, dst_dir_fd=self._folder)
            except FileNotFoundError:  # somebody removed it: `renew` makes another
                self._drop()
                raise
            self._names = self._names[::-1]
            self._sync(self._folder)
            return
        if os.pwrite(self._file, self._payload, self._size) < len(self._payload):
            raise OSError(errno.EIO, "short write")
        if self._way.is_appending:
            self._size += len(self._payload)
        self._sync(self._file)

    def _let_go(self, error: OSError) -> None:
        """Hold nothing open where the filesystem is broken: nobody could unmount it. `renew` tries again."""
        if error.errno in _BROKEN:
            held = [one for one in (self._file, self._folder) if one >= 0]
            self._file = self._folder = -1
            for descriptor in held:
                os.close(descriptor)

    def _begin(self) -> None:
        self._drop()
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        self._file = os.open(self._names[0], flags, 0o600, dir_fd=self._folder)
        with suppress(OSError):  # a filesystem without locks: a second probe may take our names
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._size = 0

    def _free_names(self) -> tuple[str, str]:
        """Return the first two names that no living probe has."""
        for number in range(MOST_FILES):
            names = _names(number)
            if not any(self._is_held(name) for name in names):
                return names
        raise OSError(errno.EBUSY, f"{MOST_FILES} other probes are in this folder")

    def _is_held(self, name: str) -> bool:
        flags = os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            descriptor = os.open(name, flags, dir_fd=self._folder)
        except OSError:  # not there, or nothing that a probe makes
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return False
        finally:
            os.close(descriptor)
        return False

    def _leave(self) -> None:
        try:
            self._drop()
        finally:
            os.close(self._folder)
            self._folder = -1

    def _drop(self) -> None:
        """Remove the file from the folder that it was made in."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
        for name in self._names:
            with suppress(FileNotFoundError):
                os.unlink(name, dir_fd=self._folder)


def _names(number: int) -> tuple[str, str]:
    """Return the names of the n-th probe of a folder: the file's, and the one that it moves to."""
    first = f"{FILE_NAME}-{number + 1}" if number else FILE_NAME
    return first, f"{first}.moved"
