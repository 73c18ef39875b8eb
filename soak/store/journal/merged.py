"""Read the records of several sources in order of time, with bounded memory."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from soak.core.model import Column, Record
from soak.core.streams import IntervalSet
from soak.core.units import SECOND_NS
from soak.store.journal.reader import SourceReader, complete_size
from soak.store.journal.writer import segments

LATE_NS = SECOND_NS // 2


@dataclass(frozen=True, slots=True)
class MergedRecord:
    """A record; `is_after_gap`: one before it is missing or damaged, of the same life of its source."""

    source: str
    record: Record
    columns: tuple[Column, ...]
    is_after_gap: bool


class MergedReader:
    """Reads sources side by side; `ended` holds (source, epoch) closed on purpose, as far as was read."""

    def __init__(self, journal: Path, sources: Sequence[str]) -> None:
        self._journal = journal
        self._sources = sources
        self.ended: set[tuple[str, int]] = set()

    def read(self) -> Iterator[MergedRecord]:
        """Give each (source, epoch, k) once, by k; of one second, sources come in the order named.

        Damaged lines are left out. Holds some 10 MiB a source, however long the run.

        Raises:
            JournalError: a journal was written by a newer version.
        """
        return heapq.merge(*map(self._source, self._sources), key=lambda found: found.record.k)

    def _source(self, name: str) -> Iterator[MergedRecord]:
        folder = self._journal / name
        seen: dict[int, IntervalSet] = {}
        before: Record | None = None
        for path in segments(folder):
            reader, damaged = SourceReader(folder), 0
            for record, columns in reader.read(path, 0, complete_size(path)):
                if seen.setdefault(record.epoch, IntervalSet()).add(record.k, record.k):
                    continue
                is_after_gap = len(reader.damage) > damaged or _is_gap(before, record)
                damaged, before = len(reader.damage), record
                yield MergedRecord(name, record, columns, is_after_gap)
            if reader.ended_epoch >= 0:
                self.ended.add((name, reader.ended_epoch))


def _is_gap(before: Record | None, record: Record) -> bool:
    """True where time lies between two records of one incarnation that neither covers."""
    if before is None or before.epoch != record.epoch:
        return False
    return record.at_ns - record.length_ns - before.at_ns > LATE_NS
