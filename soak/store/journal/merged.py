"""Read the records of several sources in order of time, with bounded memory."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from soak.core.journal_format import End
from soak.core.model import Column, Record
from soak.core.streams import IntervalSet
from soak.core.units import SECOND_NS
from soak.store.journal.reader import SourceReader, complete_size, segments

GAP_NS = SECOND_NS // 2
"""Smaller differences of a wall clock are slewing, and no recorder reports them."""
CLOCK_EVENTS = frozenset({"clock_step", "suspend"})


@dataclass(frozen=True, slots=True)
class MergedRecord:
    """A record; `is_after_gap`: one before it is missing or damaged, or a whole file is missing."""

    source: str
    record: Record
    columns: tuple[Column, ...]
    is_after_gap: bool


class SegmentRecord(NamedTuple):
    """A record of one file, its columns, and whether a line between it and the one before was damaged."""

    record: Record
    columns: tuple[Column, ...]
    is_after_damage: bool


def read_segment(path: Path, reader: SourceReader) -> Iterator[SegmentRecord]:
    """Yield the records of one file in the order written, each (epoch, interval) once."""
    seen: dict[int, IntervalSet] = {}
    damaged = len(reader.damage)
    for record, columns in reader.read(path, 0, complete_size(path)):
        if not seen.setdefault(record.epoch, IntervalSet()).add(record.k, record.k):
            yield SegmentRecord(record, columns, len(reader.damage) > damaged)
            damaged = len(reader.damage)


def read_whole_segment(path: Path) -> Iterator[SegmentRecord | End]:
    """Yield the records of one file, then its last end, if it has one.

    Raises:
        JournalError: the file was written by a newer version.
    """
    reader = SourceReader(path.parent)
    yield from read_segment(path, reader)
    if reader.ended_epoch >= 0:
        yield End(reader.ended_epoch)


class MergedReader:
    """Reads several sources; `ended` has each (source, epoch) read so far that was closed on purpose."""

    def __init__(
        self,
        journal: Path,
        sources: Sequence[str],
        read: Callable[[Path], Iterator[SegmentRecord | End]] = read_whole_segment,
    ) -> None:
        """`read` gives the records of one file: those that its caller needs, or what it needs of them."""
        self._journal = journal
        self._sources = sources
        self._read = read
        self.ended: set[tuple[str, int]] = set()

    def read(self) -> Iterator[MergedRecord]:
        """Yield each (source, epoch, interval) once, by interval, then in the order of the named sources.

        Damaged lines are skipped. Holds some 10 MiB a source, however long the run.

        Raises:
            JournalError: a journal was written by a newer version.
        """
        return heapq.merge(*map(self._source, self._sources), key=lambda found: found.record.k)

    def _source(self, name: str) -> Iterator[MergedRecord]:
        seen: dict[int, IntervalSet] = {}
        before: Record | None = None
        is_damaged, last = False, -1  # before the next new record; the number of the file before
        for path in segments(self._journal / name):
            number = int(path.stem)
            is_damaged = is_damaged or last < number - 1  # a file is missing: a writer begins at 0
            last = number
            for found in self._read(path):
                if isinstance(found, End):
                    self.ended.add((name, found.epoch))
                    continue
                record = found.record
                is_damaged = is_damaged or found.is_after_damage
                if seen.setdefault(record.epoch, IntervalSet()).add(record.k, record.k):
                    continue
                is_after_gap = is_damaged or _is_gap(before, record)
                is_damaged, before = False, record
                yield MergedRecord(name, record, found.columns, is_after_gap)


def _is_gap(before: Record | None, record: Record) -> bool:
    """True where time lies between two records of one epoch that neither covers.

    The end of a record is a time of the wall clock, and its length one of the monotonic clock. A record
    reports by how much the wall clock was set. If no record reports a step, the one that did is missing.
    """
    if before is None or before.epoch != record.epoch:
        return False
    between_ns = record.at_ns - before.at_ns - _clock_moved_seconds(record) * SECOND_NS
    return abs(between_ns - record.length_ns) > GAP_NS


def _clock_moved_seconds(record: Record) -> float:
    """Return by how much the wall clock was set or ran on in a suspend, within this record."""
    moved = (event.fields.get("seconds") for event in record.events if event.kind in CLOCK_EVENTS)
    return sum(seconds for seconds in moved if isinstance(seconds, int | float))
