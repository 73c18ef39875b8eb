"""Pacing: which messages are due now, with a bounded catch-up after a stall, and the rates to come."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from soak.core.clock import Grid
from soak.core.plan.load import Load
from soak.core.plan.phases import Phases
from soak.core.plan.rates import Point, rates_between
from soak.core.schedule import Schedule
from soak.core.units import SECOND_NS

BURST_NS = (
    SECOND_NS // 20
)  # at most 50 ms of credit, so that a stall is not made up for in one burst
MIN_CREDIT = (
    2.0  # messages: at low rates 50 ms hold none, and one late message must not delay the next
)
AHEAD, MIN_AHEAD = 4096, 256  # due times that are computed at once, and that are always available
AHEAD_SECONDS = 120
"""Rates are filled in this far ahead; the last one holds for all time beyond."""


class RatePlan:
    """The share of one process in the load; call `follow` once a second."""

    def __init__(
        self, load: Load, table: Sequence[Point], grid: Grid, index: int = 0, of: int = 1
    ) -> None:
        self._load = load
        self._table = table
        self._grid = grid
        self.schedule = Schedule(grid.start_mono_ns, load.rate, index, of)
        self._phases: Phases | None = None
        self._filled_k = 0

    def follow(self, phases: Phases, k: int) -> None:
        """Extend the schedule by the decided phases; the past stays as it was sent."""
        if phases is not self._phases:
            is_first, self._phases = self._phases is None, phases
            self._filled_k = 0 if is_first else max(0, k)
        if self._filled_k > max(0, k) + AHEAD_SECONDS // 2:
            return
        last_k = max(0, k) + AHEAD_SECONDS
        for second, rate in rates_between(self._load, phases, self._table, self._filled_k, last_k):
            self.schedule.extend(self._grid.start_of(second), rate)
        self._filled_k = last_k
        self.schedule.forget(self._grid.start_of(k) - self._load.backlog)


@dataclass(slots=True)
class Due:
    """Send `count` messages from `next_index` on now; `skipped` messages before them were given up."""

    count: int
    skipped: int


class Pacer:
    """Steps through the schedule in exact integers, so that no message is sent twice or forgotten.

    The schedule may be extended meanwhile, always beyond the present. Due times are computed ahead: the pacer
    is called thousands of times a second, and numpy computes thousands of them for little more than four.
    """

    def __init__(
        self,
        schedule: Schedule,
        catch_up_ratio: float,
        backlog_ns: int,
        now_ns: int,
        ahead: int = AHEAD,
    ) -> None:
        """`ahead`: how many due times to compute at once, at least twice MIN_AHEAD."""
        self._schedule = schedule
        self._line = schedule.line
        self._ahead = ahead
        self._catch_up_ratio = catch_up_ratio
        self._backlog_ns = backlog_ns
        self._last_ns = now_ns
        self.next_index = schedule.first_at_or_after(now_ns)
        self._changes = self._line.changes
        self._first, self._due_ns = 0, np.zeros(0, dtype=np.int64)  # from this index on
        self._due: list[int] = []  # the same as a list, for the binary search
        self._steady_ns = (
            0,
            0,
        )  # while now and the oldest due time lie within, credit grows at one rate
        self._per_ns = 0.0
        self._set_growth(now_ns, now_ns)
        self._credit = self._limit

    def due(self, now_ns: int) -> Due:
        """Return what to send now; then call `sent` with the number that the client accepted."""
        at = self._at()
        oldest_ns = self._due[at]
        from_ns, until_ns = self._steady_ns
        if not from_ns <= oldest_ns or not from_ns <= now_ns < until_ns:
            self._set_growth(now_ns, oldest_ns)
        credit = self._credit + (now_ns - self._last_ns) * self._per_ns
        self._credit = min(credit, self._limit)
        self._last_ns = now_ns
        skipped = 0
        if oldest_ns < now_ns - self._backlog_ns:
            oldest = self._schedule.first_at_or_after(now_ns - self._backlog_ns)
            skipped = oldest - self.next_index
            self.next_index = oldest
            at = self._at()
        waiting = bisect_right(self._due, now_ns, at) - at
        if at + waiting == len(self._due):  # more may be due than was computed
            waiting = self._schedule.first_at_or_after(now_ns + 1) - self.next_index
        return Due(min(waiting, int(self._credit)), skipped)

    def sent(self, count: int) -> None:
        self.next_index += count
        self._credit -= count

    def skip(self, until_ns: int) -> int:
        """Skip all messages due up to and at an instant; return how many there were."""
        count = max(0, self._schedule.first_at_or_after(until_ns + 1) - self.next_index)
        self.next_index += count
        return count

    def next_due_ns(self) -> int:
        """Return when the next message is due; far in the future where the rate is 0."""
        at = self._at()  # may replace self._due
        return self._due[at]

    def last_due_ns(self, until_ns: int) -> int:
        """Return the last due time up to an instant; 0 when no message is due by then."""
        at = self._at()
        after = bisect_right(self._due, until_ns, at)
        return self._due[after - 1] if after > at else 0

    def ahead_ns(self) -> NDArray[np.int64]:
        """Return the next due times, at least MIN_AHEAD of them."""
        at = self._at()
        return self._due_ns[at:]

    def _at(self) -> int:
        """Return the position of the next message in the computed due times."""
        at = self.next_index - self._first
        if not 0 <= at <= len(self._due) - MIN_AHEAD or self._line.changes != self._changes:
            self._changes = self._line.changes
            self._steady_ns = (0, 0)
            self._first, at = self.next_index, 0
            self._due_ns = self._schedule.due_many_ns(self._first, self._ahead)
            self._due = self._due_ns.tolist()
        return at

    def _set_growth(self, now_ns: int, oldest_ns: int) -> None:
        """Let credit grow by the current rate, or by the rate at the oldest due time if that is higher.

        A backlog from a stall at a high rate is sent at that rate, also after the rate has fallen.
        """
        rate = self._schedule.rate_at(now_ns)
        self._steady_ns = self._schedule.span_at(now_ns)
        if oldest_ns < self._steady_ns[0]:
            rate = max(rate, self._schedule.rate_at(oldest_ns))
        self._per_ns = float(rate) * self._catch_up_ratio / SECOND_NS
        self._limit = max(MIN_CREDIT, BURST_NS * self._per_ns)
