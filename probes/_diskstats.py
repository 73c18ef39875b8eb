"""One line of `/proc/diskstats`: 11 counters, 15 since Linux 4.18, 17 since 5.5.

The fields are described in the kernel's Documentation/admin-guide/iostats.rst.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from probes._block_device import SECTOR_BYTES, Number
from soak.core.errors import NotAvailableError, ProbeError

IO_NOW = 8
"""Position of the one field that is no counter: requests in flight."""

_HEAD = 3  # major, minor, name
_FORMATS = (11, 15, 17)


@dataclass(frozen=True, slots=True)
class Counter:
    """One counter: its place in the line, and what makes a base unit of it."""

    at: int
    metric: str  # node_exporter's name without `_total`, because we give rates
    unit: str
    scale: float = 1.0  # divide by it


_MILLISECONDS = 1000.0
_SECTORS = 1 / SECTOR_BYTES

READS, READ_TIME, WRITES, WRITTEN, WRITE_TIME, WEIGHTED = 0, 3, 4, 6, 7, 10
DISCARDS, DISCARD_TIME, FLUSHES, FLUSH_TIME = 11, 14, 15, 16

OWN = (
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
"""Kept for partitions, too."""

OF_DRIVE = (
    Counter(FLUSHES, "node_disk_flush_requests", "requests"),
    Counter(FLUSH_TIME, "node_disk_flush_requests_time_seconds", "ratio", _MILLISECONDS),
)
"""Kept for whole drives only: a partition's line always shows 0."""


@dataclass(frozen=True, slots=True)
class Line:
    """One device. Position -> value; positions that this kernel does not know are absent."""

    device: str
    fields: Mapping[int, int]


def line_of(text: str, number: Number) -> Line:
    """Return the line of one device.

    Raises:
        NotAvailableError: the kernel keeps no statistics for it.
        ProbeError: its line is damaged, or is of a format we do not know.
    """
    for raw in text.splitlines(keepends=True):
        words = raw.split()
        if words[:2] == [str(number[0]), str(number[1])]:
            return _parse(raw, words)
    raise NotAvailableError(f"no line in diskstats for device {number[0]}:{number[1]}")


def _parse(raw: str, words: list[str]) -> Line:
    values = words[_HEAD:]
    is_known = len(values) in _FORMATS or len(values) > _FORMATS[-1]  # newer kernels add at the end
    if not (raw.endswith("\n") and is_known and all(_is_number(value) for value in values)):
        raise ProbeError(f"cannot read this line of diskstats: {raw!r}")
    known = values[: _FORMATS[-1]]
    return Line(words[2], {at: int(value) for at, value in enumerate(known)})


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()
