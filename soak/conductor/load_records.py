"""Records of producers and consumers, summed second by second, and the backlog that they add up to."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from soak.core.model import Column, Record
from soak.core.plan.load import Consumers

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
class LoadInterval:
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
    invalid: str = ""  # why a process was itself the bottleneck


def process_index(source: str) -> int:
    """Return the number of a process: 3 of `consume.3@host`."""
    return int(source.partition("@")[0].partition(".")[2])


def load_values(record: Record, columns: tuple[Column, ...]) -> dict[str, float]:
    """Return those values of a record that a `LoadSecond` is made of, under their names there."""
    named = zip(columns, record.values, strict=True)
    return {_WANTED[column.name]: value for column, value in named if column.name in _WANTED}


class LoadIntervals:
    """Collects records; `at` is what is known of a second by now."""

    def __init__(self, subscription_of: Callable[[int], int]) -> None:
        self._subscription_of = subscription_of
        self._by_k: dict[int, dict[str, tuple[dict[str, float], str]]] = {}

    def add(self, source: str, record: Record, columns: tuple[Column, ...]) -> None:
        reason = str(record.validity.get("reason", ""))
        self._by_k.setdefault(record.k, {})[source] = (load_values(record, columns), reason)

    def at(self, k: int) -> LoadInterval:
        rows = self._by_k.get(k, {})
        produced = [values for name, (values, _) in rows.items() if name.startswith("produce.")]
        received: dict[int, float] = {}
        lag: dict[int, float] = {}
        for name, (values, _) in rows.items():
            if name.startswith("consume."):
                at = self._subscription_of(process_index(name))
                received[at] = received.get(at, 0.0) + values["received"]
                lag[at] = lag.get(at, 0.0) + values["lag"]
        return LoadInterval(
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
            invalid=next((reason for _, reason in rows.values() if reason), ""),
        )


def _measured(values: Mapping[str, float], name: str) -> float:
    """Return a latency; where none was measured 0, or infinite when messages are out all the same."""
    value = values[name]
    if not math.isnan(value):
        return value
    return math.inf if values["in_flight"] else 0.0


# --- How much consumers have not read since a catch-up began, and whether that will ever be gone.

TREND_SECONDS = 30
"""The trend is judged over so long, three times, at ends `APART_SECONDS` apart: all must agree."""
TREND_STEP_SECONDS = 5
FRESH_SECONDS = 5
"""So long after consumers read on, their own idea of the lag may be from before the pause."""
LATE_SECONDS = 3
"""A consumer that has received nothing for longer may no longer know its lag."""

BacklogPoint = tuple[int, float]
"""A second and the messages that were left after it."""


class Backlog:
    """Messages acknowledged and not received, by subscription; `left` is that of the slowest.

    The count begins in second `build_k`, with what consumers had not read before it, as they saw it last.
    What they themselves see as their lag is taken instead where they know it: retention may have deleted
    what was never read. While they pause they see nothing.
    """

    def __init__(self, who: Consumers, build_k: int = 0) -> None:
        self._who = who
        self._build_k = build_k
        self._before: dict[str, float] = {}  # by consumer: what an earlier backlog left
        self._acked = 0.0
        self._received = [0.0] * who.subscriptions
        self._built = [0.0] * who.subscriptions  # of the seconds in which consumers paused
        self._seen: dict[str, tuple[int, float]] = {}  # by consumer: second and lag, while it reads
        self._newest_k = -1
        self._points: deque[BacklogPoint] = deque(maxlen=TREND_SECONDS + 2 * TREND_STEP_SECONDS + 1)

    def add(
        self, source: str, record: Record, columns: tuple[Column, ...], *, is_building: bool
    ) -> None:
        """Take one record, once."""
        values = load_values(record, columns)
        if record.k < self._build_k:
            if not math.isnan(values.get("lag", math.nan)):
                self._before[source] = values["lag"]
            return
        self._newest_k = max(self._newest_k, record.k)
        if source.startswith("produce."):
            self._acked += values["acked"]
            if is_building:
                self._built = [one + values["acked"] for one in self._built]
            return
        at = self._who.subscription_of(process_index(source))
        self._received[at] += values["received"]
        if is_building:
            self._built[at] -= values["received"]
        if values["received"]:
            self._seen[source] = (record.k, values["lag"])

    @property
    def built(self) -> float:
        """Return what the slowest subscription had to read when it read on."""
        return max(
            built + before for built, before in zip(self._built, self._left_before, strict=True)
        )

    def left(self, drain_k: int | None = None) -> float:
        """Return the messages that the slowest subscription has not read; `drain_k`: it reads since then."""
        counted = [
            max(0.0, before + self._acked - received)
            for before, received in zip(self._left_before, self._received, strict=True)
        ]
        if drain_k is not None:
            seen = [self._lag(at, drain_k) for at in range(len(counted))]
            counted = [one if lag is None else lag for one, lag in zip(counted, seen, strict=True)]
        return max(counted)

    @property
    def _left_before(self) -> list[float]:
        """Return what each subscription had not read when the count began."""
        left = [0.0] * self._who.subscriptions
        for name, lag in self._before.items():
            left[self._who.subscription_of(process_index(name))] += lag
        return left

    def note(self, k: int, left: float) -> None:
        """Remember what was left after second k."""
        if not self._points or k > self._points[-1][0]:
            self._points.append((k, left))

    def never_drains(self, goal: float, limit_k: int) -> bool:
        """True when the trend says that second `limit_k` will come before no more than `goal` is left."""
        points = list(self._points)
        if not points or points[-1][0] - points[0][0] < TREND_SECONDS + 2 * TREND_STEP_SECONDS:
            return False
        ends = [points[-1][0] - back for back in (0, TREND_STEP_SECONDS, 2 * TREND_STEP_SECONDS)]
        return all(
            _drained_k([one for one in points if end - TREND_SECONDS <= one[0] <= end], goal)
            > limit_k
            for end in ends
        )

    def _lag(self, subscription: int, drain_k: int) -> float | None:
        """Return the lag that the consumers of a subscription see, or None where they may not know it."""
        seen = [
            one
            for name, one in self._seen.items()
            if self._who.subscription_of(process_index(name)) == subscription
        ]
        since_k = max(drain_k + FRESH_SECONDS, self._newest_k - LATE_SECONDS)
        is_fresh = len(seen) == self._who.per_subscription and min(k for k, _ in seen) >= since_k
        lag = sum(lag for _, lag in seen)
        return None if not is_fresh or math.isnan(lag) else lag


def _drained_k(points: Sequence[BacklogPoint], goal: float) -> float:
    """Return the second in which a straight line through the points reaches `goal`; infinity if never."""
    k, left = np.array(points).T
    slope = float(np.polyfit(k - k[-1], left, 1)[0])
    if left[-1] <= goal:
        return float(k[-1])
    return math.inf if slope >= 0 else float(k[-1] + (left[-1] - goal) / -slope)
