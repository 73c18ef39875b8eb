"""Records of the samples topic as rows: what they say, what they refer to, and what cannot be read.

A record refers to its columns by id. The line that lists them may lie far before it: a sender sends it again
after a minute or 8 MiB. What a process has seen of these lines it keeps; for another it reads earlier
records, at most `LOOK_BACK_RECORDS` of the partition and never the same ones twice. Where retention has
deleted the line, the one that is repeated later in the same range serves as well.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple, Protocol

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException

from soak.clients.kafka_log import error_text
from soak.core.errors import BrokerError, JournalError
from soak.core.journal_format import Columns, DamagedLineError, Line, decode
from soak.core.model import Record
from soak.core.plan.plan import Ship
from soak.core.ports import Clock
from soak.core.units import SECOND_NS
from soak.store.admission import SIGNATURE_HEADER, Signer, is_same
from soak.store.run_announcements import RUN_ID, admitted
from soak.store.samples_topic import (
    ANNOUNCEMENT_HEADER,
    MAX_MESSAGE_BYTES,
    SOURCE_NAME,
    SamplesClients,
)
from spark.sources.schema import Row, columns_text, gap_row, record_row
from spark.sources.topic_log import Lost, TopicLog, TopicRecord
from spark.sources.topic_offsets import Range, Scanned, chunks

LOOK_BACK_RECORDS = 200_000
"""How far before a batch a columns line is looked for: minutes of a partition of a large fleet."""
COLUMNS_BYTES = 64 * 2**20
"""Text of columns that a process keeps: of some 10,000 sources with 60 series each."""
MAX_GAPS = 8
"""Rows with a gap of one source in a range; further ones are counted."""
ANNOUNCED = "run_announced"
"""Kind of the event in the row of an announcement."""
MAX_LETTERS = 1000
"""Records that a task keeps of a range; one producer of waste fills no cluster."""
MAX_WAITING = 5000
"""Records of a range that wait for their columns line to be repeated in it."""
_MAX_GAP_SOURCES = 1000
_FIRST_LOOK_BACK = 2000  # records; each further look takes twice as many
_COLUMNS_LINE = b'{"t":"c"'
_LETTERS = {
    "acks": "all",
    "enable.idempotence": "true",
    "compression.type": "lz4",
    "message.max.bytes": str(MAX_MESSAGE_BYTES),
}


class UnreadableRecordError(ValueError):
    """A record is not a line of a journal with its run and source."""


@dataclass(frozen=True, slots=True)
class KnownLine:
    """The columns with one id: their text, and how many they are."""

    text: str
    count: int


class KnownColumns:
    """What a process has seen of the columns lines on a topic; bounded, the least used goes first."""

    def __init__(self, max_bytes: int = COLUMNS_BYTES) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._lines: dict[tuple[str, str, str], KnownLine] = {}
        self._scanned: dict[int, Scanned] = {}
        self.dropped = 0  # lines that were too many

    def find(self, run: str, source: str, name: str) -> KnownLine | None:
        """Return the columns with this id of a source: the ids of another are none of its own."""
        key = run, source, name
        line = self._lines.pop(key, None)
        if line is not None:
            self._lines[key] = line
        return line

    def note(self, run: str, source: str, columns: Columns) -> bool:
        """Keep a columns line; return False where the same id has other columns already."""
        text = columns_text(columns.columns)
        known = self.find(run, source, columns.id)
        if known is not None:
            return known.text == text
        self._lines[run, source, columns.id] = KnownLine(text, len(columns.columns))
        self._bytes += len(text)
        while self._bytes > self._max_bytes and len(self._lines) > 1:
            self._bytes -= len(self._lines.pop(next(iter(self._lines))).text)
            self._scanned.clear()  # it is looked for again when it is needed
            self.dropped += 1
        return True

    def holes(self, partition: int, begin: int, end: int) -> list[tuple[int, int]]:
        """Return where in [begin, end) there may be columns lines that are not known, the last first."""
        return self._scanned.setdefault(partition, Scanned()).holes(begin, end)

    def note_scanned(self, partition: int, begin: int, end: int, dropped: int) -> None:
        """Note that all columns lines in [begin, end) are known, unless some were `dropped` since."""
        if dropped == self.dropped:
            self._scanned.setdefault(partition, Scanned()).add(begin, end)


class DeadLetters(Protocol):
    """Where records go that cannot be read."""

    def keep(self, record: TopicRecord, reason: str) -> None:
        """Keep a record with its place and the reason; one that is kept again has the same key."""

    def finish(self) -> str:
        """Wait until all are kept; return why some are not, or nothing."""


class _Gaps:
    """Reports the first gaps of each source, and counts the others."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str], int] = {}

    def note(self, run: str, source: str, reason: str) -> Row | None:
        key = run, source
        if key not in self._counts and len(self._counts) >= _MAX_GAP_SOURCES:
            key = "", ""
        self._counts[key] = self._counts.get(key, 0) + 1
        return gap_row(*key, reason) if self._counts[key] <= MAX_GAPS else None

    def remaining(self, place: str) -> Iterator[Row]:
        for (run, source), count in self._counts.items():
            if count > MAX_GAPS:
                yield gap_row(run, source, f"{place}: {count - MAX_GAPS} further records")


