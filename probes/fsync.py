"""fsync latency: what a broker waits for before it may acknowledge a write, measured on the same filesystem.

Source:   write(2) and fsync(2) of one block in a file of our own in each `directory`, on a thread of its own.
          Free space of the filesystem, statvfs(3) once a reading, on another thread: it answers while a flush
          hangs.
Overhead: 4 KiB and one flush every `period` and directory. The file grows to `append_limit` at most and is
          removed at the end.
Caveats:  Latency counts from the intended time, so a busy CPU adds to it: `fsync_schedule_lag_seconds` is
          that part. Overwritten in place, fsync commits the inode's time and fdatasync only data; appended,
          as brokers write, both commit the new size. `directory` renames the file and flushes the folder,
          as brokers do when they roll a segment. tmpfs answers in microseconds, which means nothing: it is
          refused unless allowed. A drive with a protected cache flushes at once until it runs out of erased
          blocks.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic.dataclasses import dataclass as config_dataclass

from probes.common import block_device
from probes.common.block_device import read_kernel_file
from probes.common.folders import FolderList, probe_of_each
from probes.common.polling import Prefetch, Stop, Worker
from soak.core.errors import NotAvailableError, PartialReadingError, ProbeError
from soak.core.model import Column, Reading
from soak.core.plan.config import STRICT
from soak.core.ports import Clock, Probe
from soak.core.units import SECOND_NS, Duration, Size, duration_ns

Sync = Callable[[int], None]
SyncMethod = Literal["fsync", "fdatasync", "directory"]

FILE_NAME = ".soak-fsync"
MAX_FILES = 8  # of as many probes in one folder
_BROKEN = (errno.EIO, errno.EROFS)  # errors of a filesystem that must be checked or mounted again
_CALLS: Mapping[SyncMethod, Sync] = {
    "fsync": os.fsync,
    "fdatasync": os.fdatasync,
    "directory": os.fsync,  # of the folder's own descriptor
}

MAX_WAITING = 100_000  # latencies kept between two readings

_QUANTILES = {"0.5": 0.5, "0.99": 0.99, "max": 1.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class FlushSettings:
    """What is flushed: by which call, how many bytes, and where in the file."""

    sync: SyncMethod
    payload_bytes: int
    is_appending: bool
    limit_bytes: int  # an appended file starts again at this size
    floor_bytes: int  # with less free space nothing is written


class FlushFile:
    """The file that is flushed: bounded in size and removed at the end. Its methods may hang in the kernel.

    `sync` replaces the system call in tests.
    """

    def __init__(self, directory: Path, settings: FlushSettings, sync: Sync | None = None) -> None:
        self._place = str(directory)
        self._settings = settings
        self._sync = sync or _CALLS[settings.sync]
        self._payload = b"\xa5" * settings.payload_bytes
        self._names = _names(0)
        self._folder = self._file = -1
        self._size = 0

    def open(self) -> None:
        """Create the file; replaces one left by a killed probe, and follows no link.

        A second probe in the same folder, such as `soak probe --once`, uses other names.

        Raises:
            OSError: it cannot be created.
        """
        self._folder = os.open(self._place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._names = self._free_names()
        self._begin()

    def flush(self) -> None:
        """Write and flush once.

        Raises:
            OSError: either failed, the write was short, too little space is free, or another folder has taken
                the place of this one: `renew` creates a file there.
        """
        try:
            self._flush()
        except OSError as error:
            self._close_if_broken(error)
            raise

    def renew(self) -> None:
        """Create a new file if there is none, or if the next payload would make it too large.

        Raises:
            OSError: it cannot be created.
        """
        try:
            if self._folder < 0:
                self.open()
            elif self._file < 0 or self._size + len(self._payload) > self._settings.limit_bytes:
                self._begin()
        except OSError as error:
            self._close_if_broken(error)
            raise

    def close(self) -> None:
        """Remove the file, if it was opened."""
        if self._folder >= 0:
            self._leave()

    def _flush(self) -> None:
        if not os.path.samestat(os.stat(self._place), os.fstat(self._folder)):  # noqa: PTH116  # fast
            self._leave()  # a drive was mounted over it, or the broker created it again
            raise OSError(errno.ESTALE, "another folder has taken its place")
        free = _free_bytes(os.fstatvfs(self._folder))
        if free < self._settings.floor_bytes + self._settings.payload_bytes:
            raise OSError(errno.ENOSPC, "less space is free than free_space_floor")
        if self._settings.sync == "directory":
            try:
                os.rename(*self._names, src_dir_fd=self._folder, dst_dir_fd=self._folder)
            except FileNotFoundError:  # it was removed: `renew` creates another
                self._drop()
                raise
            self._names = self._names[::-1]
            self._sync(self._folder)
            return
        if os.pwrite(self._file, self._payload, self._size) < len(self._payload):
            raise OSError(errno.EIO, "short write")
        if self._settings.is_appending:
            self._size += len(self._payload)
        self._sync(self._file)

    def _close_if_broken(self, error: OSError) -> None:
        """Close everything if the filesystem is broken, so that it can be unmounted. `renew` tries again."""
        if error.errno in _BROKEN:
            held = [one for one in (self._file, self._folder) if one >= 0]
            self._file = self._folder = -1
            for descriptor in held:
                os.close(descriptor)

    def _begin(self) -> None:
        self._drop()
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        self._file = os.open(self._names[0], flags, 0o600, dir_fd=self._folder)
        with suppress(OSError):  # a filesystem without locks: a second probe may use the same names
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._size = 0

    def _free_names(self) -> tuple[str, str]:
        """Return the first two names that no running probe uses."""
        for number in range(MAX_FILES):
            names = _names(number)
            if not any(self._is_held(name) for name in names):
                return names
        raise OSError(errno.EBUSY, f"{MAX_FILES} other probes are in this folder")

    def _is_held(self, name: str) -> bool:
        flags = os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            descriptor = os.open(name, flags, dir_fd=self._folder)
        except OSError:  # absent, or not created by a probe
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
        """Remove the file from the folder in which it was created."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
        for name in self._names:
            with suppress(FileNotFoundError):
                os.unlink(name, dir_fd=self._folder)


