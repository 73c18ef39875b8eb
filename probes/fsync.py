"""The file that the fsync probe flushes: no larger than told, gone at the end, never what fills a drive.

Everything here may hang in the kernel, so it runs on a thread of its own.
"""

from __future__ import annotations

import errno
import fcntl
import math
import os
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from pydantic.dataclasses import dataclass as config_dataclass

from probes.common import block_device
from probes.common.block_device import read_kernel_file
from probes.common.polling import Stop, Worker
from soak.core.errors import NotAvailableError, ProbeError
from soak.core.model import Column, Reading
from soak.core.plan.config import STRICT
from soak.core.ports import Clock
from soak.core.units import SECOND_NS, Duration, Size, duration_ns

Sync = Callable[[int], None]
SyncMethod = Literal["fsync", "fdatasync", "directory"]

FILE_NAME = ".soak-fsync"
MAX_FILES = 8  # in one folder, of as many probes
_BROKEN = (errno.EIO, errno.EROFS)  # what a filesystem says that is to be checked or mounted anew
_CALLS: Mapping[SyncMethod, Sync] = {
    "fsync": os.fsync,
    "fdatasync": os.fdatasync,
    "directory": os.fsync,  # of the folder's own descriptor
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FlushSettings:
    """What a flush is: which call, of how much, where in the file."""

    sync: SyncMethod
    payload_bytes: int
    is_appending: bool
    limit_bytes: int  # an appended file begins anew at this size
    floor_bytes: int  # with less free space nothing is written


class FlushFile:
    """One file in one folder. `sync` stands for the system call in tests."""

    def __init__(self, directory: Path, way: FlushSettings, sync: Sync | None = None) -> None:
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
        for number in range(MAX_FILES):
            names = _names(number)
            if not any(self._is_held(name) for name in names):
                return names
        raise OSError(errno.EBUSY, f"{MAX_FILES} other probes are in this folder")

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


# --- Times one call after another against a fixed schedule; knows nothing of threads or files.
# Open loop: slots that come due while a call hangs are served together by the next call, each counted from
# its own intended time. So a stall shows at full length, and is not followed by a burst of calls.

MAX_WAITING = 100_000  # latencies kept between two `take`


class CallTimer:
    """`serve` and `between` run in the thread that may hang; the other methods in the one that reads."""

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
        """Make one call for all slots due now; it has failed for all of them when it raises."""
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
        """Do what belongs between two calls: slots wait for it, and while it hangs its age shows, too."""
        self._serving_ns = self._clock.mono_ns()
        try:
            work()
        finally:
            self._serving_ns = None

    def take_latencies_ns(self) -> list[int]:
        """Return the latencies of the slots served since the last call."""
        return _drained(self._latencies_ns)

    def take_lags_ns(self) -> list[int]:
        """Return by how much each call since the last `take_lags_ns` began after its slot."""
        return _drained(self._lags_ns)

    def hanging_ns(self) -> int:
        """Return the age of what is not back after a whole period, of a call from its slot on; else 0."""
        serving_ns = self._serving_ns
        if serving_ns is None:
            return 0
        age_ns = self._clock.mono_ns() - serving_ns
        return age_ns if age_ns > self._period_ns else 0


def _drained(box: deque[int]) -> list[int]:
    return [box.popleft() for _ in range(len(box))]


# --- fsync latency: what a broker waits for before it may acknowledge a write, measured beside it.
# Source:   write(2) and fsync(2) of one block in a file of our own in `directory`, on a thread of its own.
# Overhead: 4 KiB and one flush every `period`. The file grows to `append_limit` at most, and goes at the end.
# Caveats:  Counted from the intended time, so a busy CPU shows: `fsync_schedule_lag_seconds` is that part.
# Overwritten in place, fsync commits the inode's time and fdatasync data alone; appended, as brokers
# write, both commit the new size. `directory` renames the file and flushes the folder, as at a roll
# of segments. tmpfs answers in microseconds and means nothing, so it is refused unless allowed. A
# drive with a protected cache flushes in no time until it starves.

_QUANTILES = {"0.5": 0.5, "0.99": 0.99, "max": 1.0}


@config_dataclass(frozen=True, kw_only=True, config=STRICT)
class Config:
    directory: str = ""  # empty: the broker's data folder, where the run knows it
    period: Duration = duration_ns("200ms")
    payload_size: Size = 4096
    sync: SyncMethod = "fsync"
    write: Literal["overwrite", "append"] = "overwrite"
    append_limit: Size = 64 * 2**20  # an appended file begins anew at this size
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
    def way(self) -> FlushSettings:
        return FlushSettings(
            sync=self.sync,
            payload_bytes=self.payload_size,
            is_appending=self.write == "append",
            limit_bytes=self.append_limit,
            floor_bytes=self.free_space_floor,
        )


def build(config: Config, clock: Clock) -> Fsync:
    return Fsync(config, clock)


class Fsync:
    """`sync` stands for the system call in tests."""

    def __init__(
        self, config: Config, clock: Clock, *, proc: Path = Path("/proc"), sync: Sync | None = None
    ) -> None:
        self._config = config
        self._clock = clock
        self._proc = proc
        self._file = FlushFile(Path(config.directory), config.way, sync)
        self._worker = Worker("fsync", self._work)
        self._meter: CallTimer | None = None
        self._begun_ns = 0  # when the thread was last started
        self._label = ("directory", config.directory)

    def read(self) -> Reading:
        """Return the quantiles of the flushes that came back since the last reading, and what hangs."""
        begin_ns = self._clock.mono_ns()
        if self._worker.check():
            self._begun_ns = begin_ns
        meter = self._meter
        samples = self._opening(begin_ns) if meter is None else self._samples(meter)
        return Reading(tuple(samples), (), (self._clock.mono_ns() - begin_ns) / SECOND_NS)

    def close(self) -> None:
        self._worker.close()

    def _opening(self, now_ns: int) -> list[tuple[Column, float]]:
        """Return how long the drive has not let us make our file, once it is longer than a period."""
        age_ns = now_ns - self._begun_ns
        if age_ns <= self._config.period:
            return []
        return [(Column("fsync_hanging_seconds", (self._label,), "seconds"), age_ns / SECOND_NS)]

    def _samples(self, meter: CallTimer) -> list[tuple[Column, float]]:
        hanging = meter.hanging_ns() / SECOND_NS
        samples = [(Column("fsync_hanging_seconds", (self._label,), "seconds"), hanging)]
        lags_ns = meter.take_lags_ns()
        if lags_ns:
            lag = max(lags_ns) / SECOND_NS
            samples.append((Column("fsync_schedule_lag_seconds", (self._label,), "seconds"), lag))
        latencies_ns = sorted(meter.take_latencies_ns())
        for quantile, share in _QUANTILES.items() if latencies_ns else ():
            rank = math.ceil(share * len(latencies_ns))
            labels = (self._label, ("quantile", quantile))
            column = Column("fsync_latency_seconds", labels, "seconds")
            samples.append((column, latencies_ns[rank - 1] / SECOND_NS))
        return samples

    def _work(self, stop: Stop) -> None:
        """Open, flush on the schedule until told to stop, remove the file: all that touches the drive."""
        directory = self._config.directory
        self._meter = None
        try:
            self._refuse_memory()
            with closing(self._file):
                self._file.open()
                self._flush_until(stop)
        except OSError as error:
            raise ProbeError(f"cannot keep a file in {directory}: {_why(error)}") from error

    def _flush_until(self, stop: Stop) -> None:
        start_ns = self._clock.mono_ns() + self._config.period // 2  # between readings, not at them
        meter = CallTimer(start_ns, self._config.period, self._clock, self._file.flush)
        self._meter = meter
        renew = partial(meter.between, self._file.renew)
        while not stop.wait((meter.next_due_ns - self._clock.mono_ns()) / SECOND_NS):
            for step in (meter.serve, renew):  # the latter after a failure too
                try:
                    step()
                except OSError as error:
                    place = self._config.directory
                    self._worker.note(ProbeError(f"cannot flush in {place}: {_why(error)}"))

    def _refuse_memory(self) -> None:
        directory = self._config.directory
        if not directory:
            raise NotAvailableError("fsync.directory is not set: which drive is to be watched?")
        if not Path(directory).is_dir():
            raise NotAvailableError(f"{directory} is not a directory")
        if self._config.allow_tmpfs:
            return
        mounts = block_device.parse_mounts(read_kernel_file(self._proc / "self/mountinfo"))
        kind = block_device.mount_of(os.path.realpath(directory), mounts).kind
        if kind in block_device.MEMORY_FILESYSTEMS:
            raise NotAvailableError(
                f"{directory} lies in memory ({kind}), where a flush means nothing: "
                "only `allow_tmpfs: true` probes it"
            )


def _why(error: OSError) -> str:
    return error.strerror or str(error)
