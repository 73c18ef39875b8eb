"""Writes lines that other hosts shipped into a run's journal: each record once, as its source ordered it."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass

from soak.core.errors import JournalError
from soak.core.journal_text import Columns, DamagedLineError, End, columns_line, decode
from soak.core.model import Column, Record
from soak.core.ports import Clock
from soak.daemons.context import PhaseFile
from soak.store.journal import JournalWriter, segments
from soak.store.journal_reader import last_record
from soak.store.run_folder import RunFolder
from soak.store.samples_topic import Line

LOG = logging.getLogger("soak.daemons.intake")
MOST_SOURCES = 10_000
_SOURCE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}@[A-Za-z0-9.-]{1,100}")


@dataclass(slots=True)
class _Source:
    """One source as far as it was written here."""

    writer: JournalWriter
    last: tuple[int, int]  # incarnation and second of the newest record
    columns: Columns | None = None  # the newest that came: what the next records refer to
    written_id: str = ""  # of the newest columns line written
    ended_inc: int = -1
    is_open: bool = False


class Intake:
    """Writes lines of other hosts' sources; what is here already, or belongs to this host, is left out."""

    def __init__(self, folder: RunFolder, clock: Clock, host: str) -> None:
        self._folder = folder
        self._clock = clock
        self._host = host
        self._phase_file = PhaseFile(folder.phases)
        self._sources: dict[str, _Source] = {}
        self.records = 0
        self.refused = 0

    def take(self, lines: Sequence[Line]) -> None:
        for line in lines:
            self._take(line)

    def close(self) -> None:
        for source in self._sources.values():
            if source.is_open:
                source.writer.close(is_end=False)

    def samples(self) -> list[tuple[Column, float]]:
        """Return what the page for Prometheus shows."""
        return [
            (Column("receive_records_total", (), "records"), float(self.records)),
            (Column("receive_refused_lines_total", (), "lines"), float(self.refused)),
            (Column("receive_sources", (), "sources"), float(len(self._sources))),
        ]

    def _take(self, line: Line) -> None:
        if line.source.endswith(f"@{self._host}"):  # this host's own: its journal is the truth
            return
        if not _SOURCE.fullmatch(line.source) or len(self._sources) >= MOST_SOURCES:
            self._refuse(line, "no name of a source")
            return
        try:
            found = decode(line.raw)
        except (DamagedLineError, JournalError) as error:
            self._refuse(line, str(error))
            return
        source = self._sources.get(line.source) or self._begun(line.source)
        if isinstance(found, Columns):
            source.columns = found
        elif isinstance(found, End):
            self._end(source, found.inc)
        else:
            self._record(line, source, found)

    def _record(self, line: Line, source: _Source, record: Record) -> None:
        if (record.inc, record.k) <= source.last:
            return
        columns = source.columns
        if (
            columns is None
            or columns.id != record.columns_id
            or len(columns.columns) != len(record.values)
        ):
            self._refuse(line, f"no columns line {record.columns_id}")
            return
        end_k = self._phase_file.poll().end_k
        if end_k is not None and record.k >= end_k:  # it goes on, and the run does not
            self._end(source, source.last[0])
            return
        self._open(source)
        if record.columns_id != source.written_id:
            source.writer.copy(columns)
            source.written_id = record.columns_id
        source.writer.copy(record)
        source.last = (record.inc, record.k)
        self.records += 1

    def _end(self, source: _Source, inc: int) -> None:
        if inc > source.ended_inc and inc == source.last[0]:
            self._open(source)
            source.writer.copy(End(inc))
            source.ended_inc = inc

    def _begun(self, name: str) -> _Source:
        """Return a source as an earlier process left it here."""
        folder = self._folder.journal / name
        source = _Source(JournalWriter(folder, self._clock), (-1, -1))
        newest = last_record(self._folder.journal, name) if segments(folder) else None
        if newest is not None:
            record, columns = newest
            source.last = (record.inc, record.k)
            source.columns = columns_line(columns)
        return self._sources.setdefault(name, source)

    @staticmethod
    def _open(source: _Source) -> None:
        """Take the source's lock, once there is something to write."""
        if not source.is_open:
            source.writer.open()
            source.is_open = True

    def _refuse(self, line: Line, why: str) -> None:
        self.refused += 1
        if self.refused & (self.refused - 1) == 0:  # the 1st, 2nd, 4th, 8th ...
            LOG.warning("line_refused n=%d source=%.100r why=%s", self.refused, line.source, why)
