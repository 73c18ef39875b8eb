"""How much consumers have not read since a catch-up began, and whether that will ever be gone."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

import numpy as np

from soak.core.model import Column, Record
from soak.core.plan_load import Consumers
from soak.daemons.load_seconds import index_of, values_of

TREND_SECONDS = 30
"""The trend is judged over so long, three times, at ends `APART_SECONDS` apart: all must agree."""
APART_SECONDS = 5
FRESH_SECONDS = 5
"""So long after consumers read on, their own idea of the lag may be from before the pause."""
LATE_SECONDS = 3
"""A consumer that has received nothing for longer may no longer know its lag."""

Point = tuple[int, float]
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
        self._points: deque[Point] = deque(maxlen=TREND_SECONDS + 2 * APART_SECONDS + 1)

    def add(
        self, source: str, record: Record, columns: tuple[Column, ...], *, is_building: bool
    ) -> None:
        """Take one record, once."""
        values = values_of(record, columns)
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
        at = self._who.subscription_of(index_of(source))
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
            left[self._who.subscription_of(index_of(name))] += lag
        return left

    def note(self, k: int, left: float) -> None:
        """Remember what was left after second k."""
        if not self._points or k > self._points[-1][0]:
            self._points.append((k, left))

    def never_drains(self, goal: float, limit_k: int) -> bool:
        """True when the trend says that second `limit_k` will come before no more than `goal` is left."""
        points = list(self._points)
        if not points or points[-1][0] - points[0][0] < TREND_SECONDS + 2 * APART_SECONDS:
            return False
        ends = [points[-1][0] - back for back in (0, APART_SECONDS, 2 * APART_SECONDS)]
        return all(
            _gone_k([one for one in points if end - TREND_SECONDS <= one[0] <= end], goal) > limit_k
            for end in ends
        )

    def _lag(self, subscription: int, drain_k: int) -> float | None:
        """Return the lag that the consumers of a subscription see, or None where they may not know it."""
        seen = [
            one
            for name, one in self._seen.items()
            if self._who.subscription_of(index_of(name)) == subscription
        ]
        since_k = max(drain_k + FRESH_SECONDS, self._newest_k - LATE_SECONDS)
        is_fresh = len(seen) == self._who.per_subscription and min(k for k, _ in seen) >= since_k
        lag = sum(lag for _, lag in seen)
        return None if not is_fresh or math.isnan(lag) else lag


def _gone_k(points: Sequence[Point], goal: float) -> float:
    """Return the second in which a straight line through the points reaches `goal`; infinity if never."""
    k, left = np.array(points).T
    slope = float(np.polyfit(k - k[-1], left, 1)[0])
    if left[-1] <= goal:
        return float(k[-1])
    return math.inf if slope >= 0 else float(k[-1] + (left[-1] - goal) / -slope)
