"""The records of several sources in order of time, so that what reads them need not hold a run in memory."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from pathlib import Path

from soak.core.lanes import IntervalSet
from soak.core.model import Column, Record
from soak.store.journal import segments
from soak.store.journal_reader import SourceReader, complete_size

Found = tuple[str, Record, tuple[Column, ...]]
"""Source, record, and what its numbers mean."""


class MergedReader:
    """Reads sources side by side; `ended` holds (source, inc) closed on purpose, as far as was read."""

    def __init__(self, journal: Path, sources: Sequence[str]) -> None:
        self._journal = journal
        self._sources = sources
        self.ended: set[tuple[str, int]] = set()

    def read(self) -> Iterator[Found]:
        """Give each (source, inc, k) once, by k; of one second, sources come in the order named.

        Damaged lines are left out. Holds a few MiB a source, however long the run.

        Raises:
            JournalError: a journal was written by a newer version.
        """
        return heapq.merge(*map(self._source, self._sources), key=lambda found: found[1].k)

    def _source(self, name: str) -> Iterator[Found]:
        folder = self._journal / name
        seen: dict[int, IntervalSet] = {}
        for path in segments(folder):
            reader = SourceReader(folder)
            for record, columns in reader.read(path, 0, complete_size(path)):
                if not seen.setdefault(record.inc, IntervalSet()).add(record.k, record.k):
                    yield name, record, columns
            if reader.ended_inc >= 0:
                self.ended.add((name, reader.ended_inc))
