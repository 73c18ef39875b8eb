"""The records of producers and consumers: their latencies, the counts of a second, and whether they waited.

Latencies make findings; all other series are channels that may explain one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from soak.core.model import Change, Column
from soak.core.series import SeriesId, column_name, parse_series, series_name

LATENCIES = ("end_to_end_latency_seconds", "publish_latency_seconds")
QUANTILES = ("0.99", "0.999", "0.5")  # in the order in which a finding is named after them
LONG_GAP_SECONDS = 600
"""Without a record for longer, what comes does not follow what was."""
WAITING = "publish_waiting_seconds"
PUBLISH_ABOVE = "publish_latency_above_messages"
END_TO_END_ABOVE = "end_to_end_latency_above_messages"
_DUE_NOW = ("failed_messages", "sent_messages", "missed_messages", "queue_full_messages")
"""Any of them says that a message was due in the second."""
DUE = (*_DUE_NOW, "in_flight_messages")
"""Any of them says that a message was due, or still is."""
AWAY_SECONDS = 0.5
_BUSY_CORES = 0.85
_STARVED_RATIO = 0.5
"""A client that used so much of a core, was away for so long or waited so much for a processor may itself be
the reason that nothing was acknowledged."""
LEAST_WAIT = 1.0
"""Seconds from which on a message that waits says how large latency is at least."""
_BOUNDED = [
    column_name("publish_latency_seconds", (("quantile", quantile),)) for quantile in QUANTILES[:2]
]
ChangeId = tuple[str, int]
"""Series and raise of a change: what stays when its onset is refined."""
_Found = TypeVar("_Found")


def is_headline(column: Column | SeriesId) -> bool:
    """True for the latencies that a finding is about."""
    return column.metric in LATENCIES and dict(column.labels).get("quantile") in QUANTILES


def is_of_finding(change: Change) -> bool:
    """True for what makes a finding: an outage, and changes of the latencies."""
    return change.kind == "outage" or is_headline(parse_series(change.series))


def identity(change: Change) -> ChangeId:
    return change.series, change.raised_k


def latency_of(series: str) -> str:
    """Return source and metric of a series: all quantiles, and all leaders, are one latency."""
    found = parse_series(series)
    return series_name(found.source, found.metric)


class BySource(Generic[_Found]):
    """What was found in the columns of each source, looked for again when they change."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[Sequence[Column], _Found]] = {}

    def get(
        self,
        source: str,
        columns: Sequence[Column],
        find: Callable[[str, Sequence[Column]], _Found],
    ) -> _Found:
        known = self._known.get(source)
        if known is None or not (known[0] is columns or known[0] == columns):
            known = self._known[source] = columns, find(source, columns)
        return known[1]


@dataclass(frozen=True, slots=True)
class Second:
    """One record of a client: `values` are in the order of its columns, shape (n,), NaN if unmeasured."""

    k: int
    values: NDArray[np.float64]
    is_valid: bool = True
    phase: str = "soak"
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class Client:
    """Where the records of a producer or a consumer have the columns that matter."""

    columns: Sequence[Column]
    is_producer: bool
    at: Mapping[str, int]  # by metric, of columns without labels

    def value(self, second: Second, metric: str) -> float:
        """Return a value, 0 where it was not measured."""
        return value_at(second.values, self.at.get(metric))

    def count(self, second: Second, metric: str) -> int:
        return round(self.value(second, metric))

    def above(self, limit_seconds: float) -> int | None:
        """Return the place of the count above a limit, or above the next threshold that is recorded."""
        metric = PUBLISH_ABOVE if self.is_producer else END_TO_END_ABOVE
        found = [
            (float(dict(column.labels)["threshold"]), i)
            for i, column in enumerate(self.columns)
            if column.metric == metric
        ]
        return min(((at, i) for at, i in found if at >= limit_seconds), default=(0.0, None))[1]

    def has_waited(self, second: Second) -> bool:
        """True when nothing was acknowledged, or received, although messages were due.

        Not so when the client itself may be the reason.
        """
        metrics, came = (DUE, "acked") if self.is_producer else (("lag_messages",), "received")
        is_due = any(self.value(second, metric) > 0 for metric in metrics)
        is_cluster = second.is_valid or (self.is_producer and self.waits_for_cluster(second))
        return is_due and is_cluster and self.count(second, f"{came}_messages") == 0

    def waits_for_cluster(self, second: Second) -> bool:
        """True when messages were with the cluster, and the client was there to take acknowledgements."""
        return (
            self.value(second, "in_flight_messages") > 0
            and self.value(second, "sender_busy_ratio") < _BUSY_CORES
            and self.value(second, "callback_delay_seconds") < AWAY_SECONDS
            and self.value(second, "process_cpu_waiting_ratio") < _STARVED_RATIO
        )


