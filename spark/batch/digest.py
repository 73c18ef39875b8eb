"""One journal file as numbers: what a report needs of it, small enough to bring many together.

Values are kept by second, or as one value for each `step` seconds: counts are summed, maxima kept,
everything else is a median.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from detectors import outage
from detectors.client_seconds import Second
from detectors.objectives import MinuteCounter, Minutes
from soak.core.audit import AUDIT_EVENTS
from soak.core.journal_format import MAX_INTERVAL
from soak.core.model import Column, Record
from soak.core.plan.objectives import Objective
from soak.core.plan.phases import Phases
from soak.store.audit import is_audited, pack_part
from soak.store.journal.merged import SegmentRecord, read_segment
from soak.store.journal.reader import SourceReader, complete_size, segments
from spark.batch.soak_totals import SoakTotals, totals_of

# --- Of one journal file, the seconds in which the load did not come through: few, so all are kept.

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


def distinct(k: Ints) -> Ints:
    """Return the different seconds, ascending.

    `np.unique` of numpy 2.4 hashes them, which takes sixty times as long as sorting does.
    """
    ordered = np.sort(k)
    is_first = np.ones(k.size, np.bool_)
    is_first[1:] = ordered[1:] != ordered[:-1]
    return ordered[is_first]


@dataclass(frozen=True, slots=True)
class LoadDigest:
    """Seconds ascend; of a source that neither sends nor reads all three are empty."""

    silent: Ints  # nothing was acknowledged, or nothing received
    standing: Ints  # messages were due, and none was acknowledged
    short: Ints  # rows of second, messages missed, messages failed: where there were any


def load_digest(columns: tuple[Column, ...], k: Ints, values: Floats) -> LoadDigest:
    """Return what became of the load second by second; `values`: a row a column, a column a record.

    A second has two records where its daemon was started again in it.
    """
    place = {column.name: at for at, column in enumerate(columns)}
    seconds, which = np.unique(k, return_inverse=True)

    def counts(name: str) -> Ints:
        if name not in place:
            return np.zeros(seconds.size, np.int64)
        measured = np.nan_to_num(values[place[name]])
        return np.bincount(which, measured, seconds.size).astype(np.int64)

    none = np.empty(0, np.int64)
    if "received_messages" in place:
        silent = seconds[counts("received_messages") == 0]
        return LoadDigest(silent, none, none.reshape(0, 3))
    if not {"sent_messages", "acked_messages"} <= place.keys():
        return LoadDigest(none, none, none.reshape(0, 3))
    missed, failed = counts("missed_messages"), counts("failed_messages")
    is_silent = counts("acked_messages") == 0
    was_due = counts("sent_messages") + missed > 0
    short = np.stack([seconds, missed, failed], axis=1)
    return LoadDigest(seconds[is_silent], seconds[is_silent & was_due], short[missed + failed > 0])


@dataclass(frozen=True, slots=True)
class RoughSeconds:
    """The seconds of a client in which not all went well: `k` ascends, shape (n,); values (n, columns)."""

    columns: tuple[Column, ...]
    k: Ints
    values: Floats


def rough_seconds(columns: tuple[Column, ...], k: Ints, values: Floats) -> RoughSeconds:
    """Return what outages are found in; `values`: a row a column, a column a record."""
    at = [i for i, column in enumerate(columns) if outage.is_used(column)]
    is_rough = outage.troubled(columns, values)
    kept = values[at][:, is_rough].T
    return RoughSeconds(tuple(columns[i] for i in at), k[is_rough], kept)


# --- Of one journal file, the messages of each minute that the objectives of the plan count.


@dataclass(frozen=True, slots=True)
class Scope:
    """The objectives of a run, and its phases, which say what seconds they judge."""

    objectives: tuple[Objective, ...] = ()
    phases: Phases = field(default_factory=Phases)
    max_k: int = MAX_INTERVAL  # a later interval is damage


def minutes_of(
    source: str, records: list[tuple[Record, tuple[Column, ...]]], scope: Scope
) -> Minutes:
    """Return the counts for each objective; none without objectives."""
    counter = MinuteCounter(scope.objectives)
    for record, columns in records if scope.objectives else ():
        phase = scope.phases.at(record.k)
        values = np.array(record.values)
        counter.add(source, columns, Second(record.k, values, record.is_valid, phase, record.epoch))
    return counter.minutes


_STATES = frozenset({"lag_messages", "in_flight_messages", "cluster_other_messages"})
"""Messages that are there, or a rate, not what came in the second."""
_AMOUNTS = frozenset({"retention_deletions", "retention_deleted_bytes"})
"""What came in the second, besides messages."""


EXTREMES_SECONDS = 60
"""Where a bucket holds several seconds, the lowest and highest second are kept by the minute."""


@dataclass(frozen=True, slots=True)
class Extremes:
    """The lowest and the highest second of each minute: `k` ascends, shape (n,); both (columns, n)."""

    k: Ints
    low: NDArray[np.float32]
    high: NDArray[np.float32]


def extremes_of(k: Ints, values: Floats) -> Extremes:
    """Return the extremes of seconds `k`, ascending; `values`: a row a column, a column a record."""
    minute = k // EXTREMES_SECONDS * EXTREMES_SECONDS
    starts = np.flatnonzero(np.diff(minute, prepend=-1))
    if not starts.size:
        nothing = np.empty((values.shape[0], 0), np.float32)
        return Extremes(minute, nothing, nothing)
    low, high = np.fmin.reduceat(values, starts, axis=1), np.fmax.reduceat(values, starts, axis=1)
    return Extremes(minute[starts], low.astype(np.float32), high.astype(np.float32))


@dataclass(frozen=True, slots=True)
class Digest:
    """`k` and `values` (rows of `values` are series) have one entry a bucket of `step` seconds."""

    source: str
    seconds: NDArray[np.int64]  # every k that has a record, ascending
    columns: tuple[Column, ...]
    k: NDArray[np.int64]
    values: NDArray[np.float64]
    extremes: Extremes  # empty where every second is kept
    invalid: tuple[tuple[int, str], ...]
    load: LoadDigest
    rough: RoughSeconds
    minutes: Minutes
    totals: SoakTotals
    event_seconds: Mapping[str, tuple[int, ...]]  # by kind; the bodies are read where they count
    damage: tuple[tuple[int, int, str], ...]  # k of the nearest record, offset, reason
    epochs: tuple[int, ...]
    audit: bytes  # what the audit needs of the file; empty where it reads none


def digest(path: Path, step: int, scope: Scope | None = None) -> Digest:
    """Read one journal file; damage is kept, each (epoch, k) counts once."""
    reader = SourceReader(path.parent, max_k=(scope or Scope()).max_k)
    found: list[SegmentRecord] = []
    damage_k: list[int] = []
    end = complete_size(path)
    for one in read_segment(path, reader):
        while len(damage_k) < len(reader.damage):
            damage_k.append(found[-1].record.k + 1 if found else one.record.k)
        found.append(one)
    records = [(one.record, one.columns) for one in found]
    seconds = distinct(np.array([record.k for record, _ in records], dtype=np.int64))
    columns, every_k, by_second = _values(records)
    k, values = _buckets(columns, every_k, by_second, step)
    after_k = records[-1][0].k + 1 if records else 0
    damage = [
        (damage_k[at] if at < len(damage_k) else after_k, item.offset, item.reason)
        for at, item in enumerate(reader.damage)
    ]
    if _is_torn(path, end):
        damage.append((after_k, end, "the last line is torn"))
    return Digest(
        source=path.parent.name,
        seconds=seconds,
        columns=columns,
        k=k,
        values=values,
        extremes=extremes_of(every_k[:0], by_second[:, :0])
        if step == 1
        else extremes_of(every_k, by_second),
        invalid=tuple(
            (record.k, str(record.validity["reason"]))
            for record, _ in records
            if not record.is_valid
        ),
        load=load_digest(columns, every_k, by_second),
        rough=rough_seconds(columns, every_k, by_second),
        minutes=minutes_of(path.parent.name, records, scope or Scope()),
        totals=totals_of(path.parent.name, records, (scope or Scope()).phases),
        event_seconds=_event_seconds([record for record, _ in records]),
        damage=tuple(damage),
        epochs=tuple(sorted({record.epoch for record, _ in records})),
        audit=pack_part(found, reader.ended_epoch) if is_audited(path.parent.name) else b"",
    )


def _is_torn(path: Path, end: int) -> bool:
    """True for a file that another one follows and that ends within a line: its writer was killed.

    The newest file may only be growing.
    """
    return path != segments(path.parent)[-1] and path.stat().st_size > end


def _event_seconds(records: list[Record]) -> dict[str, tuple[int, ...]]:
    found: dict[str, set[int]] = defaultdict(set)
    for record in records:
        for event in record.events:
            if event.kind not in AUDIT_EVENTS:
                found[event.kind].add(record.k)
    return {kind: tuple(sorted(seconds)) for kind, seconds in found.items()}


def _values(
    records: list[tuple[Record, tuple[Column, ...]]],
) -> tuple[tuple[Column, ...], NDArray[np.int64], NDArray[np.float64]]:
    """Return all columns, the records' seconds, ascending, and the values: (columns, records)."""
    spans = [list(part) for _, part in groupby(records, key=lambda item: id(item[1]))]
    columns = tuple(dict.fromkeys(column for part in spans for column in part[0][1]))
    place = {column: at for at, column in enumerate(columns)}
    k = np.array([record.k for record, _ in records], dtype=np.int64)
    values = np.full((len(columns), len(records)), np.nan)
    first = 0
    for part in spans:  # of records with one list of columns
        rows = [place[column] for column in part[0][1]]
        last = first + len(part)
        values[rows, first:last] = np.array([record.values for record, _ in part]).T
        first = last
    order = np.argsort(k, kind="stable")
    return columns, k[order], values[:, order]


