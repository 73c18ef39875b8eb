"""Follow the journals of running daemons as they grow."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from soak.core.model import Column, Record
from soak.store.journal.history import position_of_interval
from soak.store.journal.reader import SourceReader, complete_size, segments, sources

TailedRecord = tuple[str, Record, tuple[Column, ...]]
"""A source, a record, and the columns of its values."""


@dataclass(slots=True)
class _Position:
    path: Path
    offset: int
    reader: SourceReader
    last: tuple[int, int] = (-1, -1)  # epoch and interval of the newest returned record


class Tail:
    """Returns the new records of the sources whose names have one of these prefixes."""

    def __init__(self, journal: Path, prefixes: tuple[str, ...], from_k: int) -> None:
        self._journal = journal
        self._prefixes = prefixes
        self._from_k = from_k
        self._positions: dict[str, _Position] = {}

    def poll(self) -> Iterator[TailedRecord]:
        """Yield each new record of interval `from_k` and later once; damaged lines are skipped.

        Raises:
            JournalError: a journal was written by a newer version.
        """
        for source in sources(self._journal):
            if source.startswith(self._prefixes):
                position = self._positions.get(source) or self._start(source)
                if position is not None:
                    yield from self._new(source, position)

    def _start(self, source: str) -> _Position | None:
        folder = self._journal / source
        begin = position_of_interval(folder, self._from_k)
        if begin is None:
            return None
        return self._positions.setdefault(source, _Position(*begin, SourceReader(folder)))

    def _new(self, source: str, position: _Position) -> Iterator[TailedRecord]:
        for path in segments(self._journal / source):
            if path < position.path:
                continue
            begin = position.offset if path == position.path else 0
            end = complete_size(path)
            position.path, position.offset = path, end
            for record, columns in position.reader.read(path, begin, end):
                position.reader.damage.clear()
                if record.k >= self._from_k and (record.epoch, record.k) > position.last:
                    position.last = (record.epoch, record.k)
                    yield source, record, columns
