"""The audit of a run, computed from its journals, or from parts that were made of their files."""

from __future__ import annotations

import dataclasses
import itertools
import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

import orjson

from soak.core.audit import (
    AUDIT_EVENTS,
    COUNTED_METRICS,
    FINAL_POSITION_EVENT,
    RECENT_NS,
    Audit,
)
from soak.core.header import instance_of
from soak.core.journal_format import End
from soak.core.model import Column, Event, Record, Span
from soak.core.plan.load import is_named_well, process_index
from soak.core.plan.plan import Plan
from soak.store.journal.merged import (
    CLOCK_EVENTS,
    GAP_NS,
    MergedReader,
    MergedRecord,
    SegmentRecord,
    read_whole_segment,
)
from soak.store.journal.reader import sources
from soak.store.run_folder import Run, RunFolder

_PRODUCER, _CONSUMER = "produce.", "consume."
_ACKS = {"acks", "request.required.acks"}


def audit_run(
    folder: RunFolder,
    run: Run,
    plan: Plan,
    read: Callable[[Path], Iterator[SegmentRecord | End]] = read_whole_segment,
) -> Audit:
    """Return the audit of all records of a run; `read` gives what it needs of one journal file.

    Raises:
        JournalError: a journal was written by a newer version.
    """
    names = [name for name in sources(folder.journal) if is_named_well(name)]
    # Within an interval, acknowledgements come first: they name the offsets of the received messages.
    producers = [name for name in names if name.startswith(_PRODUCER)]
    consumers = [name for name in names if name.startswith(_CONSUMER)]
    audit = Audit(plan.consumers.subscriptions)
    reader = MergedReader(folder.journal, [*producers, *consumers], read)
    incomplete: set[tuple[str, int]] = set()
    for found in reader.read():
        if found.source.startswith(_CONSUMER):
            _add_received(audit, found, plan)
            continue
        if found.is_after_gap:
            incomplete.add((found.source, found.record.epoch))
        audit.add(found.record, found.columns)
    for source, epoch in reader.ended - incomplete:
        for client in range(plan.load.clients_per_producer):
            audit.ended(instance_of(run.id, source, client), epoch)
    return audit


def is_audited(source: str) -> bool:
    """True for the sources whose records the audit reads."""
    return source.startswith((_PRODUCER, _CONSUMER))


_KEPT_EVENTS = AUDIT_EVENTS | CLOCK_EVENTS


def pack_part(records: Iterable[SegmentRecord], ended_epoch: int) -> bytes:
    """Return what the audit needs of the records of one file; `ended_epoch`: its last end, or -1.

    Records that follow each other without a gap, and without an event of the audit, are one record, from the
    first interval to the last. So a steady hour is a few numbers for each producer stream.
    """
    rows: list[_Row] = []
    counted: dict[int, list[tuple[int, str]]] = {}  # places of counts, by id of the columns
    held = []
    for found in records:
        if id(found.columns) not in counted:
            held.append(found.columns)  # so that its id is its own
            counted[id(found.columns)] = [
                (at, one.metric)
                for at, one in enumerate(found.columns)
                if one.metric in COUNTED_METRICS
            ]
        events = [one for one in found.record.events if one.kind in _KEPT_EVENTS]
        if events or not (rows and rows[-1].is_continued_by(found)):
            rows.append(_row(found, events))
        else:
            rows[-1].extend(found.record)
        rows[-1].count(found.record, counted[id(found.columns)])
    fields = attrgetter(*(one.name for one in dataclasses.fields(_Row)))
    return orjson.dumps(
        {
            "from_ns": min((row.at_ns - row.length_ns for row in rows), default=0),
            "to_ns": max((row.at_ns for row in rows), default=0),
            "finals": [
                one[1] for row in rows for one in row.events if one[0] == FINAL_POSITION_EVENT
            ],
            "rows": list(map(fields, rows)),
            "ended": ended_epoch,
        }
    )


@dataclass(slots=True)
class _Row:
    """A record, or several in one; `is_after_damage` is about the first, and `length_ns` up to the last."""

    k: int
    epoch: int
    at_ns: int
    length_ns: int
    is_after_damage: bool
    counts: dict[str, int]  # by metric
    acknowledged: dict[str, list[Span]]
    received: dict[str, list[Span]]
    sent_next: dict[str, int]
    events: list[tuple[str, int, int, dict[str, str | int | float]]]

    def is_continued_by(self, found: SegmentRecord) -> bool:
        record = found.record
        if record.epoch != self.epoch or found.is_after_damage or self.events:
            return False
        return abs(record.at_ns - self.at_ns - record.length_ns) <= GAP_NS

    def count(self, record: Record, counted: list[tuple[int, str]]) -> None:
        for at, metric in counted:
            value = record.values[at]
            self.counts[metric] += 0 if math.isnan(value) else int(value)

    def extend(self, record: Record) -> None:
        self.length_ns += record.at_ns - self.at_ns
        self.at_ns = record.at_ns
        self.sent_next |= record.sent_next
        for streams, more in (
            (self.acknowledged, record.acknowledged),
            (self.received, record.received),
        ):
            for name, spans in more.items():
                _append(streams.setdefault(name, []), spans)