class _Waiting(NamedTuple):
    """A record whose columns may not be known yet."""

    partition: int
    offset: int
    run: str
    source: str
    record: Record


@dataclass(slots=True)
class TopicRows:
    """Makes the rows of one range of a partition."""

    topic: str
    log: TopicLog
    columns: KnownColumns
    letters: DeadLetters | None = None
    is_announcing: bool = False
    signer: Signer | None = None  # then what it did not sign is refused
    look_back: int = LOOK_BACK_RECORDS
    _gaps: _Gaps = field(default_factory=_Gaps)
    _named: set[tuple[str, str, str]] = field(default_factory=set)  # columns that a row carries
    _waiting: list[_Waiting] = field(default_factory=list)

    def of(self, span: Range) -> Iterator[Row]:
        """Yield the rows of the records in the range, and a row with a `gap` for what cannot be read.

        Raises:
            BrokerError: the cluster does not answer.
        """
        if span.note:
            yield gap_row("", "", f"topic {self.topic}: {span.note}")
        dropped = self.columns.dropped
        if span.begin < span.end:
            for found in self.log.read(span.partition, span.begin, span.end):
                row = self._lost(found) if isinstance(found, Lost) else self._row(found, span)
                if row is not None:
                    yield row
        self.columns.note_scanned(span.partition, span.begin, span.end, dropped)
        for one in self._waiting:
            known = self.columns.find(one.run, one.source, one.record.columns_id)
            row = self._row_of_record(one, known)
            if row is not None:
                yield row
        yield from self._gaps.remaining(f"topic {self.topic}, partition {span.partition}")
        reason = self.letters.finish() if self.letters is not None else ""
        if reason:
            yield gap_row("", "", f"{self.topic}.dead: {reason}")

    def _lost(self, lost: Lost) -> Row:
        last = f"offset {lost.begin} to {lost.end - 1}"
        return gap_row(
            "", "", f"topic {self.topic}, partition {lost.partition}, {last}: {lost.reason}"
        )

    def _row(self, record: TopicRecord, span: Range) -> Row | None:
        headers = dict(record.headers)
        try:
            if ANNOUNCEMENT_HEADER in headers:
                return self._announcement_row(record, headers) if self.is_announcing else None
            run, source = _identity(record, headers)
            self._check_signature(record, headers, source)
        except UnreadableRecordError as error:
            return self._unreadable(record, "", "", str(error))
        try:
            line = decode(record.value or b"", is_foreign=True)
        except (DamagedLineError, JournalError) as error:
            return self._unreadable(record, run, source, str(error))
        return self._row_of_line(record, span, run, source, line)

    def _row_of_line(
        self, record: TopicRecord, span: Range, run: str, source: str, line: Line
    ) -> Row | None:
        if isinstance(line, Record):
            known = self.columns.find(run, source, line.columns_id)
            known = known or self._looked_back(span, run, source, line.columns_id)
            found = _Waiting(record.partition, record.offset, run, source, line)
            if known is None and len(self._waiting) < MAX_WAITING:
                self._waiting.append(found)
                return None
            return self._row_of_record(found, known)
        if isinstance(line, Columns) and not self.columns.note(run, source, line):
            reason = f"columns line {line.id} has other columns than before"
            return self._unreadable(record, run, source, reason)
        return None

    def _row_of_record(self, found: _Waiting, known: KnownLine | None) -> Row | None:
        run, source, record = found.run, found.source, found.record
        if known is None or known.count != len(record.values):
            return self._gap(found, run, source, f"no columns line {record.columns_id:.40}")
        name = run, source, record.columns_id
        text = None if name in self._named else known.text
        self._named.add(name)
        return record_row(run, source, record, text, "")

    def _looked_back(self, span: Range, run: str, source: str, name: str) -> KnownLine | None:
        """Look for a columns line before the range, the nearest records first."""
        first, known = max(0, span.begin - self.look_back), None
        for hole in self.columns.holes(span.partition, first, span.begin):
            for begin, end in chunks(hole, _FIRST_LOOK_BACK):
                dropped = self.columns.dropped
                for found in self.log.read(span.partition, begin, end):
                    if isinstance(found, TopicRecord):
                        self._note_columns(found)
                        known = known or self.columns.find(run, source, name)
                self.columns.note_scanned(span.partition, begin, end, dropped)
                if known is not None:
                    return known
        return None

    def _note_columns(self, record: TopicRecord) -> None:
        if not (record.value or b"").startswith(_COLUMNS_LINE):
            return
        try:
            headers = dict(record.headers)
            run, source = _identity(record, headers)
            self._check_signature(record, headers, source)
            line = decode(record.value or b"", is_foreign=True)
        except (UnreadableRecordError, DamagedLineError, JournalError):
            return  # it was reported with the batch that it is in
        if isinstance(line, Columns):
            self.columns.note(run, source, line)

    def _check_signature(
        self, record: TopicRecord, headers: Mapping[str, bytes | None], source: str
    ) -> None:
        """Raise `UnreadableRecordError` unless the line is signed with the key, where there is one."""
        if self.signer is None:
            return
        sender = (headers.get("sender") or b"").decode(errors="replace")
        wanted = self.signer.line(headers, source, sender, record.value or b"")
        if not is_same(headers.get(SIGNATURE_HEADER), wanted):
            raise UnreadableRecordError("its signature does not hold")

    def _announcement_row(self, record: TopicRecord, headers: Mapping[str, bytes | None]) -> Row:
        """Return the row of an announcement: it has no source and no interval, and one event.

        Raises:
            UnreadableRecordError: it is none, or not signed with the key.
        """
        try:
            found = admitted(record.value or b"", headers, self.signer, None)
        except ValueError as error:
            raise UnreadableRecordError(str(error)) from error
        at_ns = found.sent_wall_ns
        event = {"kind": ANNOUNCED, "at_ns": at_ns, "since_ns": at_ns, "fields": asdict(found)}
        return {
            "run": found.run_id,
            "shard": 0,
            "source": "",
            "at_ns": at_ns,
            "events": json.dumps([event]),
        }

    def _unreadable(self, record: TopicRecord, run: str, source: str, reason: str) -> Row | None:
        if self.letters is not None:
            self.letters.keep(record, reason)
        return self._gap(record, run, source, reason)

    def _gap(
        self, record: TopicRecord | _Waiting, run: str, source: str, reason: str
    ) -> Row | None:
        place = f"topic {self.topic}, partition {record.partition}, offset {record.offset}"
        return self._gaps.note(run, source, f"{place}: {reason}")


