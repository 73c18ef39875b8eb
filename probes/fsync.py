"""fsync latency: what a broker waits for before it may acknowledge a write, measured beside it.

Source:   write(2) and fsync(2) of one block in a file of our own in `directory`, on a thread of its own.
Overhead: 4 KiB and one flush every `period`. The file grows to `append_limit` at most, and goes at the end.
Caveats:  Counted from the intended time, so a busy CPU shows: `fsync_schedule_lag_seconds` is that part.
          Overwritten in place, fsync commits the inode's time and fdatasync data alone; appended, as brokers
          write, both commit the new size. `directory` renames the file and flushes the folder, as at a roll
          of segments. tmpfs answers in microseconds and means nothing, so it is refused unless allowed. A
          drive with a protected cache flushes in no time until it starves.
"""

from __future__ import annotations

import math
import os
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Literal

from pydantic.dataclasses import dataclass

from probes import _mounts
from probes._block_device import read_text
from probes._flush_file import FlushFile, How, Sync, Way
from probes._meter import Meter
from probes._worker import Stop, Worker
from soak.core.errors import NotAvailableError, ProbeError
from soak.core.model import Column, Reading
from soak.core.plan_base import STRICT
from soak.core.ports import Clock
from soak.core.units import SECOND_NS, Duration, Size, duration_ns

_QUANTILES = {"0.5": 0.5, "0.99": 0.99, "max": 1.0}


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Config:
    directory: str = ""  # empty: the broker's data folder, where the run knows it
    period: Duration = duration_ns("200ms")
    payload_size: Size = 4096
    sync: How = "fsync"
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
    def way(self) -> Way:
        return Way(
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
        self._meter: Meter | None = None
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

    def _samples(self, meter: Meter) -> list[tuple[Column, float]]:
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
        meter = Meter(start_ns, self._config.period, self._clock, self._file.flush)
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
        mounts = _mounts.parse(read_text(self._proc / "self/mountinfo"))
        kind = _mounts.mount_of(os.path.realpath(directory), mounts).kind
        if kind in _mounts.MEMORY_KINDS:
            raise NotAvailableError(
                f"{directory} lies in memory ({kind}), where a flush means nothing: "
                "only `allow_tmpfs: true` probes it"
            )


def _why(error: OSError) -> str:
    return error.strerror or str(error)
