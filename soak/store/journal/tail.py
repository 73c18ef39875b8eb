"""Follow the journals of running daemons as they grow."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from soak.core.model import Column, Record
from soak.store.journal.history import position_of_interval
from soak.store.journal.reader import SourceReader, complete_size, segments, sources

TailedRecord = tuple[str, Record, tuple[Column, ...]]
"""Source, record, and what its numbers mean."""


@dataclass(slots=True)
class _Position:
    path: Path
    offset: int
    reader: SourceReader
    last: tuple[int, int] = (-1, -1)  # epoch and k of the newest record given


class Tail:
    """Gives what was written since the last call, of the sources whose names begin so."""

    def __init__(self, journal: Path, prefixes: tuple[str, ...], from_k: int) -> None:
        self._journal = journal
        self._prefixes = prefixes
        self._from_k = from_k
        self._places: dict[str, _Position] = {}

    def poll(self) -> Iterator[TailedRecord]:
        """Give each record of second `from_k` and later once; damaged lines are left out.

        Raises:
            JournalError: a journal was written by a newer version.
        """
        for source in sources(self._journal):
            if source.startswith(self._prefixes):
                place = self._places.get(source) or self._found(source)
                if place is not None:
                    yield from self._new(source, place)

    def _found(self, source: str) -> _Position | None:
        folder = self._journal / source
        begin = position_of_interval(folder, self._from_k)
        if begin is None:
            return None
        return self._places.setdefault(source, _Position(*begin, SourceReader(folder)))

    def _new(self, source: str, place: _Position) -> Iterator[TailedRecord]:
        for path in segments(self._journal / source):
            if path < place.path:
                continue
            begin = place.offset if path == place.path else 0
            end = complete_size(path)
            place.path, place.offset = path, end
            for record, columns in place.reader.read(path, begin, end):
                place.reader.damage.clear()
                if record.k >= self._from_k and (record.epoch, record.k) > place.last:
                    place.last = (record.epoch, record.k)
                    yield source, record, columns
