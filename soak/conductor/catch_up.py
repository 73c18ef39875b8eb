"""Catch-ups: consumers pause until a backlog has grown, then drain it; windows say when one begins.

The number of the window is kept in `phases.jsonl`, all other state in the journals, so that a restarted
conductor continues.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from apscheduler.triggers.base import BaseTrigger
from apscheduler.triggers.interval import IntervalTrigger

from soak.conductor.load_records import Backlog
from soak.core.clock import Grid
from soak.core.errors import SoakError
from soak.core.plan.phases import (
    CatchUp,
    Decision,
    Phases,
    Window,
    build_seconds,
    decisions_after_build,
    decisions_after_catch_up,
    decisions_after_drain,
    decisions_after_soak,
)
from soak.core.plan.plan import Plan
from soak.core.units import SECOND_NS, format_duration, format_size
from soak.runtime.crontab import cron_trigger

DRAINED_SECONDS = 2.0
"""A backlog of so many seconds of load counts as drained: a restarted consumer has as much."""
MIN_DRAIN_SECONDS = 10
"""A window begins only if the soak leaves consumers at least so long to read."""
MIN_OBSERVED_SECONDS = 2
"""The backlog is judged once consumers have read for so long."""

_TICK = timedelta(microseconds=1)  # the resolution of a datetime


class WindowSchedule:
    """The windows of one soak, in seconds of the run: clock steps do not matter."""

    def __init__(self, windows: Sequence[Window], grid: Grid, soak_k: int) -> None:
        self._grid = grid
        self._triggers = [_trigger(window, _wall(grid, soak_k)) for window in windows]
        self._soak_k = soak_k

    def due(self, after_k: int, until_k: int) -> list[tuple[int, int]]:
        """Return (second, number of the window) of all windows due after one second and up to another."""
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


def cron_error(window: Window) -> str:
    """Return what is wrong with a window's cron expression, or ""."""
    try:
        _trigger(window, datetime.fromtimestamp(0, UTC))
    except ValueError as error:
        return f"{window.cron!r} is not a cron expression: {error}"
    return ""