def _append(spans: list[Span], more: Iterable[Span]) -> None:
    """Add spans of one stream, as one with the last where both messages and offsets follow it."""
    for first, last, low, high in more:
        before = spans[-1] if spans else None
        if before and (before[1] + 1, before[3] + 1) == (first, low):
            spans[-1] = (before[0], last, before[2], high)
        else:
            spans.append((first, last, low, high))


def _row(found: SegmentRecord, events: Iterable[Event]) -> _Row:
    """Return the row of a record without its counts."""
    record = found.record
    return _Row(
        record.k,
        record.epoch,
        record.at_ns,
        record.length_ns,
        found.is_after_damage,
        defaultdict(int),
        {name: list(spans) for name, spans in record.acknowledged.items()},
        {name: list(spans) for name, spans in record.received.items()},
        dict(record.sent_next),
        [(one.kind, one.at_ns, one.since_ns, dict(one.fields)) for one in events],
    )


def part_reader(parts: Mapping[Path, bytes]) -> Callable[[Path], Iterator[SegmentRecord | End]]:
    """Return a reader of journal files for `audit_run`, which takes what `pack_part` made of them.

    Of a producer it reads the file itself where a consumer reported its final position in the same time: one
    record for all would not say what was acknowledged before that position, and what after.
    """
    finals_ns = sorted(
        at_ns
        for path, part in parts.items()
        if path.parent.name.startswith(_CONSUMER)
        for at_ns in orjson.loads(part)["finals"]
    )

    def read(path: Path) -> Iterator[SegmentRecord | End]:
        if path not in parts:
            return read_whole_segment(path)
        body = orjson.loads(parts[path])
        first_ns, last_ns = body["from_ns"] - RECENT_NS, body["to_ns"] + RECENT_NS
        at = bisect_left(finals_ns, first_ns)
        is_split = path.parent.name.startswith(_PRODUCER) and at < len(finals_ns)
        if is_split and finals_ns[at] <= last_ns:
            return read_whole_segment(path)
        return _unpacked(body)

    return read


def _unpacked(body: Any) -> Iterator[SegmentRecord | End]:  # noqa: ANN401  # JSON
    for row in itertools.starmap(_Row, body["rows"]):
        columns = tuple(map(Column, row.counts))
        record = Record(
            row.k,
            row.epoch,
            row.at_ns,
            row.length_ns,
            "",
            tuple(map(float, row.counts.values())),
            acknowledged=_spans(row.acknowledged),
            received=_spans(row.received),
            sent_next=row.sent_next,
            events=tuple(itertools.starmap(Event, row.events)),
        )
        yield SegmentRecord(record, columns, row.is_after_damage)
    if body["ended"] >= 0:
        yield End(body["ended"])


def _spans(streams: dict[str, list[Span]]) -> dict[str, tuple[Span, ...]]:
    return {name: tuple([(a, b, c, d) for a, b, c, d in spans]) for name, spans in streams.items()}


def _add_received(audit: Audit, found: MergedRecord, plan: Plan) -> None:
    consumers = plan.consumers
    index = process_index(found.source)
    subscription = consumers.subscription_of(index)
    if found.is_after_gap:
        first, step = consumers.member_of(index), consumers.per_subscription
        audit.missed(subscription, range(first, plan.topic.total_partitions, step))
    audit.add(found.record, found.columns, subscription)


def is_loss_known(plan: Plan) -> bool:
    """Return False with acks=0: without acknowledgements, loss cannot be detected."""
    acks = [str(value) for name, value in _producer_settings(plan).items() if name in _ACKS]
    return not acks or acks[-1] != "0"  # the client uses the last of the two names of a setting


def is_order_guaranteed(plan: Plan) -> bool:
    """Return True where an idempotent producer guarantees that each message arrives once and in order."""
    return str(_producer_settings(plan).get("enable.idempotence")).lower() == "true"


def _producer_settings(plan: Plan) -> Mapping[str, str]:
    config = plan.broker_config
    return {**getattr(config, "common", {}), **getattr(config, "producer", {})}
