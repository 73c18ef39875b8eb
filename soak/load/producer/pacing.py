"""Pacing: which messages are due now, with a bounded catch-up after a stall, and the rates ahead of the clock."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from soak.core.clock import Grid
from soak.core.phases import Phases
from soak.core.plan.load import Load
from soak.core.plan.plan import Plan
from soak.core.plan.rates import Point, rates_between
from soak.core.schedule import Schedule
from soak.core.units import SECOND_NS
from soak.runtime.context import Context
from soak.store.run_folder import RunFolder, profile_path, read_profile

BURST_NS = SECOND_NS // 20  # credit is kept for 50 ms at most, so a stall is not paid back at once
MIN_CREDIT = 2.0  # messages: at a rate so low that 50 ms have none, who was late once stays on time
AHEAD, MIN_AHEAD = 4096, 256  # due times that are worked out at once, and that there are always


@dataclass(slots=True)
class Due:
    """So many messages from `next_index` on go out now; `missed` before them are given up."""

    count: int
    missed: int


class Pacer:
    """Walks along the schedule; exact integers, so that nothing is sent twice or forgotten.

    The schedule may be extended while it walks, always beyond the present. Due times are worked out ahead:
    it is asked thousands of times a second, and numpy makes thousands for little more than four.
    """

    def __init__(
        self,
        schedule: Schedule,
        catch_up_ratio: float,
        backlog_ns: int,
        now_ns: int,
        ahead: int = AHEAD,
    ) -> None:
        """`ahead`: so many due times are worked out at once, at least twice LEAST_AHEAD."""
        self._schedule = schedule
        self._line = schedule.line
        self._ahead = ahead
        self._catch_up_ratio = catch_up_ratio
        self._backlog_ns = backlog_ns
        self._last_ns = now_ns
        self.next_index = schedule.first_at_or_after(now_ns)
        self._changes = self._line.changes
        self._first, self._due_ns = 0, np.zeros(0, dtype=np.int64)  # from this index on
        self._due: list[int] = []  # the same, to be searched
        self._steady_ns = (0, 0)  # while now and what is owed lie in here, credit grows alike
        self._per_ns = 0.0
        self._grow(now_ns, now_ns)
        self._credit = self._limit

    def due(self, now_ns: int) -> Due:
        """Return what to send now, without taking it: call `sent` for what the client took."""
        at = self._at()
        oldest_ns = self._due[at]
        from_ns, until_ns = self._steady_ns
        if not from_ns <= oldest_ns or not from_ns <= now_ns < until_ns:
            self._grow(now_ns, oldest_ns)
        credit = self._credit + (now_ns - self._last_ns) * self._per_ns
        self._credit = min(credit, self._limit)
        self._last_ns = now_ns
        missed = 0
        if oldest_ns < now_ns - self._backlog_ns:
            oldest = self._schedule.first_at_or_after(now_ns - self._backlog_ns)
            missed = oldest - self.next_index
            self.next_index = oldest
            at = self._at()
        waiting = bisect_right(self._due, now_ns, at) - at
        if at + waiting == len(self._due):  # more may be due than was worked out
            waiting = self._schedule.first_at_or_after(now_ns + 1) - self.next_index
        return Due(min(waiting, int(self._credit)), missed)

    def sent(self, count: int) -> None:
        self.next_index += count
        self._credit -= count

    def give_up(self, until_ns: int) -> int:
        """Skip all that was due up to and at an instant; return how many were not sent."""
        left = max(0, self._schedule.first_at_or_after(until_ns + 1) - self.next_index)
        self.next_index += left
        return left

    def next_due_ns(self) -> int:
        """Return when the next message is due; far away where the rate is 0."""
        at = self._at()  # may work out new ones
        return self._due[at]

    def last_due_ns(self, until_ns: int) -> int:
        """Return when the last message is due that is due until then; 0 where none is."""
        at = self._at()
        after = bisect_right(self._due, until_ns, at)
        return self._due[after - 1] if after > at else 0

    def ahead_ns(self) -> NDArray[np.int64]:
        """Return when the next messages are due, at least LEAST_AHEAD of them."""
        at = self._at()
        return self._due_ns[at:]

    def _at(self) -> int:
        """Return where the next message stands in what was worked out."""
        at = self.next_index - self._first
        if not 0 <= at <= len(self._due) - MIN_AHEAD or self._line.changes != self._changes:
            self._changes = self._line.changes
            self._steady_ns = (0, 0)
            self._first, at = self.next_index, 0
            self._due_ns = self._schedule.due_many_ns(self._first, self._ahead)
            self._due = self._due_ns.tolist()
        return at

    def _grow(self, now_ns: int, oldest_ns: int) -> None:
        """Let credit grow by the rate of now, or of when the oldest message was due.

        What a stall at a high rate left behind goes out at that rate, also when the rate has fallen since.
        """
        rate = self._schedule.rate_at(now_ns)
        self._steady_ns = self._schedule.span_at(now_ns)
        if oldest_ns < self._steady_ns[0]:
            rate = max(rate, self._schedule.rate_at(oldest_ns))
        self._per_ns = float(rate) * self._catch_up_ratio / SECOND_NS
        self._limit = max(MIN_CREDIT, BURST_NS * self._per_ns)


# --- Keeps a producer's schedule ahead of the clock: fills in what phases and profile say as it nears.

AHEAD_SECONDS = 120
"""Rates are filled in this far ahead; what lies beyond them is taken to go on at the last one."""


class RatePlan:
    """One process's share of the load; `follow` once a second."""

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
        """Take in what was decided; what is past stays as it was sent."""
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


def rate_plan_of(context: Context, index: int) -> RatePlan:
    """Return the load of producer process `index` of a run.

    Raises:
        PlanError: the run's copy of the profile's file cannot be read.
    """
    plan = context.plan
    table = rate_table(plan, context.folder)
    return RatePlan(plan.load, table, context.grid, index, plan.load.producers)


def rate_table(plan: Plan, folder: RunFolder) -> tuple[Point, ...]:
    """Return the rates of the profile's file, of which the run has a copy; none where there is no file."""
    return read_profile(profile_path(folder)) if plan.load.profile.file else ()
