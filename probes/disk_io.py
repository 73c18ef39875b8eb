"""How busy, slow and worn the drives behind directories are, which the broker's own metrics cannot show.

Source:   /proc/diskstats of the devices that hold each `directory`; flushes and drive writes of each drive
          below them, and all else that the kernel does not count for the devices themselves.
Overhead: one read of /proc a second and directory, no IO on the drive.
Caveats:  Kernels before 4.18 have no discards, before 5.5 no flushes; md arrays have no times before 5.10,
          and NVMe drives with several paths are counted by path before 6.11: a path counts from its second
          reading on. A counter that never moved although its device had requests is not kept: its samples are
          missing, not zero, and so are those of a drive that was removed. IO time is sampled at timer ticks
          since 5.0, so a drive with many parallel queues shows 100 % busy long before it is saturated, and
          several paths that are busy at once show more than 100 %.
          Drive writes (in multiples of the capacity) count from the start of the probe, and once more from
          when the kernel first saw the drive; they include the writes of other programs. Throttling above
          the block layer is not seen.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from pydantic.dataclasses import dataclass as config_dataclass

from probes.common.block_device import (
    SECTOR_BYTES,
    BlockDevices,
    DeviceNumber,
    Drive,
    SystemPaths,
    device_name,
    find_devices,
    find_mount,
    is_counting,
    read_kernel_file,
)
from probes.common.counters import Growth, SummedDeltas
from probes.common.folders import FolderList, probe_of_each
from probes.common.polling import Stop, Worker
from soak.core.errors import NotAvailableError, ProbeError
from soak.core.model import Column, Reading
from soak.core.plan.config import STRICT
from soak.core.ports import Clock, Probe
from soak.core.units import SECOND_NS

IO_NOW = 8
"""Position of the only field that is not a counter: requests in flight."""

_HEAD = 3  # major, minor, name
_FORMATS = (11, 15, 17)
_BELOW_ZERO = 2**31  # of a number of requests

_MILLISECONDS = 1000.0
_SECTORS = 1 / SECTOR_BYTES

READS, READ_TIME, WRITES, WRITTEN, WRITE_TIME, BUSY_TIME, WEIGHTED = 0, 3, 4, 6, 7, 9, 10
DISCARDS, DISCARD_TIME, FLUSHES, FLUSH_TIME = 11, 14, 15, 16

FIND_SECONDS = 0.2  # a reading waits this long for a drive that hangs, once while it does
RECHECK_NS = 60 * SECOND_NS  # another drive may be mounted there by then

_AWAITS = (
    ("disk_read_await_seconds", READ_TIME, READS),
    ("disk_write_await_seconds", WRITE_TIME, WRITES),
    ("disk_discard_await_seconds", DISCARD_TIME, DISCARDS),
)

_NEEDED = frozenset({WRITES, WRITE_TIME, BUSY_TIME})
"""Without these a device says too little about its drives, whose own counters are then shown, too."""

_REQUESTS_OF = {  # the requests that a time adds up; without them it says nothing
    READ_TIME: (READS,),
    WRITE_TIME: (WRITES,),
    BUSY_TIME: (READS, WRITES),
    WEIGHTED: (READS, WRITES),
    DISCARD_TIME: (DISCARDS,),
    FLUSH_TIME: (FLUSHES,),
}

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
    Counter(BUSY_TIME, "node_disk_io_time_seconds", "ratio", _MILLISECONDS),
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

    device: str  # its name; "" if the kernel has no line of it
    fields: Mapping[int, int]


def find_line(text: str, device: DeviceNumber) -> DiskstatsLine:
    """Return the line of one device.

    Raises:
        NotAvailableError: the kernel keeps no statistics for it.
        ProbeError: its line is damaged.
    """
    wanted = [str(number) for number in device]
    for raw in text.splitlines(keepends=True):
        words = raw.split()
        if words[:2] == wanted:
            return _parse_line(raw, words)
    raise NotAvailableError(f"no line in diskstats for device {device[0]}:{device[1]}")


def _parse_line(raw: str, words: list[str]) -> DiskstatsLine:
    values = words[_HEAD:]
    is_whole = raw.endswith("\n") and len(values) >= _FORMATS[0]
    if not (is_whole and all(_is_number(at, value) for at, value in enumerate(values))):
        raise ProbeError(f"cannot read this line of diskstats: {raw!r}")
    # Newer kernels append fields; lxcfs writes a number of fields that is no kernel's.
    known = len(values) if len(values) in _FORMATS else _FORMATS[0]
    if len(values) > _FORMATS[-1]:
        known = _FORMATS[-1]
    fields = {at: int(value) for at, value in enumerate(values[:known])}
    # Some kernels count requests in flight below zero, and print that with or without its sign.
    if not 0 <= fields[IO_NOW] < _BELOW_ZERO:
        del fields[IO_NOW]
    return DiskstatsLine(words[2], fields)


def kept_counters(line: DiskstatsLine) -> DiskstatsLine:
    """Return a line without the counters that the kernel does not keep for this device.

    A device that holds a filesystem has had requests, so one without any is not counted at all.
    """
    fields = line.fields
    if not any(fields.get(at) for at in (READS, WRITES)):
        return DiskstatsLine(line.device, {})
    dropped = {
        time
        for time, requests in _REQUESTS_OF.items()
        if not fields.get(time) and any(fields.get(at) for at in requests)
    }
    if not any(fields.get(at) for at in (READ_TIME, WRITE_TIME, BUSY_TIME, WEIGHTED)):
        dropped |= _REQUESTS_OF.keys()
    if WEIGHTED in dropped:
        dropped.add(IO_NOW)
    if not fields.get(FLUSHES):  # the kernel counts no flushes of a partition or volume
        dropped |= {FLUSHES, FLUSH_TIME}
    return DiskstatsLine(
        line.device, {at: value for at, value in fields.items() if at not in dropped}
    )


def _is_number(at: int, text: str) -> bool:
    digits = text.removeprefix("-") if at == IO_NOW else text
    return digits.isascii() and digits.isdigit()


@config_dataclass(frozen=True, kw_only=True, config=STRICT)
class Config:
    directory: FolderList = ""  # empty: the brokers' data folders, where the run knows them


def build(config: Config, clock: Clock) -> Probe:
    return probe_of_each(
        config.directory, lambda folder: DiskIo(replace(config, directory=folder), clock)
    )


class DiskIo:
    """The device behind one folder."""

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
        self._devices: BlockDevices | None = None
        self._mount_point = ""
        self._switched_off: frozenset[DeviceNumber] = frozenset()
        self._finder = Worker("disk_io", self._find)
        self._next_look_ns = 0
        self._absent: frozenset[DeviceNumber] = frozenset()
        self._counters: dict[DeviceNumber, SummedDeltas[int]] = {}
        self._written_sectors: dict[DeviceNumber, float] = {}

    def read(self) -> Reading:
        """Return the rates since the previous reading; the first reading has only levels.

        Raises:
            NotAvailableError: there is no such device, or the kernel keeps no statistics of it.
            ProbeError: the statistics cannot be read.
        """
        begin_ns = self._clock.mono_ns()
        devices = self._found()
        if devices is None:
            return Reading(())
        text = self._statistics()
        at_ns = self._clock.mono_ns()
        numbers = dict.fromkeys((*devices.holders, *(drive.number for drive in devices.drives)))
        counted = {number: self._counted(text, number, at_ns) for number in numbers}
        absent = frozenset(number for number in numbers if not counted[number].line.device)
        if absent != self._absent:  # a drive was removed or came back, or a spare took its place
            self._absent, self._next_look_ns = absent, at_ns
        if not any(one.line.fields for one in counted.values()):
            raise NotAvailableError(f"the kernel keeps no statistics of {self._names(counted)}")
        samples: Samples = []
        lacking: set[int] = set()
        for number in devices.holders:
            samples += _device_samples(counted[number])
            lacking |= _NEEDED - counted[number].line.fields.keys()
        for drive in devices.drives:
            one = counted[drive.number]
            if drive.number not in devices.holders and not lacking.isdisjoint(one.line.fields):
                samples += _device_samples(one)
            samples += self._drive_samples(drive, one)
        if self._mount_point:
            samples += [
                _mounted(one.line.device, self._mount_point)
                for one in counted.values()
                if one.line.device
            ]
        return Reading(tuple(samples), (), (self._clock.mono_ns() - begin_ns) / SECOND_NS)

    def close(self) -> None:
        self._finder.close(0.0)

    def _statistics(self) -> str:
        path = self._places.proc / "diskstats"
        try:
            return read_kernel_file(path)
        except ProbeError as error:
            if path.exists():
                raise
            raise NotAvailableError(f"there is no {path}, as in some containers") from error

    def _found(self) -> BlockDevices | None:
        now_ns = self._clock.mono_ns()
        is_due = self._devices is None or now_ns >= self._next_look_ns
        if is_due and self._finder.check():
            self._next_look_ns = now_ns + RECHECK_NS
            self._finder.wait(FIND_SECONDS)
            if self._devices is None:
                self._finder.check()
        return self._devices

    def _find(self, _stop: Stop) -> None:
        if not self._config.directory:
            raise NotAvailableError("disk_io.directory is not set: name a folder on the drive")
        found: BlockDevices | None = None
        try:
            found = find_devices(self._config.directory, self._places)
            self._mount_point = _mount_point(self._config.directory, self._places)
            numbers = {*found.holders, *(drive.number for drive in found.drives)}
            self._switched_off = frozenset(
                number for number in numbers if not is_counting(number, self._places.sys)
            )
        finally:
            self._devices = found

    def _counted(self, text: str, number: DeviceNumber, at_ns: int) -> _Counted:
        """Return what the kernel counts of a device, and its growth since the last reading.

        A device without a line, such as a drive that was removed, has no counters; it affects no other.
        """
        try:
            line = kept_counters(find_line(text, number))
        except NotAvailableError:
            line = DiskstatsLine("", {})
        parts = {line.device: line.fields}
        if not line.fields:
            paths = _path_lines(text, line.device)
            line = _sum_of(line.device, paths)
            parts = {path.device: {at: path.fields[at] for at in line.fields} for path in paths}
        grown = self._counters.setdefault(number, SummedDeltas()).take(parts, at_ns)
        if number in self._switched_off:
            if any(grown.by.get(at) for at in (READS, WRITES)):  # its driver counts nevertheless
                self._switched_off -= {number}
            else:
                return _Counted(DiskstatsLine(line.device, {}), Growth())
        return _Counted(line, grown)

    def _names(self, numbers: Iterable[DeviceNumber]) -> str:
        words = []
        for number in sorted(numbers):
            reason = " (queue/iostats is 0)" if number in self._switched_off else ""
            words.append(device_name(number, self._places.sys) + reason)
        return ", ".join(words)

    def _drive_samples(self, drive: Drive, counted: _Counted) -> Samples:
        line, grown = counted.line, counted.grown
        if not line.device:
            return []
        labels = (("device", line.device),)
        samples = _rates(DRIVE_COUNTERS, grown, labels)
        flush_await = grown.ratio(FLUSH_TIME, FLUSHES, 1000.0)
        if flush_await is not None:
            samples.append((Column("disk_flush_await_seconds", labels, "seconds"), flush_await))
        before = self._written_sectors.get(drive.number, 0.0)
        self._written_sectors[drive.number] = before + grown.by.get(WRITTEN, 0.0)
        capacity_sectors = drive.capacity_bytes / SECTOR_BYTES
        if capacity_sectors:
            capacity = float(drive.capacity_bytes)
            samples.append((Column("disk_capacity_bytes", labels, "bytes"), capacity))
        if capacity_sectors and WRITTEN in line.fields:
            turned = self._written_sectors[drive.number] / capacity_sectors
            ever = line.fields[WRITTEN] / capacity_sectors
            samples.append((Column("disk_turnover_ratio", labels, "turns"), turned))
            samples.append((Column("disk_device_turnover_ratio", labels, "turns"), ever))
        return samples


@dataclass(frozen=True, slots=True)
class _Counted:
    """What the kernel counts of a device, and the growth since the last reading."""

    line: DiskstatsLine
    grown: Growth[int]


def _mount_point(directory: str, paths: SystemPaths) -> str:
    """Return where the filesystem of a directory is mounted; "" where the mount table does not say."""
    try:
        point = find_mount(directory, paths.proc).point
    except ProbeError:
        return ""
    return os.fsencode(point).decode(errors="replace")  # journals hold text


def _mounted(device: str, point: str) -> tuple[Column, float]:
    """Return a column whose labels say where a device is mounted, as Prometheus' `_info` metrics do."""
    return Column("disk_mount_info", (("device", device), ("mountpoint", point))), 1.0


