"""The drive itself, as a plug-in that nbdkit loads: memory that answers as late as a file tells it to.

Runs inside nbdkit, in the system's Python, so it imports nothing of the project but the model beside it, by
the path of its file. `control` is what `drive_control.Told` is written to, looked at with every request;
`counters` is where `drive_control.Said` is read from.
"""

from __future__ import annotations

import contextlib
import errno
import importlib.util
import json
import mmap
import sys
import threading
import time
from pathlib import Path
from types import ModuleType
from typing import Any

API_VERSION = 2
THREAD_MODEL_PARALLEL = 3  # nbdkit's module has both, but only while nbdkit runs
FUA_EMULATE = 1  # a write that is to be on the drive at once is a write and a flush
POLL_SECONDS = 0.02  # while stopped
SAY_SECONDS = 0.5
FELT_SECONDS = 0.005  # below that a write has not waited: the files of a few KiB that come and go


def _model() -> ModuleType:
    """Return the module of the flash model: nbdkit runs this file without its folder on the path."""
    spec = importlib.util.spec_from_file_location("flash", Path(__file__).with_name("flash.py"))
    if spec is None or spec.loader is None:
        raise ImportError("the model of a flash drive is not beside its plug-in")
    module = importlib.util.module_from_spec(spec)
    sys.modules["flash"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


FLASH = _model()


class Drive:
    """One drive for all of nbdkit's threads."""

    def __init__(self) -> None:
        self.capacity_bytes = 0
        self.control = Path()
        self.counters = Path()
        self.memory = mmap.mmap(-1, 1)  # until it is told how much it holds
        self._stamp = (0, 0)
        self._told: dict[str, Any] = {}
        self._flash: Any = None
        self._busy_until = 0.0  # with trims and reads, on the monotonic clock
        self._written_until = 0.0  # and with what it writes at a limited rate
        self._lock = threading.Lock()  # of the model and of what is said
        self._said: dict[str, Any] = {
            "written_bytes": 0,
            "read_bytes": 0,
            "flushes": 0,
            "trimmed_bytes": 0,
            "waited_seconds": 0.0,
        }

    def hold(self, capacity_bytes: int) -> None:
        """Take so much memory, before the first requests, which come at once: each would make its own.

        The kernel gives a page when it is first written.
        """
        self.capacity_bytes = capacity_bytes
        self.memory = mmap.mmap(-1, capacity_bytes)

    def answer(self) -> None:
        """Return once the drive answers at all."""
        self._look()
        while self._told["is_stopped"]:
            time.sleep(POLL_SECONDS)
            self._look()

    def write(self, offset: int, count: int) -> None:
        """Take as long as to write so many bytes takes now.

        Raises:
            OSError: the drive was told to fail.
        """
        self._fail()
        with self._lock:
            self._said["written_bytes"] += count
            now = time.monotonic()
            seconds = self._told["delay_seconds"] + self._written_seconds(count, now)
            if self._flash is not None:
                seconds += self._flash.write(offset, count, now)
                self._note_starving()
            self._said["waited_seconds"] += seconds
        time.sleep(seconds)

    def flush(self) -> None:
        """Take as long as a flush takes now; fails as `write` does."""
        self._fail()
        with self._lock:
            seconds = self._told["delay_seconds"] + self._written_seconds(0, time.monotonic())
            if self._flash is not None:
                seconds += self._flash.settings.flush_seconds
            self._said["flushes"] += 1
            self._said["waited_seconds"] += seconds
        time.sleep(seconds)

    def read(self, count: int) -> None:
        """Take as long as to read so many bytes takes now; what is written meanwhile waits."""
        with self._lock:
            now = time.monotonic()
            self._said["read_bytes"] += count
            seconds = count / 2**20 * self._told["read_seconds_per_mib"]
            if seconds:
                self._busy_until = max(self._busy_until, now) + seconds
                seconds = self._busy_until - now
        time.sleep(seconds)

    def trim(self, offset: int, count: int) -> None:
        """Return at once, as drives do; what is written while it is at work waits."""
        with self._lock:
            self._said["trimmed_bytes"] += count
            if self._flash is not None:
                now = time.monotonic()
                seconds = self._flash.trim(offset, count, now)
                self._busy_until = max(self._busy_until, now) + seconds

    def say(self) -> None:
        """Write down what was done; a reader never sees a half."""
        with self._lock:
            flash = self._flash
            if flash is not None:
                flash.collect(time.monotonic())
                self._said["erased_pages"] = flash.erased
                self._said["valid_pages"] = flash.valid
                self._said["starved_writes"] = flash.starved_writes
            text = json.dumps(self._said)
        draft = self.counters.with_suffix(".part")
        draft.write_text(text)
        draft.replace(self.counters)

    def _fail(self) -> None:
        if not self._told["error"]:
            return
        import nbdkit  # type: ignore[import-not-found]  # noqa: PLC0415  # there only while nbdkit runs

        number = getattr(errno, self._told["error"])
        nbdkit.set_error(number)
        raise OSError(number, "the drive was told to fail")

    def _written_seconds(self, count: int, now: float) -> float:
        """Return how long so many bytes more take to be written, with all that are on their way."""
        blocked_seconds = self._blocked_seconds(now)
        begin = max(self._written_until, now + blocked_seconds)
        self._written_until = begin + count / 2**20 * self._told["write_seconds_per_mib"]
        return self._written_until - now

    def _blocked_seconds(self, now: float) -> float:
        """Return how long the drive is busy otherwise."""
        seconds = max(0.0, self._busy_until - now)
        if seconds >= FELT_SECONDS:
            self._said.setdefault("blocked_wall_ns", time.time_ns())
        return seconds

    def _note_starving(self) -> None:
        if self._flash.starved_writes and "starved_wall_ns" not in self._said:
            self._said["starved_wall_ns"] = time.time_ns()
            self._said["starved_written_bytes"] = self._said["written_bytes"]

    def _look(self) -> None:
        status = self.control.stat()
        stamp = (status.st_ino, status.st_mtime_ns)
        if stamp == self._stamp:
            return
        with self._lock:
            self._told = json.loads(self.control.read_text())
            self._stamp = stamp
            if self._told["flash"] is None:
                self._flash = None
                return
            settings = FLASH.Settings(**self._told["flash"])
            if self._flash is not None:
                self._flash.settings = settings
                return
            self._flash = FLASH.Flash(self.capacity_bytes, settings, time.monotonic())
            for key in ("starved_wall_ns", "starved_written_bytes", "blocked_wall_ns"):
                self._said.pop(key, None)
            self._said["aged_written_bytes"] = self._said["written_bytes"]


DRIVE = Drive()


def _say_on() -> None:
    while True:
        with contextlib.suppress(OSError):  # its folder is being cleared, or is full
            DRIVE.say()
        time.sleep(SAY_SECONDS)


def config(key: str, value: str) -> None:
    if key == "capacity":
        DRIVE.hold(int(value))
    elif key == "control":
        DRIVE.control = Path(value)
    elif key == "counters":
        DRIVE.counters = Path(value)
    else:
        raise ValueError(f"unknown parameter {key}")


def after_fork() -> None:
    threading.Thread(target=_say_on, name="counters", daemon=True).start()


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
    return FUA_EMULATE


def can_multi_conn(_drive: Drive) -> bool:
    return True


def pread(drive: Drive, buffer: bytearray, offset: int, _flags: int) -> None:
    drive.answer()
    drive.read(len(buffer))
    buffer[:] = drive.memory[offset : offset + len(buffer)]


def pwrite(drive: Drive, buffer: bytes, offset: int, _flags: int) -> None:
    drive.answer()
    drive.write(offset, len(buffer))
    drive.memory[offset : offset + len(buffer)] = buffer


def flush(drive: Drive, _flags: int) -> None:
    drive.answer()
    drive.flush()


def trim(drive: Drive, count: int, offset: int, _flags: int) -> None:
    drive.answer()
    drive.trim(offset, count)


def zero(drive: Drive, count: int, offset: int, _flags: int) -> None:
    """Write zeros: a write as any other and no trim, as a filesystem goes on to write there."""
    drive.answer()
    drive.write(offset, count)
    drive.memory[offset : offset + count] = bytes(count)