def waiting_of(series: str) -> tuple[str, tuple[str, ...]] | None:
    """Return the series of the wait that bounds a latency from below, and those of messages that were due.

    None for a latency without one.
    """
    found = parse_series(series)
    if column_name(found.metric, found.labels) not in _BOUNDED:
        return None
    return series_name(found.source, WAITING), tuple(series_name(found.source, n) for n in _DUE_NOW)


@dataclass(frozen=True, slots=True)
class Waiting:
    """Where a producer's records say how long the oldest message has waited, and which latencies that bounds.

    In a second without an acknowledgement no latency is known, only that the oldest message's will be at
    least its wait, and so the high quantiles of all messages. It says nothing where latency was longer
    before, so the second has the larger of the wait and the newest latency. Whole seconds are recorded, so a
    wait below one says nothing; nor does any in a second in which no message was due.
    """

    waiting_at: int | None
    latencies_at: Sequence[int]
    due_at: Sequence[int]

    @classmethod
    def of(cls, _source: str, columns: Sequence[Column]) -> Waiting:
        at = {column.name: i for i, column in enumerate(columns)}
        latencies, due = (
            [at[name] for name in names if name in at] for names in (_BOUNDED, _DUE_NOW)
        )
        return cls(at.get(WAITING), latencies, due)

    def newest(self, values: NDArray[np.float64], before: Sequence[float]) -> list[float]:
        """Return the newest value of each latency after a second; `before` may be empty."""
        known: list[float] = values[self.latencies_at].tolist()
        if len(before) != len(known):
            return known
        return [old if math.isnan(new) else new for new, old in zip(known, before, strict=True)]

    def as_latencies(
        self, values: NDArray[np.float64], newest: Sequence[float]
    ) -> NDArray[np.float64]:
        """Return the values of a second, shape (columns,), with what is known of latencies without a value.

        `newest` has the last value of each latency before; it may be empty.
        """
        if self.waiting_at is None or not values[self.waiting_at] >= LEAST_WAIT:
            return values
        if self.due_at and not np.nansum(values[self.due_at]) > 0:
            return values
        found, places = values.copy(), list(self.latencies_at)
        least = np.fmax(newest or np.nan, values[self.waiting_at])
        found[places] = np.where(np.isfinite(found[places]), found[places], least)
        return found


def value_at(values: Sequence[float] | NDArray[np.float64], place: int | None) -> float:
    """Return the value at a place, 0 where it was not measured, or where there is no such place."""
    value = 0.0 if place is None else float(values[place])
    return value if math.isfinite(value) else 0.0


def client_of(columns: Sequence[Column]) -> Client | None:
    """Return the producer or consumer that records such columns; None of any other source."""
    at = {column.metric: i for i, column in enumerate(columns) if not column.labels}
    if {"sent_messages", "acked_messages"} <= at.keys():
        return Client(columns, is_producer=True, at=at)
    return Client(columns, is_producer=False, at=at) if "received_messages" in at else None
