"""Write journal lines from other hosts into a run's journal: validated, in order, each record once."""

from __future__ import annotations

import logging
import re
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from soak.core.errors import JournalError
from soak.core.journal_format import Columns, DamagedLineError, End, columns_line, decode
from soak.core.model import Column, Record
from soak.core.ports import Clock
from soak.core.retry import Once
from soak.core.units import SECOND_NS
from soak.runtime.context import PhaseFile
from soak.store.journal.reader import columns_after_last_record, last_record, segments
from soak.store.journal.writer import DRIVE_ERRORS, JournalWriter
from soak.store.run_folder import RunFolder, read_run, read_sender_id
from soak.store.samples_topic import ShippedLine

LOG = logging.getLogger("soak.shipping.ingest")
MAX_SOURCES = 10_000
MAX_AHEAD_SECONDS = 7200  # of this host's clock: who reads a run has room for each second of it
MAX_COLUMNS_LINES = 8  # columns lines of a source held, the newest
IDLE_NS = 60 * SECOND_NS  # then a source's files are closed
_SAME_HOST_NAME = "two hosts are called alike"
_SOURCE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}@[A-Za-z0-9.-]{1,100}")


@dataclass(slots=True)
class _Source:
    """One source as far as it was written here."""

    last: tuple[int, int] = (-1, -1)  # incarnation and second of the newest record
    sender: str = ""  # whose records these are, as far as this process took any
    since_k: int = 0  # the first of them
    columns: dict[str, Columns] = field(default_factory=dict)  # by id, the newest last
    writer: JournalWriter | None = None
    written_id: str = ""  # of the newest columns line that the writer has
    written_ns: int = 0
    ended_epoch: int = -1


