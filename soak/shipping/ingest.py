"""Write journal lines from other hosts into the journal of a run: validated, in order, each record once."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from sys import getsizeof

from soak.core import histogram
from soak.core.errors import JournalError, SoakError
from soak.core.journal_format import (
    Columns,
    DamagedLineError,
    End,
    checked_places,
    decode,
    encode,
    wrong_count,
)
from soak.core.model import Column, Record
from soak.core.plan.plan import Plan
from soak.core.ports import Clock
from soak.core.retry import Once
from soak.core.units import SECOND_NS
from soak.runtime.context import PhaseFile
from soak.service.files import free_descriptors
from soak.shipping.work_mark import WorkMark
from soak.store.admission import RefusedLines
from soak.store.journal.reader import columns_after_last_record, last_record, segments
from soak.store.journal.writer import LASTING_ERRORS, JournalWriter
from soak.store.run_folder import RunFolder, read_run, read_sender_id
from soak.store.samples_topic import SOURCE_NAME, ShippedLine

LOG = logging.getLogger(__name__)
MAX_SOURCES = 10_000
MAX_AHEAD_SECONDS = 60  # of this host's clock: by so much those of the hosts may differ
MAX_EPOCHS_AHEAD = 1000  # a daemon has a new epoch with each start
MAX_COLUMNS_LINES = 8  # of a source, the newest
MAX_COLUMNS_BYTES = 2**29  # in memory, of all sources: some 100 hosts of 5,000 series
MAX_HOUR_BYTES = (
    2**30
)  # of a source, in an hour of the run: 500 series take 15 MiB, 5,000 at most 330 MiB
WRITER_DESCRIPTORS = 4  # its file, its lock, and what is being flushed
OTHER_DESCRIPTORS = 100  # of this process: clients, logs, the metrics page
IDLE_NS = 60 * SECOND_NS  # then the files of a source are closed
_SAME_HOST_NAME = "two hosts have the same name"
_NOT_SIGNED = "its signature does not hold"
_ENDS_PROCESSES = "two processes died while they took it alone"
_FORGOTTEN = (
    f"its columns were forgotten: {MAX_COLUMNS_LINES} of a source and "
    f"{MAX_COLUMNS_BYTES >> 20} MiB of all are kept"
)
_TOO_MUCH = f"more than {MAX_HOUR_BYTES >> 20} MiB in an hour"


@dataclass(slots=True)
class _Source:
    """The state of one source of another host."""

    last: tuple[int, int] = (-1, -1)  # epoch and interval of the newest record
    sender: str = ""  # of the newest records, as far as this process wrote any
    since_k: int = 0  # the first interval from that sender
    columns: dict[str, Columns] = field(default_factory=dict)  # by id, the newest last
    places: dict[str, tuple[int, ...]] = field(default_factory=dict)  # of counts, by id of columns
    bytes_of_hour: dict[int, int] = field(default_factory=dict)  # of the run, of written lines
    writer: JournalWriter | None = None
    written_id: str = ""  # of the newest columns line that the writer has
    named: set[str] = field(default_factory=set)  # ids that a reader of the newest record on finds
    written_ns: int = 0
    ended_epoch: int = -1


class Ingest:
    """Writes the lines of other hosts; skips records that are here already and those of this host.

    It is the gate for what comes over the topic: a line that is not signed, not whole, not of a source of the
    plan or not of this time is refused, counted with its place, and never written. So is a line with which
    processes died, see `WorkMark`.
    """

    def __init__(
        self,
        folder: RunFolder,
        clock: Clock,
        host: str,
        plan: Plan | None = None,
        *,
        max_columns_bytes: int = MAX_COLUMNS_BYTES,
    ) -> None:
        """`plan`: whose sources are taken; without one, those of any name."""
        self._plan = plan
        self._folder = folder
        self._clock = clock
        self._host = host
        self._start_wall_ns = read_run(folder).start_wall_ns
        self._own_sender = ""
        self._newest_k = 0
        self._phase_file = PhaseFile(folder.phases)
        self._sources: dict[str, _Source] = {}
        self._max_columns_bytes = max_columns_bytes
        self._columns_bytes: dict[tuple[str, str], int] = {}  # by source and id, least used first
        self._held_bytes = 0  # the sum of these
        self._open: dict[str, _Source] = {}  # those with a writer, the least used first
        self._max_open = max(1, free_descriptors(OTHER_DESCRIPTORS) // WRITER_DESCRIPTORS)
        self._pending: deque[ShippedLine] = deque()
        self._failures = Once()
        self._has_lost = False  # a writer was closed before the drive took all of its lines
        self._refused = RefusedLines(folder.refused / "receive.json", clock)
        self._mark = WorkMark(folder.path / "receive-work.json")
        self.records = 0
        self.repeated = 0  # records that were here already
        self.unsigned = 0  # lines that needed no signature

    @property
    def is_behind(self) -> bool:
        """True while lines wait in memory because the drive does not take them."""
        writers = (source.writer for source in self._sources.values())
        is_waiting = any(writer.is_behind for writer in writers if writer)
        return bool(self._pending) or is_waiting or self._has_lost

    @property
    def refused(self) -> int:
        """Return how many lines were refused since the start of the run."""
        return self._refused.total

    def write(self, lines: Sequence[ShippedLine]) -> None:
        """Write these lines after the pending ones; if the drive is full, `is_behind` is true."""
        self._pending += lines
        self._mark.begin(line.place for line in self._pending)
        try:
            self._take_pending()
        except (OSError, SoakError):  # of the drive or the folder, and no fault of a line
            self._mark.interrupt()
            raise
        if self._pending:
            self._mark.interrupt()
        else:
            self._mark.end()
        self._retry_or_close_writers()
        self._refused.store()

    def _take_pending(self) -> None:
        """Take the pending lines until the drive takes no more; raise an error of the drive that lasts."""
        try:
            while self._pending:
                self._take(self._pending[0])
                self._pending.popleft()
        except OSError as error:
            if error.errno in LASTING_ERRORS:
                raise
            if self._failures.is_new(str(error)):
                pending = len(self._pending)
                LOG.warning("journal_not_opened waiting_lines=%d error=%s", pending, error)
        else:
            self._failures.clear()

    def _take(self, line: ShippedLine) -> None:
        if self._mark.may_take(line.place, line.source, line.raw):
            self._process(line)
        else:
            self._refuse(line, _ENDS_PROCESSES)
            self._refused.store(is_due=True)

    def close(self) -> None:
        """Close all journals, then raise the first error that one of them met."""
        errors = []
        self._refused.store(is_due=True)
        self._mark.close()
        for source in self._sources.values():
            try:
                self._close(source)
            except Exception as error:  # noqa: BLE001  # raised below
                errors.append(error)
        if errors:
            raise errors[0]

    def samples(self) -> list[tuple[Column, float]]:
        """Return the values of the Prometheus page."""
        return [
            (Column("receive_records_total", (), "records"), float(self.records)),
            (Column("receive_refused_lines_total", (), "lines"), float(self.refused)),
            (Column("receive_repeated_records_total", (), "records"), float(self.repeated)),
            (Column("receive_set_aside_lines_total", (), "lines"), float(self._mark.set_aside)),
            (Column("receive_unsigned_lines_total", (), "lines"), float(self.unsigned)),
            (Column("receive_sources", (), "sources"), float(len(self._sources))),
        ]

    def _process(self, line: ShippedLine) -> None:
        reason = line.refusal or (_NOT_SIGNED if line.is_signed is False else "")
        if reason:
            self._refuse(line, reason)
            return
        if line.source.endswith(f"@{self._host}"):  # the journal of this host has it already
            if line.sender not in ("", self._own_sender_id()):
                self._refuse(line, _SAME_HOST_NAME)
            return
        source = self._sources.get(line.source)
        if source is None and (reason := self._reason_to_refuse_source(line.source)):
            self._refuse(line, reason)
            return
        try:
            found = decode(line.raw, is_foreign=True)
        except (DamagedLineError, JournalError) as error:
            self._refuse(line, str(error))
            return
        source = source or self._restored(line.source)
        self.unsigned += line.is_signed is None
        if isinstance(found, Columns):
            self._process_columns(line, source, found)
        elif isinstance(found, End):
            self._process_end(line.source, source, found.epoch)
        else:
            self._process_record(line, source, found)

    def _reason_to_refuse_source(self, name: str) -> str:
        """Return why a source that is not known yet cannot be one of this run; "" if it can."""
        if not SOURCE_NAME.fullmatch(name):
            return "not the name of a source"
        if self._plan is not None and not self._plan.knows_source(name):
            return "the plan knows no such source"
        if len(self._sources) >= MAX_SOURCES:
            return f"more than {MAX_SOURCES:,} sources"
        return ""

    def _process_columns(self, line: ShippedLine, source: _Source, columns: Columns) -> None:
        """Write columns at once, not with their first record: the offset on the topic moves past them."""
        if columns.id not in source.named:  # else the sender repeats them
            if not _has_room(source, len(line.raw), max(0, source.last[1])):
                self._refuse(line, _TOO_MUCH)
                return
            self._write_columns(line.source, source, columns)
        self._hold_columns(line.source, source, columns)

    def _hold_columns(self, name: str, source: _Source, columns: Columns) -> None:
        """Keep columns for the records that name them; forget those that were used longest ago."""
        key = name, columns.id
        size = self._columns_bytes.pop(key, 0)
        if not size:
            size = _memory_bytes(columns)
            self._held_bytes += size
        self._columns_bytes[key] = size
        source.columns.pop(columns.id, None)
        source.columns[columns.id] = columns
        if len(source.columns) > MAX_COLUMNS_LINES:
            self._forget_columns(name, next(iter(source.columns)))
        while self._held_bytes > self._max_columns_bytes and len(self._columns_bytes) > 1:
            self._forget_columns(*next(iter(self._columns_bytes)))

    def _forget_columns(self, name: str, id_: str) -> None:
        source = self._sources[name]
        del source.columns[id_]
        source.places.pop(id_, None)
        self._held_bytes -= self._columns_bytes.pop((name, id_))
        if source.writer is not None and id_ == source.written_id and not source.writer.is_behind:
            self._close(source)  # it holds them too

    def _process_record(self, line: ShippedLine, source: _Source, record: Record) -> None:
        is_other_sender = source.sender != "" and line.sender not in ("", source.sender)
        if (record.epoch, record.k) <= source.last:
            # A repeated record is not newer than the last one; after a change of the sender, it is older
            # than the first record of the present sender.
            if record.k > source.last[1] or (is_other_sender and record.k >= source.since_k):
                self._refuse(line, _SAME_HOST_NAME)
            else:
                self.repeated += 1
            return
        reason = self._reason_to_refuse(line, source, record, is_other_sender=is_other_sender)
        if reason:
            self._refuse(line, reason)
            return
        end_k = self._phase_file.poll().end_k
        if end_k is not None and record.k >= end_k:  # the source goes on after the end of the run
            self._process_end(line.source, source, source.last[0])
            return
        if source.writer is None or record.columns_id != source.written_id:
            self._write_columns(line.source, source, source.columns[record.columns_id])
        self._writer(line.source, source).copy(record)
        source.named = {record.columns_id}
        key = line.source, record.columns_id
        self._columns_bytes[key] = self._columns_bytes.pop(key)  # those that were used last
        source.last = (record.epoch, record.k)
        if line.sender and line.sender != source.sender:
            source.sender, source.since_k = line.sender, record.k
        self.records += 1

    def _reason_to_refuse(
        self, line: ShippedLine, source: _Source, record: Record, *, is_other_sender: bool
    ) -> str:
        """Return why a new record cannot be written; "" if it can."""
        columns = source.columns.get(record.columns_id)
        if columns is None or len(columns.columns) != len(record.values):
            is_forgotten = columns is None and record.columns_id in source.named
            return _FORGOTTEN if is_forgotten else f"no columns line {record.columns_id:.40}"
        # a folder that was created again begins with the interval after the present one
        first_epoch = max(source.last[0], record.k + 1)
        if source.last[0] >= 0 and record.epoch > first_epoch + MAX_EPOCHS_AHEAD:
            return f"its epoch {record.epoch} is far ahead of the last one"
        if record.epoch == source.last[0] and is_other_sender:
            return _SAME_HOST_NAME
        own_k = (self._clock.wall_ns() - self._start_wall_ns) // SECOND_NS
        self._newest_k = max(self._newest_k, own_k)  # this host's clock may be set back
        if not 0 <= record.k <= self._newest_k + MAX_AHEAD_SECONDS:
            return f"its interval {record.k} is not within the run so far: check the clocks of both hosts"
        if record.columns_id not in source.places:
            source.places = {id_: checked_places(of.columns) for id_, of in source.columns.items()}
        reason = wrong_count(record, source.places[record.columns_id]) or _wrong_histogram(record)
        if reason:
            return reason
        is_named = source.writer is not None and record.columns_id == source.written_id
        size = len(line.raw) + (0 if is_named else len(encode(columns)))
        return "" if _has_room(source, size, record.k) else _TOO_MUCH

    def _process_end(self, name: str, source: _Source, epoch: int) -> None:
        if epoch > source.ended_epoch and epoch == source.last[0]:
            self._writer(name, source).copy(End(epoch))
            source.ended_epoch = epoch

    def _write_columns(self, name: str, source: _Source, columns: Columns) -> None:
        self._writer(name, source).copy(columns)
        source.written_id = columns.id
        source.named.add(columns.id)

    def _restored(self, name: str) -> _Source:
        """Return the state of a source from its journal here, as an earlier process left it."""
        source, known = _Source(), list[Columns]()
        journal = self._folder.journal
        if segments(journal / name):
            newest = last_record(journal, name)
            known = columns_after_last_record(journal, name)
            if newest is not None:
                record, columns = newest
                source.last = (record.epoch, record.k)
                known.insert(0, Columns(record.columns_id, columns))
            known = known[-MAX_COLUMNS_LINES:]
            source.named = {one.id for one in known}
        self._sources[name] = source
        for one in known:
            self._hold_columns(name, source, one)
        return source

    def _writer(self, name: str, source: _Source) -> JournalWriter:
        """Return the writer of a source, which is opened, and takes the lock, with the first line."""
        if source.writer is None:
            self._make_room()
            source.writer = JournalWriter(self._folder.journal / name, self._clock).open()
            source.written_id = ""
        self._open.pop(name, None)
        self._open[name] = source  # the one that was used last
        source.written_ns = self._clock.mono_ns()
        return source.writer

    def _make_room(self) -> None:
        """Close the files of those sources that were written longest ago, if no more can be open."""
        self._open = {name: one for name, one in self._open.items() if one.writer is not None}
        surplus = len(self._open) + 1 - self._max_open
        idle = [one for one in self._open.values() if one.writer and not one.writer.is_behind]
        for source in idle[: max(0, surplus)]:
            self._close(source)

    def _retry_or_close_writers(self) -> None:
        """Retry lines that the drive did not take; close idle writers, which hold descriptors."""
        now_ns = self._clock.mono_ns()
        for source in self._sources.values():
            if source.writer is not None and source.writer.is_behind:
                source.writer.retry()
            elif now_ns - source.written_ns >= IDLE_NS:
                self._close(source)

    def _close(self, source: _Source) -> None:
        if source.writer is not None:
            writer, source.writer = source.writer, None
            try:
                writer.close(is_end=False)
            finally:
                self._has_lost |= writer.is_behind

    def _own_sender_id(self) -> str:
        if not self._own_sender:  # this host may begin to ship later
            self._own_sender = read_sender_id(self._folder)
        return self._own_sender

    def _refuse(self, line: ShippedLine, reason: str) -> None:
        if line.place is None:
            self._refused.add(line.source, reason, "", line.raw)
            return
        partition, offset = f"partition {line.place[0]}", line.place[1]
        place = f"{partition}, offset {offset}"
        self._refused.add(line.source, reason, place, line.raw, position=(partition, offset))


def _memory_bytes(columns: Columns) -> int:
    """Return about how much memory columns take: up to twenty times their text."""
    labels = [label for column in columns.columns for label in column.labels]
    texts = (text for column in columns.columns for text in (column.metric, column.unit))
    return (
        sum(map(getsizeof, chain(texts, *labels))) + 208 * len(columns.columns) + 88 * len(labels)
    )


def _has_room(source: _Source, size_bytes: int, k: int) -> bool:
    """Count what is to be written of an interval; return False where its hour has no room for it."""
    total = source.bytes_of_hour.get(k // 3600, 0) + size_bytes
    if total > MAX_HOUR_BYTES:
        return False
    source.bytes_of_hour[k // 3600] = total
    return True


def _wrong_histogram(record: Record) -> str:
    """Return why a histogram of a record cannot be read, or nothing."""
    for name, text in record.histograms.items():
        try:
            histogram.decode(text)
        except ValueError as error:
            return f"histogram {name:.100}: {error}"
    return ""
