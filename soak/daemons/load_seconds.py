"""What producers and consumers recorded, put together second by second: what decisions rest on."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from soak.core.model import Column, Record

LOAD_SOURCES = ("produce.", "consume.")

_WANTED = {
    "sent_messages": "sent",
    "acked_messages": "acked",
    "missed_messages": "missed",
    "in_flight_messages": "in_flight",
    "received_messages": "received",
    "lag_messages": "lag",
    'publish_latency_seconds{quantile="0.99"}': "publish_p99",
    'schedule_lag_seconds{quantile="0.5"}': "schedule_lag",
}


@dataclass(frozen=True, slots=True)
class LoadSecond:
    """One second of all processes. Messages are summed, latencies are those of the slowest process."""

    producers: int = 0  # processes that have a record
    consumers: int = 0
    sent: float = 0.0
    acked: float = 0.0
    missed: float = 0.0
    in_flight: float = 0.0
    publish_p99: float = 0.0  # seconds; infinite where something is out and nothing came back
    schedule_lag: float = 0.0  # median, in seconds
    received: Mapping[int, float] = field(default_factory=dict)  # by subscription
    lag: Mapping[int, float] = field(default_factory=dict)  # by subscription; NaN where unknown
    untrusted: str = ""  # why a process was itself the bottleneck


def index_of(source: str) -> int:
    """Return the number of a process: 3 of `consume.3@host`."""
    return int(source.partition("@")[0].partition(".")[2])


def values_of(record: Record, columns: tuple[Column, ...]) -> dict[str, float]:
    """Return those values of a record that a `LoadSecond` is made of, under their names there."""
    named = zip(columns, record.values, strict=True)
    return {_WANTED[column.name]: value for column, value in named if column.name in _WANTED}


class LoadSeconds:
    """Collects records; `at` is what is known of a second by now."""

    def __init__(self, subscription_of: Callable[[int], int]) -> None:
        self._subscription_of = subscription_of
        self._by_k: dict[int, dict[str, tuple[dict[str, float], str]]] = {}

    def add(self, source: str, record: Record, columns: tuple[Column, ...]) -> None:
        reason = str(record.trust.get("reason", ""))
        self._by_k.setdefault(record.k, {})[source] = (values_of(record, columns), reason)

    def at(self, k: int) -> LoadSecond:
        rows = self._by_k.get(k, {})
        produced = [values for name, (values, _) in rows.items() if name.startswith("produce.")]
        received: dict[int, float] = {}
        lag: dict[int, float] = {}
        for name, (values, _) in rows.items():
            if name.startswith("consume."):
                at = self._subscription_of(index_of(name))
                received[at] = received.get(at, 0.0) + values["received"]
                lag[at] = lag.get(at, 0.0) + values["lag"]
        return LoadSecond(
            producers=len(produced),
            consumers=len(rows) - len(produced),
            sent=sum(one["sent"] for one in produced),
            acked=sum(one["acked"] for one in produced),
            missed=sum(one["missed"] for one in produced),
            in_flight=sum(one["in_flight"] for one in produced),
            publish_p99=max((_measured(one, "publish_p99") for one in produced), default=0.0),
            schedule_lag=max((_measured(one, "schedule_lag") for one in produced), default=0.0),
            received=received,
            lag=lag,
            untrusted=next((reason for _, reason in rows.values() if reason), ""),
        )


def _measured(values: Mapping[str, float], name: str) -> float:
    """Return a latency; where none was measured 0, or infinite when messages are out all the same."""
    value = values[name]
    if not math.isnan(value):
        return value
    return math.inf if values["in_flight"] else 0.0