def _names(number: int) -> tuple[str, str]:
    """Return the names of the n-th probe of a folder: the file's, and the one that it is renamed to."""
    first = f"{FILE_NAME}-{number + 1}" if number else FILE_NAME
    return first, f"{first}.moved"


def _free_bytes(found: os.statvfs_result) -> int:
    return found.f_bavail * found.f_frsize


class FreeSpace:
    """Measures the free space of a folder's filesystem on a thread of its own, before each reading.

    What is not measured since the last reading is not there: statvfs(3) may hang, too. `measure` is one round
    of the thread; tests call it themselves.
    """

    def __init__(
        self,
        directory: str,
        clock: Clock,
        statvfs: Callable[[str], os.statvfs_result] = os.statvfs,
    ) -> None:
        self._directory = directory
        self._statvfs = statvfs
        self._free_bytes: int | None = None
        self._thread = Prefetch("fsync-free", self.measure, clock)

    def take(self) -> int | None:
        """Return the free bytes measured since the last call, or None; start the thread unless it runs."""
        self._thread.check()
        return self.newest()

    def newest(self) -> int | None:
        """Return the free bytes, once for each time that they were measured."""
        found, self._free_bytes = self._free_bytes, None
        return found

    def measure(self) -> None:
        try:
            self._free_bytes = _free_bytes(self._statvfs(self._directory))
        except OSError:  # the flushes tell of it
            self._free_bytes = None

    def close(self) -> None:
        self._thread.close(0.0)


