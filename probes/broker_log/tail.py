"""Follows a growing log file through rotation by rename or by copy and truncate; returns whole lines."""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from soak.core.errors import ProbeError

MAX_CHUNK_BYTES = 4 * 2**20  # read at once
MAX_BEHIND_BYTES = 64 * 2**20  # of a longer backlog only the end is read
MAX_LINE_BYTES = 2**16  # of a longer line only the end is read
_MARK_BYTES = 64
_MOST_ABSENT = 20
"""Reads in a row of nothing and without a file of this name: a rotation takes less."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Complete lines; `lost_bytes` were skipped."""

    text: bytes
    lost_bytes: int = 0
    is_all: bool = True  # the end of the file was reached


class LogTail:
    """Starts at the end of a file that exists at first, and at the beginning of one that appears later."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None
        self._is_new = False  # the file did not exist at first
        self._at = 0
        self._mark = b""  # the text before `_at`: if it differs, the file has been replaced
        self._rest = b""  # a line without its end
        self._lost = 0
        self._absent = 0  # reads in a row

    def read(self) -> Chunk:
        """Return the lines since the last call, at most `MAX_CHUNK_BYTES`.

        Raises:
            ProbeError: the log is missing or cannot be read.
        """
        try:
            if self._descriptor is None:
                self._follow(self._opened(), at_end=not self._is_new)
            text, is_all = self._more()
        except OSError as error:
            self._is_new = self._is_new or isinstance(error, FileNotFoundError)
            raise self._failed(error) from error
        try:
            if is_all and self._is_replaced():
                more, is_all = self._switch()
                text += more
        except OSError as error:
            if not text:  # return what was read; the next read will fail
                raise self._failed(error) from error
        if text:  # whatever it is called by now, this file is written to
            self._absent = 0
        whole = self._whole_lines(text)
        lost, self._lost = self._lost, 0
        return Chunk(whole, lost, is_all)

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _failed(self, error: OSError) -> ProbeError:
        return ProbeError(f"cannot read the log {self._path}: {error.strerror}")

    def _opened(self) -> int:
        descriptor = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise OSError(errno.EINVAL, "it is not a regular file")
        return descriptor

    def _follow(self, descriptor: int, *, at_end: bool) -> None:
        self.close()
        self._descriptor = descriptor
        self._at = os.fstat(descriptor).st_size if at_end else 0
        self._mark = self._before(self._at)

    def _switch(self) -> tuple[bytes, bool]:
        """Read the old file to its end, then switch to the new one."""
        there = self._opened()
        try:
            rest, is_all = self._more()
        except OSError:
            os.close(there)
            raise
        if not is_all:
            os.close(there)
            return rest, False
        self._follow(there, at_end=False)
        more, is_all = self._more()
        return rest + b"\n" + more, is_all  # the last line of the old file is complete

    def _more(self) -> tuple[bytes, bool]:
        """Return the next bytes, and whether they reach the end of the file."""
        size = os.fstat(self._fd).st_size
        if size < self._at or self._before(self._at) != self._mark:
            self._begin_at(0)  # truncated, perhaps rewritten
        if os.pread(self._fd, 1, self._at) == b"\0":
            self._begin_at(self._end_of_hole(size))
        if size - self._at > MAX_BEHIND_BYTES:
            self._lost += size - MAX_CHUNK_BYTES - self._at
            self._begin_at(size - MAX_CHUNK_BYTES)
        text = os.pread(self._fd, MAX_CHUNK_BYTES, self._at)
        self._at += len(text)
        self._mark = (self._mark + text)[-_MARK_BYTES:]
        return text.lstrip(b"\0"), len(text) < MAX_CHUNK_BYTES

    def _end_of_hole(self, size: int) -> int:
        """Return where data follow, or the same place if there is no hole but zeros.

        A file that is truncated has a hole up to where its program goes on, unless that appends (O_APPEND).
        """
        try:
            return os.lseek(self._fd, self._at, os.SEEK_DATA)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            return size  # the hole reaches to the end

    def _begin_at(self, at: int) -> None:
        self._at, self._rest = at, b""
        self._mark = self._before(at)

    def _before(self, at: int) -> bytes:
        length = min(at, _MARK_BYTES)
        return os.pread(self._fd, length, at - length)

    def _is_replaced(self) -> bool:
        """Return whether the path is another file now; between two renames there may be none.

        Raises:
            FileNotFoundError: there has been none for so long that its program goes on under another name.
        """
        try:
            there = self._path.stat()
        except FileNotFoundError:
            self._absent += 1
            if self._absent > _MOST_ABSENT:
                raise
            return False
        self._absent = 0
        here = os.fstat(self._fd)
        return (there.st_dev, there.st_ino) != (here.st_dev, here.st_ino)

    def _whole_lines(self, text: bytes) -> bytes:
        text = self._rest + text
        cut = text.rfind(b"\n") + 1
        self._rest = text[cut:]
        if len(self._rest) > MAX_LINE_BYTES:
            self._lost += len(self._rest) - MAX_LINE_BYTES
            self._rest = self._rest[-MAX_LINE_BYTES:]
        return text[:cut]

    @property
    def _fd(self) -> int:
        if self._descriptor is None:
            raise ProbeError(f"the log {self._path} is closed")
        return self._descriptor