def _path_lines(text: str, device: str) -> list[DiskstatsLine]:
    """Return the lines of the paths to an NVMe drive, such as `nvme3c33n1` of `nvme3n1`."""
    drive = re.fullmatch(r"(nvme\d+)(n\d+)", device)
    if drive is None:
        return []
    path = re.compile(rf"{drive[1]}c\d+{drive[2]}")
    rows = ((raw, raw.split()) for raw in text.splitlines(keepends=True))
    return [
        _parse_line(raw, words)
        for raw, words in rows
        if len(words) >= _HEAD and path.fullmatch(words[2])
    ]


def _sum_of(device: str, paths: Sequence[DiskstatsLine]) -> DiskstatsLine:
    """Return the counters of a drive that is counted by path, added up; none without a path."""
    fields = {
        at: sum(path.fields[at] for path in paths)
        for at in (paths[0].fields if paths else ())
        if all(at in path.fields for path in paths)
    }
    return kept_counters(DiskstatsLine(device, fields))


def _device_samples(counted: _Counted) -> Samples:
    line, grown = counted.line, counted.grown
    labels = (("device", line.device),)
    samples: Samples = []
    if IO_NOW in line.fields:
        in_flight = float(line.fields[IO_NOW])
        samples.append((Column("node_disk_io_now", labels, "requests"), in_flight))
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
