"""Catch-ups: consumers pause until a backlog has grown, then drain it; windows say when one begins."""

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
from soak.core.phases import (
    Decision,
    Phases,
    build_seconds,
    decisions_after_build,
    decisions_after_catch_up,
    decisions_after_drain,
    decisions_after_soak,
)
from soak.core.plan.phases import CatchUp, Window
from soak.core.plan.plan import Plan
from soak.core.units import SECOND_NS, format_duration, format_size
from soak.runtime import crontab

_TICK = timedelta(microseconds=1)  # what a datetime can tell apart


class WindowSchedule:
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


def cron_error(window: Window) -> str:
    """Return why the calendar does not understand a window, or ""."""
    try:
        _trigger(window, datetime.fromtimestamp(0, UTC))
    except ValueError as error:
        return f"{window.cron!r} is no cron expression: {error}"
    return ""


def _trigger(window: Window, begin: datetime) -> BaseTrigger:
    if window.cron:
        return crontab.cron_trigger(window.cron)
    every = timedelta(microseconds=window.every // 1000)
    return IntervalTrigger(seconds=every.total_seconds(), start_date=begin + every, timezone=UTC)


def _wall(grid: Grid, k: int) -> datetime:
    micros = grid.wall_of(k) * 1_000_000 // SECOND_NS
    return datetime.fromtimestamp(0, UTC) + timedelta(microseconds=micros)


# --- A catch-up: consumers pause until a backlog has grown, then read it while producers keep their rate.
# Which window it belongs to stands in its lines of `phases.jsonl`, the rest in the journals: so a conductor
# that starts anew goes on with the part that it finds.

DRAINED_SECONDS = 2.0
"""A backlog of no more than so much load is gone: as of a consumer that was started anew."""
MIN_DRAIN_SECONDS = 10
"""A window that leaves less than this for reading, before the soak ends, is not worth beginning."""

MIN_OBSERVED_SECONDS = 2
"""Consumers have read on for so long before their backlog is looked at."""

_NO_DRAIN = "the consumers do not get through at this load: the load must give way"


def window_decisions(plan: Plan, phases: Phases, number: int, from_k: int) -> tuple[Decision, ...]:
    """Return the catch-up of a window from second `from_k` on, and all that follows."""
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
    """Return why a window cannot begin in second `from_k`, when `rate` is sent a second, or ""."""
    if phases.at(from_k) != "soak":
        return f"falls into {phases.at(from_k)}"
    catch_up = plan.phases.windows[number].catch_up
    built_k = from_k + growth_seconds(plan, catch_up, rate)
    too_late = built_k > latest_drain_k(plan, phases, catch_up)
    return "too close to the end of the soak" if too_late else ""


def growth_seconds(plan: Plan, catch_up: CatchUp, rate: float) -> int:
    """Return how long a backlog grows at a rate of messages a second: to its age, or sooner to its size."""
    longest = build_seconds(catch_up)
    bytes_a_second = rate * plan.load.mean_size
    if not catch_up.backlog_size or bytes_a_second * longest <= catch_up.backlog_size:
        return longest
    return math.ceil(catch_up.backlog_size / bytes_a_second)


def latest_drain_k(plan: Plan, phases: Phases, catch_up: CatchUp) -> int:
    """Return the last second in which a window's consumers may read on, so that the soak leaves them time."""
    return soak_end_k(plan, phases) - MIN_DRAIN_SECONDS - catch_up.settle // SECOND_NS


def never_begins(plan: Plan, window: Window) -> bool:
    """True when the soak is too short for even the first of these windows, at the plan's own rate."""
    needed = growth_seconds(plan, window.catch_up, float(plan.load.rate)) + MIN_DRAIN_SECONDS
    return window.every + needed * SECOND_NS + window.catch_up.settle > plan.phases.soak


def decide(
    plan: Plan, phases: Phases, k: int, ahead_k: int, backlog: Backlog, rate: float
) -> tuple[Decision, ...]:
    """Return what follows in second k of a catch-up, from second `ahead_k` on; nothing while it goes on.

    `rate` is what is sent a second by now.
    """
    current = phases.decision_at(k)
    if current is None or current.phase != "catch-up":
        return ()
    if current.part == "build":
        waiting = backlog.left() + rate * (ahead_k - k)  # by the time at which it is read
        return _built(plan, phases, current, ahead_k, round(waiting))
    left = backlog.left(current.from_k)
    backlog.note(k, left)
    seconds = k - current.from_k
    messages = round(backlog.built)
    outcome = _outcome(plan, phases, current, ahead_k, backlog, left, DRAINED_SECONDS * rate)
    if not outcome or seconds < MIN_OBSERVED_SECONDS:
        return ()
    reason = {
        "drained": f"{messages} messages were read in {seconds} s",
        "never drains": f"after {seconds} s {left:.0f} of {messages} messages are left, and {_NO_DRAIN}",
        "cut short": f"the soak ends after {seconds} s, with {left:.0f} of {messages} messages left",
    }[outcome]
    found: dict[str, str | int | float] = {"outcome": outcome, "seconds": seconds}
    found |= {"messages": messages, "left": round(left)}
    settled_k, settle = decisions_after_drain(_config(plan, current), ahead_k)
    first, *others = _with_following(plan, phases, current, settle, settled_k)
    return (replace(first, reason=reason, fields={**current.fields, **found}), *others)


def _built(
    plan: Plan, phases: Phases, current: Decision, from_k: int, messages: int
) -> tuple[Decision, ...]:
    """Return the drain once the backlog is as large or as old as the plan wants it."""
    catch_up = _config(plan, current)
    size = round(messages * plan.load.mean_size)
    is_large = bool(catch_up.backlog_size) and size >= catch_up.backlog_size
    latest_k = current.from_k + build_seconds(catch_up)
    if "window" in current.fields:
        latest_k = min(latest_k, latest_drain_k(plan, phases, catch_up))
    if not is_large and from_k < latest_k:
        return ()
    text = format_size(size // 1024 * 1024)
    reason = f"some {messages} messages, {text}, wait after {from_k - current.from_k} s"
    settled_k, (drain, *settle) = decisions_after_build(catch_up, from_k)
    drain = replace(drain, reason=reason, fields=current.fields)
    return _with_following(plan, phases, current, (drain, *settle), settled_k)


def _outcome(
    plan: Plan,
    phases: Phases,
    current: Decision,
    ahead_k: int,
    backlog: Backlog,
    left: float,
    goal: float,
) -> str:
    limit_k = current.from_k + _config(plan, current).drain_limit // SECOND_NS
    if left <= goal:
        return "drained"
    if ahead_k >= limit_k or backlog.never_drains(goal, limit_k):
        return "never drains"
    is_over = "window" in current.fields and ahead_k >= soak_end_k(plan, phases)
    return "cut short" if is_over else ""


def _with_following(
    plan: Plan,
    phases: Phases,
    current: Decision,
    lines: tuple[Decision, ...],
    settled_k: int,
) -> tuple[Decision, ...]:
    """Return these lines and what follows them: the soak after a window, the end after the last catch-up."""
    if "window" in current.fields:
        return _within_soak(plan, phases, (*lines, Decision("soak", settled_k)))
    return (*lines, *decisions_after_catch_up(plan.phases, settled_k))


def _within_soak(plan: Plan, phases: Phases, lines: tuple[Decision, ...]) -> tuple[Decision, ...]:
    end_k = soak_end_k(plan, phases)
    kept = tuple(one for one in lines if one.from_k < end_k)
    return (*kept, *decisions_after_soak(plan.phases, end_k))


def soak_end_k(plan: Plan, phases: Phases) -> int:
    """Return the first second after the soak; windows do not make it longer."""
    return (phases.first_k("soak") or 0) + plan.phases.soak // SECOND_NS


def _config(plan: Plan, current: Decision) -> CatchUp:
    number = current.fields.get("window")
    config = plan.phases.catch_up if number is None else plan.phases.windows[int(number)].catch_up
    if config is None:
        raise SoakError(f"second {current.from_k} begins a catch-up that the plan does not name")
    return config


def _of_window(line: Decision, number: int) -> Decision:
    return replace(line, fields={"window": number}) if line.phase == "catch-up" else line
