"""Records of producers and consumers, summed second by second, and the backlog that they add up to."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from soak.core.model import Column, Record
from soak.core.plan.load import Consumers, process_index

LOAD_SOURCES = ("produce.", "consume.")

_WANTED = {
    "sent_messages": "sent",
    "acked_messages": "acked",
    "missed_messages": "skipped",
    "in_flight_messages": "in_flight",
    "received_messages": "received",
    "lag_messages": "lag",
    'publish_latency_seconds{quantile="0.99"}': "publish_p99",
    'schedule_lag_seconds{quantile="0.5"}': "schedule_lag",
}

TREND_SECONDS = 30
"""The trend is fitted over so long, three times, at ends `TREND_STEP_SECONDS` apart: all must agree."""
TREND_STEP_SECONDS = 5
RESUME_SECONDS = 5
"""For so long after consumers resume, the lag that they report may be from before their pause."""
LATE_SECONDS = 3
"""A consumer that has received nothing for longer may not know its lag any more."""

BacklogPoint = tuple[int, float]
"""A second, and the unread messages after it."""


@dataclass(frozen=True, slots=True)
class LoadInterval:
    """One second of all processes. Messages are summed, latencies are those of the slowest process."""

    producers: int = 0  # processes that have a record
    consumers: int = 0
    sent: float = 0.0
    acked: float = 0.0
    skipped: float = 0.0
    in_flight: float = 0.0
    publish_p99: float = (
        0.0  # seconds; infinite where messages are in flight and none was acknowledged
    )
    schedule_lag: float = 0.0  # median, in seconds
    received: Mapping[int, float] = field(default_factory=dict)  # by subscription
    lag: Mapping[int, float] = field(default_factory=dict)  # by subscription; NaN where unknown
    invalid: str = ""  # why a process was itself the bottleneck


def load_values(record: Record, columns: tuple[Column, ...]) -> dict[str, float]:
    """Return the values of a record that a `LoadInterval` is made of, under their names there."""
    named = zip(columns, record.values, strict=True)
    return {_WANTED[column.name]: value for column, value in named if column.name in _WANTED}


class LoadIntervals:
    """Collects records by second, without those of consumers that the plan does not have."""

    def __init__(self, consumers: Consumers) -> None:
        self._consumers = consumers
        self._by_k: dict[int, dict[str, tuple[dict[str, float], str]]] = {}

    def add(self, source: str, record: Record, columns: tuple[Column, ...]) -> None:
        if self._consumers.is_unplanned(source):
            return
        reason = str(record.validity.get("reason", ""))
        self._by_k.setdefault(record.k, {})[source] = (load_values(record, columns), reason)

    def at(self, k: int) -> LoadInterval:
        """Return the sum of the records of second k that have been added so far."""
        rows = self._by_k.get(k, {})
        produced = [values for name, (values, _) in rows.items() if name.startswith("produce.")]
        received: dict[int, float] = {}
        lag: dict[int, float] = {}
        for name, (values, _) in rows.items():
            if name.startswith("consume."):
                at = self._consumers.subscription_of(process_index(name))
                received[at] = received.get(at, 0.0) + values["received"]
                lag[at] = lag.get(at, 0.0) + values["lag"]
        return LoadInterval(
            producers=len(produced),
            consumers=len(rows) - len(produced),
            sent=sum(one["sent"] for one in produced),
            acked=sum(one["acked"] for one in produced),
            skipped=sum(one["skipped"] for one in produced),
            in_flight=sum(one["in_flight"] for one in produced),
            publish_p99=max((_latency(one, "publish_p99") for one in produced), default=0.0),
            schedule_lag=max((_latency(one, "schedule_lag") for one in produced), default=0.0),
            received=received,
            lag=lag,
            invalid=next((reason for _, reason in rows.values() if reason), ""),
        )


def _latency(values: Mapping[str, float], name: str) -> float:
    """Return a latency; where none was measured 0, or infinity when messages are in flight all the same."""
    value = values[name]
    if not math.isnan(value):
        return value
    return math.inf if values["in_flight"] else 0.0


class Backlog:
    """Counts messages that were acknowledged and not received, by subscription.

    The count begins in second `build_k`, with the lag that consumers reported before. While consumers read,
    their own lag is used where it is known, because retention may have deleted unread messages. While they
    pause they know no lag.
    """

    def __init__(self, consumers: Consumers, build_k: int = 0) -> None:
        self._consumers = consumers
        self._build_k = build_k
        self._lag_before: dict[str, float] = {}  # by consumer, before `build_k`
        self._acked = 0.0
        self._received = [0.0] * consumers.subscriptions
        self._built = [0.0] * consumers.subscriptions  # in the seconds in which consumers paused
        self._reported: dict[
            str, tuple[int, float]
        ] = {}  # by consumer: second and lag, while it reads
        self._newest_k = -1
        self._points: deque[BacklogPoint] = deque(maxlen=TREND_SECONDS + 2 * TREND_STEP_SECONDS + 1)

    def add(
        self, source: str, record: Record, columns: tuple[Column, ...], *, is_building: bool
    ) -> None:
        """Add one record, once; that of a consumer that the plan does not have changes nothing."""
        if self._consumers.is_unplanned(source):
            return
        values = load_values(record, columns)
        if record.k < self._build_k:
            if not math.isnan(values.get("lag", math.nan)):
                self._lag_before[source] = values["lag"]
            return
        self._newest_k = max(self._newest_k, record.k)
        if source.startswith("produce."):
            self._acked += values["acked"]
            if is_building:
                self._built = [one + values["acked"] for one in self._built]
            return
        at = self._consumers.subscription_of(process_index(source))
        self._received[at] += values["received"]
        if is_building:
            self._built[at] -= values["received"]
        if values["received"]:
            self._reported[source] = (record.k, values["lag"])

    @property
    def built(self) -> float:
        """Return the backlog of the slowest subscription when it resumed."""
        return max(
            built + before
            for built, before in zip(self._built, self._remaining_before, strict=True)
        )

    def remaining(self, drain_k: int | None = None) -> float:
        """Return the unread messages of the slowest subscription; `drain_k`: when consumers resumed."""
        counted = [
            max(0.0, before + self._acked - received)
            for before, received in zip(self._remaining_before, self._received, strict=True)
        ]
        if drain_k is not None:
            lags = [self._lag(at, drain_k) for at in range(len(counted))]
            counted = [one if lag is None else lag for one, lag in zip(counted, lags, strict=True)]
        return max(counted)

    @property
    def _remaining_before(self) -> list[float]:
        """Return the unread messages of each subscription when the count began."""
        remaining = [0.0] * self._consumers.subscriptions
        for name, lag in self._lag_before.items():
            remaining[self._consumers.subscription_of(process_index(name))] += lag
        return remaining

    def note(self, k: int, remaining: float) -> None:
        """Add a point to the trend: the unread messages after second k."""
        if not self._points or k > self._points[-1][0]:
            self._points.append((k, remaining))

    def never_drains(self, goal: float, limit_k: int) -> bool:
        """Return whether, by the trend, more than `goal` messages remain in second `limit_k`."""
        points = list(self._points)
        if not points or points[-1][0] - points[0][0] < TREND_SECONDS + 2 * TREND_STEP_SECONDS:
            return False
        ends = [points[-1][0] - steps * TREND_STEP_SECONDS for steps in range(3)]
        return all(
            _drained_k([one for one in points if end - TREND_SECONDS <= one[0] <= end], goal)
            > limit_k
            for end in ends
        )

    def _lag(self, subscription: int, drain_k: int) -> float | None:
        """Return the lag that the consumers of a subscription report; None where they may not know it."""
        reported = [
            one
            for name, one in self._reported.items()
            if self._consumers.subscription_of(process_index(name)) == subscription
        ]
        since_k = max(drain_k + RESUME_SECONDS, self._newest_k - LATE_SECONDS)
        is_fresh = (
            len(reported) == self._consumers.per_subscription
            and min(k for k, _ in reported) >= since_k
        )
        lag = sum(lag for _, lag in reported)
        return None if not is_fresh or math.isnan(lag) else lag


def _drained_k(points: Sequence[BacklogPoint], goal: float) -> float:
    """Return the second in which a straight line through the points reaches `goal`; infinity if never."""
    k, remaining = np.array(points).T
    slope = float(np.polyfit(k - k[-1], remaining, 1)[0])
    if remaining[-1] <= goal:
        return float(k[-1])
    return math.inf if slope >= 0 else float(k[-1] + (remaining[-1] - goal) / -slope)