def _trigger(window: Window, begin: datetime) -> BaseTrigger:
    if window.cron:
        return cron_trigger(window.cron)
    every = timedelta(microseconds=window.every // 1000)
    return IntervalTrigger(seconds=every.total_seconds(), start_date=begin + every, timezone=UTC)


def _wall(grid: Grid, k: int) -> datetime:
    micros = grid.wall_of(k) * 1_000_000 // SECOND_NS
    return datetime.fromtimestamp(0, UTC) + timedelta(microseconds=micros)


def window_decisions(plan: Plan, phases: Phases, number: int, from_k: int) -> tuple[Decision, ...]:
    """Return the catch-up of a window that begins in second `from_k`, and all that follows."""
    window = plan.phases.windows[number]
    when = window.cron or f"every {format_duration(window.every)}"
    build = Decision("catch-up", from_k, f"window: {when}", "build", fields={"window": number})
    drain_k = min(
        from_k + build_seconds(window.catch_up), latest_drain_k(plan, phases, window.catch_up)
    )
    settled_k, following = decisions_after_build(window.catch_up, drain_k)
    following = tuple(_of_window(one, number) for one in following)
    return _within_soak(plan, phases, (build, *following, Decision("soak", settled_k)))


def window_refusal(plan: Plan, phases: Phases, number: int, from_k: int, rate: float) -> str:
    """Return why a window cannot begin in second `from_k` at a rate of messages a second, or ""."""
    if phases.at(from_k) != "soak":
        return f"falls into {phases.at(from_k)}"
    catch_up = plan.phases.windows[number].catch_up
    built_k = from_k + growth_seconds(plan, catch_up, rate)
    is_too_late = built_k > latest_drain_k(plan, phases, catch_up)
    return "too close to the end of the soak" if is_too_late else ""


def growth_seconds(plan: Plan, catch_up: CatchUp, rate: float) -> int:
    """Return how long a backlog grows at a rate of messages a second until it has its age or its size."""
    longest = build_seconds(catch_up)
    bytes_per_second = rate * plan.load.mean_size
    if not catch_up.backlog_size or bytes_per_second * longest <= catch_up.backlog_size:
        return longest
    return math.ceil(catch_up.backlog_size / bytes_per_second)


def latest_drain_k(plan: Plan, phases: Phases, catch_up: CatchUp) -> int:
    """Return the last second in which consumers may resume so that the soak leaves them time to read."""
    return soak_end_k(plan, phases) - MIN_DRAIN_SECONDS - catch_up.settle // SECOND_NS


def never_begins(plan: Plan, window: Window) -> bool:
    """Return whether the soak is too short for the first of these windows, at the plan's rate."""
    needed = growth_seconds(plan, window.catch_up, float(plan.load.rate)) + MIN_DRAIN_SECONDS
    return window.every + needed * SECOND_NS + window.catch_up.settle > plan.phases.soak


def decide(
    plan: Plan, phases: Phases, k: int, ahead_k: int, backlog: Backlog, rate: float
) -> tuple[Decision, ...]:
    """Return the decisions of second k of a catch-up, in effect from second `ahead_k`; none while it goes on.

    `rate` is the current rate in messages a second.
    """
    current = phases.decision_at(k)
    if current is None or current.phase != "catch-up":
        return ()
    if current.part == "build":
        messages = backlog.remaining() + rate * (ahead_k - k)  # when consumers resume
        return _built(plan, phases, current, ahead_k, round(messages))
    remaining = backlog.remaining(current.from_k)
    backlog.note(k, remaining)
    seconds = k - current.from_k
    built = round(backlog.built)
    goal = DRAINED_SECONDS * rate
    outcome = _outcome(plan, phases, current, ahead_k, backlog, remaining, goal)
    if not outcome or seconds < MIN_OBSERVED_SECONDS:
        return ()
    unread = f"{remaining:.0f} of {built} messages are unread"
    reason = {
        "drained": f"{built} messages were read in {seconds} s",
        "never drains": f"{unread} after {seconds} s: consumers are too slow at this load; reduce the rate",
        "cut short": f"{unread} after {seconds} s, when the soak ends",
    }[outcome]
    found: dict[str, str | int | float] = {"outcome": outcome, "seconds": seconds}
    found |= {"messages": built, "left": round(remaining)}
    settled_k, settle = decisions_after_drain(_config(plan, current), ahead_k)
    first, *others = _with_following(plan, phases, current, settle, settled_k)
    return (replace(first, reason=reason, fields={**current.fields, **found}), *others)


def _built(
    plan: Plan, phases: Phases, current: Decision, from_k: int, messages: int
) -> tuple[Decision, ...]:
    """Return the drain once the backlog has the size or the age of the plan."""
    catch_up = _config(plan, current)
    size = round(messages * plan.load.mean_size)
    is_large = bool(catch_up.backlog_size) and size >= catch_up.backlog_size
    latest_k = current.from_k + build_seconds(catch_up)
    if "window" in current.fields:
        latest_k = min(latest_k, latest_drain_k(plan, phases, catch_up))
    if not is_large and from_k < latest_k:
        return ()
    text = format_size(size // 1024 * 1024)
    reason = f"about {messages} messages, {text}, are unread after {from_k - current.from_k} s"
    settled_k, (drain, *settle) = decisions_after_build(catch_up, from_k)
    drain = replace(drain, reason=reason, fields=current.fields)
    return _with_following(plan, phases, current, (drain, *settle), settled_k)


def _outcome(
    plan: Plan,
    phases: Phases,
    current: Decision,
    ahead_k: int,
    backlog: Backlog,
    remaining: float,
    goal: float,
) -> str:
    limit_k = current.from_k + _config(plan, current).drain_limit // SECOND_NS
    if remaining <= goal:
        return "drained"
    if ahead_k >= limit_k or backlog.never_drains(goal, limit_k):
        return "never drains"
    is_over = "window" in current.fields and ahead_k >= soak_end_k(plan, phases)
    return "cut short" if is_over else ""


def _with_following(
    plan: Plan,
    phases: Phases,
    current: Decision,
    decisions: tuple[Decision, ...],
    settled_k: int,
) -> tuple[Decision, ...]:
    """Add what follows: the soak after a window, the end of the run after the last catch-up."""
    if "window" in current.fields:
        return _within_soak(plan, phases, (*decisions, Decision("soak", settled_k)))
    return (*decisions, *decisions_after_catch_up(plan.phases, settled_k))


def _within_soak(
    plan: Plan, phases: Phases, decisions: tuple[Decision, ...]
) -> tuple[Decision, ...]:
    end_k = soak_end_k(plan, phases)
    kept = tuple(one for one in decisions if one.from_k < end_k)
    return (*kept, *decisions_after_soak(plan.phases, end_k))


def soak_end_k(plan: Plan, phases: Phases) -> int:
    """Return the first second after the soak; windows do not make it longer."""
    return (phases.first_k("soak") or 0) + plan.phases.soak // SECOND_NS


def _config(plan: Plan, current: Decision) -> CatchUp:
    number = current.fields.get("window")
    config = plan.phases.catch_up if number is None else plan.phases.windows[int(number)].catch_up
    if config is None:
        raise SoakError(
            f"phases.jsonl begins a catch-up in second {current.from_k}, but the plan has none"
        )
    return config


def _of_window(decision: Decision, number: int) -> Decision:
    return (
        replace(decision, fields={"window": number}) if decision.phase == "catch-up" else decision
    )