def _identity(record: TopicRecord, headers: Mapping[str, bytes | None]) -> tuple[str, str]:
    """Return run and source of a line.

    Raises:
        UnreadableRecordError: key or headers do not name them.
    """
    source = (record.key or b"").decode(errors="replace")
    if not SOURCE_NAME.fullmatch(source):
        raise UnreadableRecordError("the key is not the name of a source")
    run = (headers.get("run") or b"").decode(errors="replace")
    if not RUN_ID.fullmatch(run):
        raise UnreadableRecordError("the header `run` is not the id of a run")
    if not (headers.get("start_ns") or b"").isdigit():
        raise UnreadableRecordError("the header `start_ns` is not the start of a run")
    return run, source


class KafkaDeadLetters:
    """Writes records that cannot be read to the topic of dead letters, unchanged, with place and reason."""

    def __init__(self, ship: Ship, clock: Clock) -> None:
        self._source = ship.topic
        self._ship = replace(ship, topic=f"{ship.topic}.dead")
        self._clients = SamplesClients(self._ship, "soakd-fleet", clock)
        self._producer: Any = None
        self._count = 0
        self._failure = ""

    def keep(self, record: TopicRecord, reason: str) -> None:
        self._count += 1
        if self._failure or self._count > MAX_LETTERS:
            return
        place = f"{self._source}/{record.partition}/{record.offset}"
        about = [("place", place.encode()), ("reason", reason.encode())]
        try:
            if self._producer is None:
                self._clients.ensure_topic()
                timeout = {"message.timeout.ms": str(self._ship.timeout // 10**6)}
                self._producer = self._clients.create(
                    confluent_kafka.Producer, {**_LETTERS, **timeout}
                )
            self._producer.produce(
                self._ship.topic,
                record.value,
                place,
                headers=[*record.headers, ("key", record.key or b""), *about],
                on_delivery=self._note_delivery,
            )
            self._producer.poll(0)
        except (KafkaException, BufferError) as error:
            self._failure = error_text(error)
        except BrokerError as error:
            self._failure = str(error)

    def finish(self) -> str:
        if self._producer is not None:
            remaining = self._producer.flush(2 * self._ship.timeout / SECOND_NS)
            if remaining:
                self._failure = self._failure or self._clients.cause.or_else("no answer")
                self._producer.purge()
                self._producer.poll(0)
        if self._failure:
            return f"not all unreadable records were kept: {self._failure}"
        if self._count > MAX_LETTERS:
            return f"{self._count - MAX_LETTERS} further unreadable records were not kept"
        return ""

    def _note_delivery(self, error: KafkaError | None, _message: object) -> None:
        if error is not None:
            self._failure = self._failure or error.str()
