"""How busy, slow and worn the drive behind a directory is, which the broker's own metrics cannot show.

Source:   /proc/diskstats of the device that holds `directory`; flushes and drive writes of each drive below
          it.
Overhead: one read of /proc a second, no IO on the drive.
Caveats:  Kernels before 4.18 have no discards, before 5.5 no flushes. IO time is sampled at timer ticks
          since 5.0, so a drive with many parallel queues shows 100 % busy long before it is saturated.
          Drive writes (in multiples of the capacity) count from the start of the probe, and once more from
          when the kernel first saw the drive; they include the writes of other programs. Throttling above
          the block layer is not seen.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pydantic.dataclasses import dataclass as config_dataclass

from probes.common.block_device import (
    SECTOR_BYTES,
    BlockDevice,
    DeviceNumber,
    Drive,
    SystemPaths,
    find_device,
    read_kernel_file,
)
from probes.common.counters import Deltas, Growth
from probes.common.polling import Stop, Worker
from soak.core.errors import NotAvailableError, ProbeError
from soak.core.model import Column, Reading
from soak.core.plan.config import STRICT
from soak.core.ports import Clock
from soak.core.units import SECOND_NS

IO_NOW = 8
"""Position of the only field that is not a counter: requests in flight."""

_HEAD = 3  # major, minor, name
_FORMATS = (11, 15, 17)

_MILLISECONDS = 1000.0
_SECTORS = 1 / SECTOR_BYTES

READS, READ_TIME, WRITES, WRITTEN, WRITE_TIME, WEIGHTED = 0, 3, 4, 6, 7, 10
DISCARDS, DISCARD_TIME, FLUSHES, FLUSH_TIME = 11, 14, 15, 16

FIND_SECONDS = 0.2  # the first reading waits this long for a drive that hangs
RECHECK_NS = 60 * SECOND_NS  # another drive may be mounted there by then

_AWAITS = (
    ("disk_read_await_seconds", READ_TIME, READS),
    ("disk_write_await_seconds", WRITE_TIME, WRITES),
    ("disk_discard_await_seconds", DISCARD_TIME, DISCARDS),
)

Samples = list[tuple[Column, float]]


@dataclass(frozen=True, slots=True)
class Counter:
    """One counter: its position in the line, its metric and its unit."""

    at: int
    metric: str  # node_exporter's name without `_total`: the samples are rates
    unit: str
    scale: float = 1.0  # divisor that leads to the base unit


DEVICE_COUNTERS = (
    Counter(READS, "node_disk_reads_completed", "requests"),
    Counter(1, "node_disk_reads_merged", "requests"),
    Counter(2, "node_disk_read_bytes", "bytes", _SECTORS),
    Counter(READ_TIME, "node_disk_read_time_seconds", "ratio", _MILLISECONDS),
    Counter(WRITES, "node_disk_writes_completed", "requests"),
    Counter(5, "node_disk_writes_merged", "requests"),
    Counter(WRITTEN, "node_disk_written_bytes", "bytes", _SECTORS),
    Counter(WRITE_TIME, "node_disk_write_time_seconds", "ratio", _MILLISECONDS),
    Counter(9, "node_disk_io_time_seconds", "ratio", _MILLISECONDS),
    Counter(WEIGHTED, "node_disk_io_time_weighted_seconds", "ratio", _MILLISECONDS),
    Counter(DISCARDS, "node_disk_discards_completed", "requests"),
    Counter(12, "node_disk_discards_merged", "requests"),
    Counter(13, "node_disk_discarded_sectors", "sectors"),
    Counter(DISCARD_TIME, "node_disk_discard_time_seconds", "ratio", _MILLISECONDS),
)
"""The kernel keeps these for partitions, too."""

DRIVE_COUNTERS = (
    Counter(FLUSHES, "node_disk_flush_requests", "requests"),
    Counter(FLUSH_TIME, "node_disk_flush_requests_time_seconds", "ratio", _MILLISECONDS),
)
"""The kernel keeps these for whole drives only: the line of a partition always shows 0."""


@dataclass(frozen=True, slots=True)
class DiskstatsLine:
    """One device: position -> value; positions that this kernel does not have are absent."""

    device: str
    fields: Mapping[int, int]


def find_line(text: str, number: DeviceNumber) -> DiskstatsLine:
    """Return the line of one device.

    Raises:
        NotAvailableError: the kernel keeps no statistics for it.
        ProbeError: its line is damaged or has an unknown format.
    """
    for raw in text.splitlines(keepends=True):
        words = raw.split()
        if words[:2] == [str(number[0]), str(number[1])]:
            return _parse_line(raw, words)
    raise NotAvailableError(f"no line in diskstats for device {number[0]}:{number[1]}")


def _parse_line(raw: str, words: list[str]) -> DiskstatsLine:
    values = words[_HEAD:]
    is_known = len(values) in _FORMATS or len(values) > _FORMATS[-1]  # newer kernels append fields
    if not (raw.endswith("\n") and is_known and all(_is_number(value) for value in values)):
        raise ProbeError(f"cannot read this line of diskstats: {raw!r}")
    return DiskstatsLine(
        words[2], {at: int(value) for at, value in enumerate(values[: _FORMATS[-1]])}
    )


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()


@config_dataclass(frozen=True, kw_only=True, config=STRICT)
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
        paths: SystemPaths = SystemPaths(),  # noqa: B008  # frozen
    ) -> None:
        self._config = config
        self._clock = clock
        self._places = paths
        self._device: BlockDevice | None = None
        self._finder = Worker("disk_io", self._find)
        self._next_look_ns = 0
        self._own: dict[DeviceNumber, Deltas[int]] = {}
        self._drives: dict[DeviceNumber, Deltas[int]] = {}
        self._written_sectors: dict[DeviceNumber, float] = {}

    def read(self) -> Reading:
        """Return the rates since the previous reading; the first reading has only levels."""
        begin_ns = self._clock.mono_ns()
        device = self._found()
        if device is None:
            return Reading(())
        text = read_kernel_file(self._places.proc / "diskstats")
        at_ns = self._clock.mono_ns()
        own = find_line(text, device.number)
        deltas = self._own.setdefault(device.number, Deltas())
        samples = _own_samples(own, deltas.take(own.fields, at_ns))
        for drive in device.drives:
            samples += self._drive_samples(drive, find_line(text, drive.number), at_ns)
        return Reading(tuple(samples), (), (self._clock.mono_ns() - begin_ns) / SECOND_NS)

    def close(self) -> None:
        self._finder.close(0.0)

    def _found(self) -> BlockDevice | None:
        now_ns = self._clock.mono_ns()
        is_first = self._device is None
        if (is_first or now_ns >= self._next_look_ns) and self._finder.check():
            self._next_look_ns = now_ns + RECHECK_NS
            if is_first:
                self._finder.wait(FIND_SECONDS)
        if is_first and self._device is None:
            self._finder.check()
        return self._device

    def _find(self, _stop: Stop) -> None:
        if not self._config.directory:
            raise NotAvailableError("disk_io.directory is not set: name a folder on the drive")
        found: BlockDevice | None = None
        try:
            found = find_device(self._config.directory, self._places)
        finally:
            self._device = found

    def _drive_samples(self, drive: Drive, line: DiskstatsLine, at_ns: int) -> Samples:
        labels = (("device", line.device),)
        grown = self._drives.setdefault(drive.number, Deltas()).take(line.fields, at_ns)
        samples = _rates(DRIVE_COUNTERS, grown, labels)
        flush_await = grown.ratio(FLUSH_TIME, FLUSHES, 1000.0)
        if flush_await is not None:
            samples.append((Column("disk_flush_await_seconds", labels, "seconds"), flush_await))
        before = self._written_sectors.get(drive.number, 0.0)
        self._written_sectors[drive.number] = before + grown.by.get(WRITTEN, 0.0)
        capacity_sectors = drive.capacity_bytes / SECTOR_BYTES
        if capacity_sectors:
            turned = self._written_sectors[drive.number] / capacity_sectors
            ever = line.fields[WRITTEN] / capacity_sectors
            capacity = float(drive.capacity_bytes)
            samples.append((Column("disk_capacity_bytes", labels, "bytes"), capacity))
            samples.append((Column("disk_turnover_ratio", labels, "turns"), turned))
            samples.append((Column("disk_device_turnover_ratio", labels, "turns"), ever))
        return samples


def _own_samples(line: DiskstatsLine, grown: Growth[int]) -> Samples:
    labels = (("device", line.device),)
    in_flight = float(line.fields[IO_NOW])
    samples: Samples = [(Column("node_disk_io_now", labels, "requests"), in_flight)]
    samples += _rates(DEVICE_COUNTERS, grown, labels)
    queue = grown.per_second(WEIGHTED, 1000.0)
    if queue is not None:
        samples.append((Column("disk_queue_length", labels, "requests"), queue))
    for metric, time, count in _AWAITS:
        seconds = grown.ratio(time, count, 1000.0)
        if seconds is not None:  # without a request there is no latency: missing, not zero
            samples.append((Column(metric, labels, "seconds"), seconds))
    return samples


def _rates(
    counters: tuple[Counter, ...], grown: Growth[int], labels: tuple[tuple[str, str], ...]
) -> Samples:
    found = []
    for counter in counters:
        rate = grown.per_second(counter.at, counter.scale)
        if rate is not None:
            found.append((Column(counter.metric, labels, counter.unit), rate))
    return found