class Ingest:
    """Writes lines of other hosts' sources; what is here already, or belongs to this host, is left out."""

    def __init__(self, folder: RunFolder, clock: Clock, host: str) -> None:
        self._folder = folder
        self._clock = clock
        self._host = host
        self._start_wall_ns = read_run(folder).start_wall_ns
        self._own_sender = ""
        self._phase_file = PhaseFile(folder.phases)
        self._sources: dict[str, _Source] = {}
        self._waiting: deque[ShippedLine] = deque()  # of the batch in hand
        self._errors = Once()
        self._has_lost = False  # what a disk did not take until the end
        self.records = 0
        self.refused = 0

    @property
    def is_behind(self) -> bool:
        """True while lines wait in memory because the disk does not take them."""
        writers = (source.writer for source in self._sources.values())
        waits = any(writer.is_behind for writer in writers if writer)
        return bool(self._waiting) or waits or self._has_lost

    def take(self, lines: Sequence[ShippedLine]) -> None:
        """Write these lines, after what waits; look at `is_behind`."""
        self._waiting += lines
        try:
            while self._waiting:
                self._take(self._waiting[0])
                self._waiting.popleft()
        except OSError as error:
            if error.errno not in DRIVE_ERRORS:
                raise
            if self._errors.is_new(str(error)):
                LOG.warning(
                    "journal_not_opened waiting_lines=%d error=%s", len(self._waiting), error
                )
        else:
            self._errors.clear()
        self._look_after_writers()

    def close(self) -> None:
        for source in self._sources.values():
            self._close(source)

    def samples(self) -> list[tuple[Column, float]]:
        """Return what the page for Prometheus shows."""
        return [
            (Column("receive_records_total", (), "records"), float(self.records)),
            (Column("receive_refused_lines_total", (), "lines"), float(self.refused)),
            (Column("receive_sources", (), "sources"), float(len(self._sources))),
        ]

    def _take(self, line: ShippedLine) -> None:
        if line.source.endswith(f"@{self._host}"):  # this host's own: its journal is the truth
            if line.sender not in ("", self._own()):
                self._refuse(line, _SAME_HOST_NAME)
            return
        source = self._sources.get(line.source)
        if source is None and (
            not _SOURCE.fullmatch(line.source) or len(self._sources) >= MAX_SOURCES
        ):
            self._refuse(line, "no name of a source")
            return
        try:
            found = decode(line.raw)
        except (DamagedLineError, JournalError) as error:
            self._refuse(line, str(error))
            return
        source = source or self._begun(line.source)
        if isinstance(found, Columns):
            self._columns(line.source, source, found)
        elif isinstance(found, End):
            self._end(line.source, source, found.epoch)
        else:
            self._record(line, source, found)

    def _columns(self, name: str, source: _Source, columns: Columns) -> None:
        """Write columns when they come, not with their first record: the place on the topic moves on."""
        if columns.id == next(reversed(source.columns), ""):  # they are repeated now and then
            return
        self._write_columns(name, source, columns)
        source.columns.pop(columns.id, None)
        source.columns[columns.id] = columns
        if len(source.columns) > MAX_COLUMNS_LINES:
            del source.columns[next(iter(source.columns))]

    def _record(self, line: ShippedLine, source: _Source, record: Record) -> None:
        if (record.epoch, record.k) <= source.last:
            if _is_from_another_host(line, source, record):
                self._refuse(line, _SAME_HOST_NAME)
            return
        columns = source.columns.get(record.columns_id)
        if columns is None or len(columns.columns) != len(record.values):
            self._refuse(line, f"no columns line {record.columns_id}")
            return
        if (
            record.epoch == source.last[0]
            and source.sender
            and line.sender not in ("", source.sender)
        ):
            self._refuse(line, _SAME_HOST_NAME)
            return
        own_k = (self._clock.wall_ns() - self._start_wall_ns) // SECOND_NS
        if not 0 <= record.k <= own_k + MAX_AHEAD_SECONDS:
            self._refuse(line, f"its second {record.k} is none of the run by now: a clock is wrong")
            return
        end_k = self._phase_file.poll().end_k
        if end_k is not None and record.k >= end_k:  # it goes on, and the run does not
            self._end(line.source, source, source.last[0])
            return
        if source.writer is None or record.columns_id != source.written_id:
            self._write_columns(line.source, source, columns)
        self._writer(line.source, source).copy(record)
        source.last = (record.epoch, record.k)
        if line.sender and line.sender != source.sender:
            source.sender, source.since_k = line.sender, record.k
        self.records += 1

    def _end(self, name: str, source: _Source, epoch: int) -> None:
        if epoch > source.ended_epoch and epoch == source.last[0]:
            self._writer(name, source).copy(End(epoch))
            source.ended_epoch = epoch

    def _write_columns(self, name: str, source: _Source, columns: Columns) -> None:
        self._writer(name, source).copy(columns)
        source.written_id = columns.id

    def _begun(self, name: str) -> _Source:
        """Return a source as an earlier process left it here."""
        source = _Source()
        journal = self._folder.journal
        if segments(journal / name):
            newest = last_record(journal, name)
            known = columns_after_last_record(journal, name)
            if newest is not None:
                record, columns = newest
                source.last = (record.epoch, record.k)
                known.insert(0, columns_line(columns))
            source.columns = {columns.id: columns for columns in known[-MAX_COLUMNS_LINES:]}
        return self._sources.setdefault(name, source)

    def _writer(self, name: str, source: _Source) -> JournalWriter:
        """Return what writes a source; it has the source's lock, once there is something to write."""
        if source.writer is None:
            source.writer = JournalWriter(self._folder.journal / name, self._clock).open()
            source.written_id = ""
        source.written_ns = self._clock.mono_ns()
        return source.writer

    def _look_after_writers(self) -> None:
        """Try again what the disk did not take; close what has been idle: a source holds descriptors."""
        now_ns = self._clock.mono_ns()
        for source in self._sources.values():
            if source.writer is not None and source.writer.is_behind:
                source.writer.retry()
            elif now_ns - source.written_ns >= IDLE_NS:
                self._close(source)

    def _close(self, source: _Source) -> None:
        if source.writer is not None:
            source.writer.close(is_end=False)
            self._has_lost |= source.writer.is_behind
            source.writer = None

    def _own(self) -> str:
        if not self._own_sender:  # it may begin to ship after us
            self._own_sender = read_sender_id(self._folder)
        return self._own_sender

    def _refuse(self, line: ShippedLine, why: str) -> None:
        self.refused += 1
        if self.refused & (self.refused - 1) == 0:  # the 1st, 2nd, 4th, 8th ...
            LOG.warning("line_refused n=%d source=%.100r why=%s", self.refused, line.source, why)


def _is_from_another_host(line: ShippedLine, source: _Source, record: Record) -> bool:
    """Return whether a record that looks like one of the past cannot be: a second one of that name sent it.

    What is sent twice is of no later second than the newest; where another folder than the newest one
    sent it, of none since that one began.
    """
    is_other = source.sender != "" and line.sender not in ("", source.sender)
    return record.k > source.last[1] or (is_other and record.k >= source.since_k)