class CallTimer:
    """Times one call after another against a fixed schedule (open loop).

    Slots that come due while a call hangs are served together by the next call, each counted from its own
    intended time, so a stall shows at full length and is not followed by a burst of calls. `serve` and
    `between` run on the thread that may hang, the other methods on the one that reads.
    """

    def __init__(
        self, start_ns: int, period_ns: int, clock: Clock, call: Callable[[], None]
    ) -> None:
        self._next_ns = start_ns
        self._period_ns = period_ns
        self._clock = clock
        self._call = call
        self._latencies_ns: deque[int] = deque(maxlen=MAX_WAITING)
        self._lags_ns: deque[int] = deque(maxlen=MAX_WAITING)
        self._serving_ns: int | None = None

    @property
    def next_due_ns(self) -> int:
        return self._next_ns

    def serve(self) -> None:
        """Make one call for all slots that are due; if it raises, it has failed for all of them."""
        now_ns = self._clock.mono_ns()
        count = (now_ns - self._next_ns) // self._period_ns + 1
        if count < 1:
            return
        first_ns, self._next_ns = self._next_ns, self._next_ns + count * self._period_ns
        self._serving_ns = first_ns
        self._lags_ns.append(now_ns - first_ns)
        try:
            self._call()
            done_ns = self._clock.mono_ns()
            self._latencies_ns.extend(
                done_ns - due for due in range(first_ns, self._next_ns, self._period_ns)
            )
        finally:
            self._serving_ns = None

    def between(self, work: Callable[[], None]) -> None:
        """Run work between two calls: slots wait for it, and `hanging_ns` covers it."""
        self._serving_ns = self._clock.mono_ns()
        try:
            work()
        finally:
            self._serving_ns = None

    def take_latencies_ns(self) -> list[int]:
        """Return the latencies of the slots served since the last reading."""
        return _drained(self._latencies_ns)

    def take_lags_ns(self) -> list[int]:
        """Return the delay between slot and start of each call since the last reading."""
        return _drained(self._lags_ns)

    def hanging_ns(self) -> int:
        """Return the age, from its slot on, of a call that has taken more than a period; else 0."""
        serving_ns = self._serving_ns
        if serving_ns is None:
            return 0
        age_ns = self._clock.mono_ns() - serving_ns
        return age_ns if age_ns > self._period_ns else 0


def _drained(box: deque[int]) -> list[int]:
    return [box.popleft() for _ in range(len(box))]


@config_dataclass(frozen=True, kw_only=True, config=STRICT)
class Config:
    directory: FolderList = ""  # empty: the brokers' data folders, where the run knows them
    period: Duration = duration_ns("200ms")
    payload_size: Size = 4096
    sync: SyncMethod = "fsync"
    write: Literal["overwrite", "append"] = "overwrite"
    append_limit: Size = 64 * 2**20  # an appended file starts again at this size
    free_space_floor: Size = 64 * 2**20  # with less free space nothing is written
    allow_tmpfs: bool = False

    def __post_init__(self) -> None:
        if not duration_ns("10ms") <= self.period <= duration_ns("60s"):
            raise ValueError("period must lie between 10ms and 60s")
        if not 1 <= self.payload_size <= 2**20:
            raise ValueError("payload_size must lie between 1B and 1MiB")
        if not self.payload_size <= self.append_limit <= 2**30:
            raise ValueError("append_limit must lie between payload_size and 1GiB")
        if self.free_space_floor < 0:
            raise ValueError("free_space_floor must not be below 0B")
        if self.sync == "directory" and self.write == "append":
            raise ValueError(
                "a directory sync writes nothing: it goes with `write: overwrite` alone"
            )

    @property
    def flush_settings(self) -> FlushSettings:
        return FlushSettings(
            sync=self.sync,
            payload_bytes=self.payload_size,
            is_appending=self.write == "append",
            limit_bytes=self.append_limit,
            floor_bytes=self.free_space_floor,
        )


def build(config: Config, clock: Clock) -> Probe:
    return probe_of_each(
        config.directory, lambda folder: Fsync(replace(config, directory=folder), clock)
    )


