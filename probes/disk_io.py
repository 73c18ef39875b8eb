"""How busy, slow and worn the drive behind a directory is: what the broker's own numbers cannot tell.

Source:   /proc/diskstats of the device that holds `directory`; flushes and turn-over of each drive below it.
Overhead: one read of /proc a second, no IO on the drive.
Caveats:  Kernels before 4.18 give no discards, before 5.5 no flushes. IO time is sampled at timer ticks
          since 5.0, so a drive with many parallel queues reads 100 % busy long before it is full. Turn-over
          counts from the start of the probe, and once more from when the kernel first saw the drive; what
          else writes there is in it. A throttle above the block layer is not seen.
"""

from __future__ import annotations

from pydantic.dataclasses import dataclass

from probes import _diskstats as diskstats
from probes._block_device import (
    SECTOR_BYTES,
    BlockDevice,
    Drive,
    Number,
    Places,
    find,
    read_text,
)
from probes._deltas import Deltas, Growth
from probes._worker import Stop, Worker
from soak.core.errors import NotAvailableError
from soak.core.model import Column, Reading
from soak.core.plan_base import STRICT
from soak.core.ports import Clock
from soak.core.units import SECOND_NS

FIND_SECONDS = 0.2  # a drive that hangs while we look for it costs the first reading this much
LOOK_NS = 60 * SECOND_NS  # and then whether another one is mounted there now

_AWAITS = (
    ("disk_read_await_seconds", diskstats.READ_TIME, diskstats.READS),
    ("disk_write_await_seconds", diskstats.WRITE_TIME, diskstats.WRITES),
    ("disk_discard_await_seconds", diskstats.DISCARD_TIME, diskstats.DISCARDS),
)

Samples = list[tuple[Column, float]]


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Config:
    directory: str = ""  # empty: the broker's data folder, where the run knows it


def build(config: Config, clock: Clock) -> DiskIo:
    return DiskIo(config, clock)


class DiskIo:
    def __init__(
        self,
        config: Config,
        clock: Clock,
        *,
        places: Places = Places(),  # noqa: B008  # frozen
    ) -> None:
        self._config = config
        self._clock = clock
        self._places = places
        self._device: BlockDevice | None = None
        self._finder = Worker("disk_io", self._find)
        self._next_look_ns = 0
        self._own: dict[Number, Deltas[int]] = {}
        self._drives: dict[Number, Deltas[int]] = {}
        self._written_sectors: dict[Number, float] = {}

    def read(self) -> Reading:
        """Return the rates since the previous reading; the first gives what needs no rate."""
        begin_ns = self._clock.mono_ns()
        device = self._found()
        if device is None:
            return Reading(())
        text = read_text(self._places.proc / "diskstats")
        at_ns = self._clock.mono_ns()
        own = diskstats.line_of(text, device.number)
        deltas = self._own.setdefault(device.number, Deltas())
        samples = _own_samples(own, deltas.take(own.fields, at_ns))
        for drive in device.drives:
            samples += self._drive_samples(drive, diskstats.line_of(text, drive.number), at_ns)
        return Reading(tuple(samples), (), (self._clock.mono_ns() - begin_ns) / SECOND_NS)

    def close(self) -> None:
        self._finder.close(0.0)

    def _found(self) -> BlockDevice | None:
        now_ns = self._clock.mono_ns()
        is_first = self._device is None
        if (is_first or now_ns >= self._next_look_ns) and self._finder.check():
            self._next_look_ns = now_ns + LOOK_NS
            if is_first:
                self._finder.wait(FIND_SECONDS)
        if is_first and self._device is None:
            self._finder.check()
        return self._device

    def _find(self, _stop: Stop) -> None:
        if not self._config.directory:
            raise NotAvailableError("disk_io.directory is not set: which drive is to be watched?")
        found: BlockDevice | None = None
        try:
            found = find(self._config.directory, self._places)
        finally:
            self._device = found

    def _drive_samples(self, drive: Drive, line: diskstats.Line, at_ns: int) -> Samples:
        labels = (("device", line.device),)
        grown = self._drives.setdefault(drive.number, Deltas()).take(line.fields, at_ns)
        samples = _rates(diskstats.OF_DRIVE, grown, labels)
        flush_await = grown.ratio(diskstats.FLUSH_TIME, diskstats.FLUSHES, 1000.0)
        if flush_await is not None:
            samples.append((Column("disk_flush_await_seconds", labels, "seconds"), flush_await))
        before = self._written_sectors.get(drive.number, 0.0)
        self._written_sectors[drive.number] = before + grown.by.get(diskstats.WRITTEN, 0.0)
        capacity_sectors = drive.capacity_bytes / SECTOR_BYTES
        if capacity_sectors:
            turned = self._written_sectors[drive.number] / capacity_sectors
            ever = line.fields[diskstats.WRITTEN] / capacity_sectors
            capacity = float(drive.capacity_bytes)
            samples.append((Column("disk_capacity_bytes", labels, "bytes"), capacity))
            samples.append((Column("disk_turnover_ratio", labels, "turns"), turned))
            samples.append((Column("disk_device_turnover_ratio", labels, "turns"), ever))
        return samples


def _own_samples(line: diskstats.Line, grown: Growth[int]) -> Samples:
    labels = (("device", line.device),)
    in_flight = float(line.fields[diskstats.IO_NOW])
    samples: Samples = [(Column("node_disk_io_now", labels, "requests"), in_flight)]
    samples += _rates(diskstats.OWN, grown, labels)
    queue = grown.per_second(diskstats.WEIGHTED, 1000.0)
    if queue is not None:
        samples.append((Column("disk_queue_length", labels, "requests"), queue))
    for metric, time, count in _AWAITS:
        seconds = grown.ratio(time, count, 1000.0)
        if seconds is not None:  # no request, no latency: missing, not zero
            samples.append((Column(metric, labels, "seconds"), seconds))
    return samples


def _rates(
    counters: tuple[diskstats.Counter, ...], grown: Growth[int], labels: tuple[tuple[str, str], ...]
) -> Samples:
    found = []
    for counter in counters:
        rate = grown.per_second(counter.at, counter.scale)
        if rate is not None:
            found.append((Column(counter.metric, labels, counter.unit), rate))
    return found
