"""Follows a file that grows, through rotation by rename and by copy and truncate; hands out whole lines."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path

from soak.core.errors import ProbeError

MAX_PIECE_BYTES = 4 * 2**20  # read at once
MAX_BEHIND_BYTES = 64 * 2**20  # a log that outruns us by more is read on from near its end
MAX_LINE_BYTES = 2**16  # of a longer line only the end is seen
_MARK_BYTES = 64


@dataclass(frozen=True, slots=True)
class Piece:
    """Whole lines, each with its end; `lost_bytes` were not looked at."""

    text: bytes
    lost_bytes: int = 0
    is_all: bool = True  # nothing more was there


class LogTail:
    """Starts at the end of a file that is there at first, at the beginning of any that comes later."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None
        self._is_new = False  # there was none when we looked first
        self._at = 0
        self._mark = b""  # what stands before `_at`: another text there means another file
        self._rest = b""  # of a line without its end
        self._lost = 0

    def read(self) -> Piece:
        """Return what came since the last call, bounded.

        Raises:
            ProbeError: there is no such log, or it cannot be read.
        """
        try:
            if self._descriptor is None:
                self._open(at_end=not self._is_new)
            text, is_all = self._more()
            if is_all and self._is_replaced():
                self._open(at_end=False)
                more, is_all = self._more()
                end = b"\n" if self._rest + text else b""  # nothing will be added to its last line
                text += end + more
        except OSError as error:
            self._is_new = self._is_new or isinstance(error, FileNotFoundError)
            raise ProbeError(f"cannot read the log {self._path}: {error.strerror}") from error
        whole = self._whole_lines(text)
        lost, self._lost = self._lost, 0
        return Piece(whole, lost, is_all)

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _open(self, *, at_end: bool) -> None:
        descriptor = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        now = os.fstat(descriptor)
        if not stat.S_ISREG(now.st_mode):
            os.close(descriptor)
            raise ProbeError(f"the log {self._path} is not a file")
        self.close()
        self._descriptor = descriptor
        self._at = now.st_size if at_end else 0
        self._mark = self._before(self._at)

    def _more(self) -> tuple[bytes, bool]:
        """Return the next bytes, and whether they reach to the end."""
        size = os.fstat(self._fd).st_size
        if size < self._at or self._before(self._at) != self._mark:
            self._begin_at(0)  # truncated, perhaps written again
        if size - self._at > MAX_BEHIND_BYTES:
            self._lost += size - MAX_PIECE_BYTES - self._at
            self._begin_at(size - MAX_PIECE_BYTES)
        text = os.pread(self._fd, MAX_PIECE_BYTES, self._at)
        self._at += len(text)
        self._mark = (self._mark + text)[-_MARK_BYTES:]
        return text, len(text) < MAX_PIECE_BYTES

    def _begin_at(self, at: int) -> None:
        self._at, self._rest = at, b""
        self._mark = self._before(at)

    def _before(self, at: int) -> bytes:
        length = min(at, _MARK_BYTES)
        return os.pread(self._fd, length, at - length)

    def _is_replaced(self) -> bool:
        """Tell whether the path names another file; between two renames it may name none."""
        if not self._path.exists():
            return False
        there = self._path.stat()
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