class Fsync:
    """The flushes in one folder: a thread flushes, and a reading returns the latencies since the last.

    Tests replace `proc`, `file` and `free`.
    """

    def __init__(
        self,
        config: Config,
        clock: Clock,
        *,
        proc: Path = Path("/proc"),
        file: FlushFile | None = None,
        free: FreeSpace | None = None,
    ) -> None:
        self._config = config
        self._clock = clock
        self._proc = proc
        self._file = file or FlushFile(Path(config.directory), config.flush_settings)
        self._free = free or FreeSpace(config.directory, clock)
        self._is_checked = False  # whether the folder is one that is flushed
        self._worker = Worker("fsync", self._work)
        self._timer: CallTimer | None = None
        self._begun_ns = 0  # when the thread was last started
        self._label = ("directory", config.directory)

    def read(self) -> Reading:
        """Return the quantiles of the flushes since the last reading, and the age of one that hangs.

        Raises:
            NotAvailableError: this folder is not flushed, or none.
            ProbeError: a flush failed; with the free space where that was measured.
        """
        begin_ns = self._clock.mono_ns()
        free = self._free_samples()
        try:
            if self._worker.check():
                self._begun_ns = begin_ns
        except ProbeError as error:
            raise PartialReadingError(str(error), Reading(tuple(free))) from error
        timer = self._timer
        samples = (
            self._opening(begin_ns)
            if timer is None
            else flush_samples(timer, self._config.directory)
        )
        cost = (self._clock.mono_ns() - begin_ns) / SECOND_NS
        return Reading((*samples, *free), (), cost)

    def close(self, timeout_seconds: float = 1.0) -> None:
        """Stop the thread, which removes the file; abandon it after the timeout."""
        self._free.close()
        self._worker.close(timeout_seconds)

    def _free_samples(self) -> list[tuple[Column, float]]:
        free_bytes = self._free.take() if self._is_checked else None
        if free_bytes is None:
            return []
        return [(Column("disk_free_bytes", (self._label,), "bytes"), float(free_bytes))]

    def _opening(self, now_ns: int) -> list[tuple[Column, float]]:
        """Return for how long the file could not be created, once that is longer than a period."""
        age_ns = now_ns - self._begun_ns
        if age_ns <= self._config.period:
            return []
        return [(Column("fsync_hanging_seconds", (self._label,), "seconds"), age_ns / SECOND_NS)]

    def _work(self, stop: Stop) -> None:
        """Open, flush on the schedule until stopped, and remove the file: all work that touches the drive."""
        directory = self._config.directory
        self._timer = None
        try:
            self._check_directory()
            self._is_checked = True
            with closing(self._file):
                self._file.open()
                self._flush_until(stop)
        except OSError as error:
            raise ProbeError(f"cannot keep a file in {directory}: {_reason(error)}") from error

    def _flush_until(self, stop: Stop) -> None:
        start_ns = (
            self._clock.mono_ns() + self._config.period // 2
        )  # between the readings, not with them
        timer = CallTimer(start_ns, self._config.period, self._clock, self._file.flush)
        self._timer = timer
        renew = partial(timer.between, self._file.renew)
        while not stop.wait((timer.next_due_ns - self._clock.mono_ns()) / SECOND_NS):
            for step in (timer.serve, renew):  # also after a failure
                try:
                    step()
                except OSError as error:
                    directory = self._config.directory
                    self._worker.note(ProbeError(f"cannot flush in {directory}: {_reason(error)}"))

    def _check_directory(self) -> None:
        directory = self._config.directory
        if not directory:
            raise NotAvailableError("fsync.directory is not set: name a folder on the drive")
        if not Path(directory).is_dir():
            raise NotAvailableError(f"{directory} is not a directory")
        if self._config.allow_tmpfs:
            return
        mounts = block_device.parse_mounts(read_kernel_file(self._proc / "self/mountinfo"))
        kind = block_device.mount_of(os.path.realpath(directory), mounts).kind
        if kind in block_device.MEMORY_FILESYSTEMS:
            raise NotAvailableError(
                f"{directory} is in memory ({kind}), where a flush means nothing; "
                "to probe it all the same, set `allow_tmpfs: true`"
            )


def flush_samples(timer: CallTimer, directory: str) -> list[tuple[Column, float]]:
    """Return the samples of the flushes since the last call, and the age of a flush that hangs."""
    label = ("directory", directory)
    hanging = timer.hanging_ns() / SECOND_NS
    samples = [(Column("fsync_hanging_seconds", (label,), "seconds"), hanging)]
    lags_ns = timer.take_lags_ns()
    if lags_ns:
        lag = max(lags_ns) / SECOND_NS
        samples.append((Column("fsync_schedule_lag_seconds", (label,), "seconds"), lag))
    latencies_ns = timer.take_latencies_ns()
    if latencies_ns:
        shares = list(_QUANTILES.values())
        found_ns = np.quantile(latencies_ns, shares, method="inverted_cdf")
        for quantile, latency_ns in zip(_QUANTILES, found_ns, strict=True):
            labels = (label, ("quantile", quantile))
            column = Column("fsync_latency_seconds", labels, "seconds")
            samples.append((column, float(latency_ns) / SECOND_NS))
    return samples


def _reason(error: OSError) -> str:
    return error.strerror or str(error)
