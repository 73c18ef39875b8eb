"""The drive itself, as a plug-in that nbdkit loads: memory that answers as late as a file tells it to.

Runs inside nbdkit, in the system's Python, so it imports nothing of the project. `control` is JSON, replaced
as a whole: `delay_seconds` holds up every write and every flush, `is_stopped` every answer until it is false.
"""

from __future__ import annotations

import json
import mmap
import time
from pathlib import Path

API_VERSION = 2
THREAD_MODEL_PARALLEL = 3  # nbdkit's module has both, but only while nbdkit runs
FUA_NATIVE = 2
POLL_SECONDS = 0.02  # while stopped


class Drive:
    """One drive for all of nbdkit's threads."""

    def __init__(self) -> None:
        self.capacity_bytes = 0
        self.control = Path()
        self._memory: mmap.mmap | None = None
        self._stamp = (0, 0)
        self._delay_seconds = 0.0
        self._is_stopped = False

    @property
    def memory(self) -> mmap.mmap:
        """Return the drive's bytes; the kernel gives a page when it is first written."""
        if self._memory is None:
            self._memory = mmap.mmap(-1, self.capacity_bytes)
        return self._memory

    def answer(self) -> float:
        """Return once the drive answers at all, with the delay that writes and flushes have now."""
        self._look()
        while self._is_stopped:
            time.sleep(POLL_SECONDS)
            self._look()
        return self._delay_seconds

    def _look(self) -> None:
        status = self.control.stat()
        stamp = (status.st_ino, status.st_mtime_ns)
        if stamp != self._stamp:
            told = json.loads(self.control.read_text())
            self._delay_seconds, self._is_stopped = told["delay_seconds"], told["is_stopped"]
            self._stamp = stamp


DRIVE = Drive()


def config(key: str, value: str) -> None:
    if key == "capacity":
        DRIVE.capacity_bytes = int(value)
    elif key == "control":
        DRIVE.control = Path(value)
    else:
        raise ValueError(f"unknown parameter {key}")


def thread_model() -> int:
    return THREAD_MODEL_PARALLEL


def open(_readonly: bool) -> Drive:  # noqa: A001, FBT001  # nbdkit calls it by this name, with this argument
    return DRIVE


def get_size(drive: Drive) -> int:
    return drive.capacity_bytes


def can_write(_drive: Drive) -> bool:
    return True


def can_flush(_drive: Drive) -> bool:
    return True


def can_trim(_drive: Drive) -> bool:
    return True


def can_fua(_drive: Drive) -> int:
    return FUA_NATIVE


def can_multi_conn(_drive: Drive) -> bool:
    return True


def pread(drive: Drive, buffer: bytearray, offset: int, _flags: int) -> None:
    drive.answer()
    buffer[:] = drive.memory[offset : offset + len(buffer)]


def pwrite(drive: Drive, buffer: bytes, offset: int, _flags: int) -> None:
    time.sleep(drive.answer())
    drive.memory[offset : offset + len(buffer)] = buffer


def flush(drive: Drive, _flags: int) -> None:
    time.sleep(drive.answer())


def trim(drive: Drive, _count: int, _offset: int, _flags: int) -> None:
    drive.answer()


def zero(drive: Drive, count: int, offset: int, _flags: int) -> None:
    drive.answer()
    drive.memory[offset : offset + count] = bytes(count)