def _buckets(
    columns: tuple[Column, ...], k: NDArray[np.int64], values: NDArray[np.float64], step: int
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    k = k // step * step
    starts = np.flatnonzero(np.diff(k, prepend=-1))
    if starts.size == k.size:
        return k, values
    bucket = np.cumsum(np.diff(k, prepend=-1) != 0) - 1
    within = np.arange(k.size) - starts[bucket]
    reduced = np.empty((len(columns), starts.size))
    for line, column in enumerate(columns):
        seconds = np.full((starts.size, int(within.max()) + 1), np.nan)
        seconds[bucket, within] = values[line]
        reduced[line] = _reduced(seconds, reduction(column))
    return k[starts], reduced


def _reduced(
    seconds: NDArray[np.float64], reduce_: Callable[[NDArray[np.float64]], np.float64]
) -> NDArray[np.float64]:
    """Reduce each row of (buckets, seconds) without what is NaN in it; NaN where nothing is left."""
    counts = np.count_nonzero(~np.isnan(seconds), axis=1)
    found = np.full(counts.size, np.nan)
    is_whole = counts == seconds.shape[1]
    if is_whole.any():
        found[is_whole] = reduce_(seconds[is_whole], axis=1)  # type: ignore[call-arg]  # numpy's have it
    for row in np.flatnonzero(~is_whole & (counts > 0)):
        found[row] = reduce_(seconds[row][~np.isnan(seconds[row])])
    return found


def reduction(column: Column) -> Callable[[NDArray[np.float64]], np.float64]:
    """Return how several seconds of a column become one number."""
    if column.metric in _AMOUNTS or (
        column.metric.endswith("_messages") and column.metric not in _STATES
    ):
        return np.sum
    return np.max if ("quantile", "max") in column.labels else np.median
