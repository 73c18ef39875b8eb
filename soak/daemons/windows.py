"""When the windows of a plan are due: every so often from the soak's start, or by the calendar, in UTC."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from apscheduler.triggers.base import BaseTrigger
from apscheduler.triggers.interval import IntervalTrigger

from soak.core.clock import Grid
from soak.core.plan_phases import Window
from soak.core.units import SECOND_NS
from soak.daemons import crontab

_TICK = timedelta(microseconds=1)  # what a datetime can tell apart


class Windows:
    """The windows of one soak. Triggers are asked about the run's own seconds: no clock step matters."""

    def __init__(self, windows: Sequence[Window], grid: Grid, soak_k: int) -> None:
        self._grid = grid
        self._triggers = [_trigger(window, _wall(grid, soak_k)) for window in windows]
        self._soak_k = soak_k

    def due(self, after_k: int, until_k: int) -> list[tuple[int, int]]:
        """Return (second, number of the window) of all that are due after one second and up to another."""
        found = []
        for number, trigger in enumerate(self._triggers):
            now = _wall(self._grid, max(after_k, self._soak_k)) + _TICK
            while (at := trigger.get_next_fire_time(None, now)) is not None:
                k = self._second_of(at)
                if k > until_k:
                    break
                if k > after_k:
                    found.append((k, number))
                now = at + _TICK
        return sorted(found)

    def _second_of(self, at: datetime) -> int:
        """Return the first whole second of the run at or after an instant."""
        micros = (at - _wall(self._grid, 0)) // _TICK
        return -(-micros // 1_000_000)


def refusal(window: Window) -> str:
    """Return why the calendar does not understand a window, or ""."""
    try:
        _trigger(window, datetime.fromtimestamp(0, UTC))
    except ValueError as error:
        return f"{window.cron!r} is no cron expression: {error}"
    return ""


def _trigger(window: Window, begin: datetime) -> BaseTrigger:
    if window.cron:
        return crontab.trigger(window.cron)
    every = timedelta(microseconds=window.every // 1000)
    return IntervalTrigger(seconds=every.total_seconds(), start_date=begin + every, timezone=UTC)


def _wall(grid: Grid, k: int) -> datetime:
    micros = grid.wall_of(k) * 1_000_000 // SECOND_NS
    return datetime.fromtimestamp(0, UTC) + timedelta(microseconds=micros)
