"""Keeps a producer's schedule ahead of the clock: fills in what phases and profile say as it nears."""

from __future__ import annotations

from collections.abc import Sequence

from soak.core.clock import Grid
from soak.core.load_rates import rates
from soak.core.phases import Phases
from soak.core.plan import Plan
from soak.core.plan_load import Load
from soak.core.profile import Point
from soak.core.schedule import Schedule
from soak.daemons.context import Context
from soak.store.profile_file import kept_profile, read_profile
from soak.store.run_folder import RunFolder

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
        for second, rate in rates(self._load, phases, self._table, self._filled_k, last_k):
            self.schedule.extend(self._grid.start_of(second), rate)
        self._filled_k = last_k
        self.schedule.forget(self._grid.start_of(k) - self._load.backlog)


def rate_plan_of(context: Context, index: int) -> RatePlan:
    """Return the load of producer process `index` of a run.

    Raises:
        PlanError: the run's copy of the profile's file cannot be read.
    """
    plan = context.plan
    table = table_of(plan, context.folder)
    return RatePlan(plan.load, table, context.grid, index, plan.load.producers)


def table_of(plan: Plan, folder: RunFolder) -> tuple[Point, ...]:
    """Return the rates of the profile's file, of which the run has a copy; none where there is no file."""
    return read_profile(kept_profile(folder)) if plan.load.profile.file else ()
