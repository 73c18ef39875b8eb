"""The injected drive as a plug-in of nbdkit: memory whose answers are delayed as a file asks.

It runs inside nbdkit, in the system's Python, so it imports nothing of the project but the flash model, by
the path of its file. It reads the file `control`, a `DriveCommand` of `folder.py`, with every request, and
writes the file `counters`, a `DriveStatus`.
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
FUA_EMULATE = 1  # nbdkit turns a forced write into a write and a flush
POLL_SECONDS = 0.02  # while stopped
STATUS_SECONDS = 0.5
MIN_BLOCKED_SECONDS = 0.005  # deleting files of a few KiB is no reason to call a write blocked


def _load_flash_model() -> ModuleType:
    """Return the module of the flash model by its path: nbdkit does not put this folder on Python's path."""
    spec = importlib.util.spec_from_file_location("flash", Path(__file__).with_name("flash.py"))
    if spec is None or spec.loader is None:
        raise ImportError("flash.py is missing in the folder of nbdkit_plugin.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["flash"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


FLASH = _load_flash_model()


class Drive:
    """One drive for all of nbdkit's threads."""

    def __init__(self) -> None:
        self.capacity_bytes = 0
        self.control = Path()
        self.counters = Path()
        self.memory = mmap.mmap(-1, 1)  # until `set_capacity`
        self._stamp = (0, 0)
        self._command: dict[str, Any] = {}
        self._flash: Any = None
        self._busy_until = 0.0  # with trims and reads, monotonic clock
        self._written_until = 0.0  # with writes at a limited rate, monotonic clock
        self._lock = threading.Lock()  # of the model and the status
        self._status: dict[str, Any] = {
            "written_bytes": 0,
            "read_bytes": 0,
            "flushes": 0,
            "trimmed_bytes": 0,
            "waited_seconds": 0.0,
        }

    def set_capacity(self, capacity_bytes: int) -> None:
        """Map this much memory, before requests come in parallel.

        The kernel allocates a page when it is first written.
        """
        self.capacity_bytes = capacity_bytes
        self.memory = mmap.mmap(-1, capacity_bytes)

    def wait_until_answering(self) -> None:
        """Read the command and return once the drive is not stopped."""
        self._read_command()
        while self._command["is_stopped"]:
            time.sleep(POLL_SECONDS)
            self._read_command()

    def write(self, offset: int, count: int) -> None:
        """Sleep as long as a write of this many bytes takes now.

        Raises:
            OSError: the command is to fail.
        """
        self._raise_error()
        with self._lock:
            self._status["written_bytes"] += count
            now = time.monotonic()
            seconds = self._command["delay_seconds"] + self._written_seconds(count, now)
            if self._flash is not None:
                seconds += self._flash.write(offset, count, now)
                self._note_starvation()
            self._status["waited_seconds"] += seconds
        time.sleep(seconds)

    def flush(self) -> None:
        """Sleep as long as a flush takes now; fails as `write` does."""
        self._raise_error()
        with self._lock:
            seconds = self._command["delay_seconds"] + self._written_seconds(0, time.monotonic())
            if self._flash is not None:
                seconds += self._flash.settings.flush_seconds
            self._status["flushes"] += 1
            self._status["waited_seconds"] += seconds
        time.sleep(seconds)

    def read(self, count: int) -> None:
        """Sleep as long as a read of this many bytes takes now, while writes wait."""
        with self._lock:
            now = time.monotonic()
            self._status["read_bytes"] += count
            seconds = count / 2**20 * self._command["read_seconds_per_mib"]
            if seconds:
                self._busy_until = max(self._busy_until, now) + seconds
                seconds = self._busy_until - now
        time.sleep(seconds)

    def trim(self, offset: int, count: int) -> None:
        """Return at once, as drives do; writes wait while the drive is busy with the trim."""
        with self._lock:
            self._status["trimmed_bytes"] += count
            if self._flash is not None:
                now = time.monotonic()
                seconds = self._flash.trim(offset, count, now)
                self._busy_until = max(self._busy_until, now) + seconds

    def write_status(self) -> None:
        """Replace the status file."""
        with self._lock:
            flash = self._flash
            if flash is not None:
                flash.collect(time.monotonic())
                self._status["erased_pages"] = flash.erased
                self._status["valid_pages"] = flash.valid
                self._status["starved_writes"] = flash.starved_writes
            text = json.dumps(self._status)
        draft = self.counters.with_suffix(".part")
        draft.write_text(text)
        draft.replace(self.counters)

    def _raise_error(self) -> None:
        if not self._command["error"]:
            return
        import nbdkit  # type: ignore[import-not-found]  # noqa: PLC0415  # there only while nbdkit runs

        number = getattr(errno, self._command["error"])
        nbdkit.set_error(number)
        raise OSError(number, "an injected error")

    def _written_seconds(self, count: int, now: float) -> float:
        """Return how long a write of this many bytes takes, behind the writes before it."""
        blocked_seconds = self._blocked_seconds(now)
        begin = max(self._written_until, now + blocked_seconds)
        self._written_until = begin + count / 2**20 * self._command["write_seconds_per_mib"]
        return self._written_until - now

    def _blocked_seconds(self, now: float) -> float:
        """Return how long the drive is still busy with trims and reads."""
        seconds = max(0.0, self._busy_until - now)
        if seconds >= MIN_BLOCKED_SECONDS:
            self._status.setdefault("blocked_wall_ns", time.time_ns())
        return seconds

    def _note_starvation(self) -> None:
        if self._flash.starved_writes and "starved_wall_ns" not in self._status:
            self._status["starved_wall_ns"] = time.time_ns()
            self._status["starved_written_bytes"] = self._status["written_bytes"]

    def _read_command(self) -> None:
        status = self.control.stat()
        stamp = (status.st_ino, status.st_mtime_ns)
        if stamp == self._stamp:
            return
        with self._lock:
            self._command = json.loads(self.control.read_text())
            self._stamp = stamp
            if self._command["flash"] is None:
                self._flash = None
                return
            settings = FLASH.Settings(**self._command["flash"])
            if self._flash is not None:
                self._flash.settings = settings
                return
            self._flash = FLASH.Flash(self.capacity_bytes, settings, time.monotonic())
            for key in ("starved_wall_ns", "starved_written_bytes", "blocked_wall_ns"):
                self._status.pop(key, None)
            self._status["aged_written_bytes"] = self._status["written_bytes"]


DRIVE = Drive()


def _write_status_forever() -> None:
    while True:
        with contextlib.suppress(OSError):  # its folder is being removed, or is full
            DRIVE.write_status()
        time.sleep(STATUS_SECONDS)


def config(key: str, value: str) -> None:
    if key == "capacity":
        DRIVE.set_capacity(int(value))
    elif key == "control":
        DRIVE.control = Path(value)
    elif key == "counters":
        DRIVE.counters = Path(value)
    else:
        raise ValueError(f"unknown parameter {key}")


def after_fork() -> None:
    threading.Thread(target=_write_status_forever, name="counters", daemon=True).start()


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
    drive.wait_until_answering()
    drive.read(len(buffer))
    buffer[:] = drive.memory[offset : offset + len(buffer)]


def pwrite(drive: Drive, buffer: bytes, offset: int, _flags: int) -> None:
    drive.wait_until_answering()
    drive.write(offset, len(buffer))
    drive.memory[offset : offset + len(buffer)] = buffer


def flush(drive: Drive, _flags: int) -> None:
    drive.wait_until_answering()
    drive.flush()


def trim(drive: Drive, count: int, offset: int, _flags: int) -> None:
    drive.wait_until_answering()
    drive.trim(offset, count)


def zero(drive: Drive, count: int, offset: int, _flags: int) -> None:
    """Write zeros like any other bytes: not a trim, because filesystems go on to write there."""
    drive.wait_until_answering()
    drive.write(offset, count)
    drive.memory[offset : offset + count] = bytes(count)
