"""When the windows of a plan are due."""

from __future__ import annotations

import pytest

from soak.conductor.catch_up import WindowSchedule, cron_error, never_begins
from soak.core.clock import Grid
from soak.core.plan.phases import CatchUp, Window
from soak.core.units import SECOND_NS
from tests.support.load.conductor_run import plan_of


@pytest.mark.parametrize(
    ("every", "backlog", "is_never"),
    [
        # 174 s, then 10 s to grow, 10 s to read and 6 s to settle: 200 s.
        ("174s", "backlog_age: 10s", False),
        ("175s", "backlog_age: 10s", True),
        ("174s", "backlog_size: 1000KiB", False),
        ("175s", "backlog_size: 1000KiB", True),
        ("60s", "backlog_age: 125s", True),
    ],
)
def test_a_window_that_never_fits_into_the_soak_is_known_beforehand(
    every: str, backlog: str, *, is_never: bool
) -> None:
    plan = plan_of(
        f"{{soak: 200s, windows: [{{every: {every}, catch_up: {{{backlog}, settle: 6s}}}}]}}"
    )

    assert never_begins(plan, plan.phases.windows[0]) == is_never


GRID = Grid(1_790_000_000 * SECOND_NS + 123_456_789, 0)  # 2026-09-21T14:13:20.123Z


ANY = CatchUp(backlog_age=10 * SECOND_NS)


def test_windows_count_from_the_start_of_the_soak() -> None:
    windows = WindowSchedule([Window(catch_up=ANY, every=600 * SECOND_NS)], GRID, 100)

    assert windows.due(0, 1900) == [(700, 0), (1300, 0), (1900, 0)]
    assert windows.due(700, 1299) == []


def test_a_cron_window_is_due_in_utc() -> None:
    """From 14:13:20.12 it is 2,799.88 s to 15:00; the window is due in the second that begins after it."""
    windows = WindowSchedule([Window(catch_up=ANY, cron="0 * * * *")], GRID, 0)

    assert windows.due(0, 8000) == [(2800, 0), (6400, 0)]


def test_each_window_is_due_once_whatever_the_steps() -> None:
    plans = [Window(catch_up=ANY, every=37 * SECOND_NS), Window(catch_up=ANY, cron="* * * * *")]
    windows = WindowSchedule(plans, GRID, 3)

    piecewise = [found for k in range(1000) for found in windows.due(k - 1, k)]

    assert piecewise == windows.due(-1, 999)
    assert len(piecewise) == 996 // 37 + 16


def test_a_bad_cron_expression_is_reported() -> None:
    assert cron_error(Window(catch_up=ANY, cron="0 */6 * * *")) == ""
    assert "'hourly' is not a cron expression" in cron_error(Window(catch_up=ANY, cron="hourly"))
