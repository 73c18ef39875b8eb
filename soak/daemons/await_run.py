"""Waits until a run of a plan is announced that this host can join."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from soak.core.announcement import EVERY_NS, Announcement
from soak.core.ports import Clock
from soak.core.units import SECOND_NS
from soak.daemons.listening import Listening
from soak.service.notify import Notifier

LOG = logging.getLogger("soak.daemons.await_run")
POLL_SECONDS = 0.5
ALL_HEARD_NS = EVERY_NS + 2 * SECOND_NS
"""So long after the first word of a run every other one that goes on has been announced, too."""
MOST_SKEW_NS = 2 * SECOND_NS


def await_run(
    listening: Listening,
    may_join: Callable[[Announcement], bool],
    stop: threading.Event,
    manager: Notifier,
    clock: Clock,
    meanwhile: Callable[[], None] = lambda: None,
) -> Announcement | None:
    """Return what was last said of the newest run that goes on, or None when told to stop."""
    heard: dict[str, Announcement] = {}
    known: set[str] = set()
    decide_ns = 0
    while not stop.is_set():
        manager.alive()
        meanwhile()
        for one in listening.hear(POLL_SECONDS):
            can_join = may_join(one)
            if one.run_id not in known:
                known.add(one.run_id)
                _say_what_is_odd(one, clock, can_join=can_join)
            if can_join and one.goes_on(clock.wall_ns()):
                decide_ns = decide_ns or clock.mono_ns() + ALL_HEARD_NS
                heard[one.run_id] = one
            else:
                heard.pop(one.run_id, None)
        if heard and clock.mono_ns() >= decide_ns:
            return _chosen(heard)
        if not heard:
            decide_ns = 0
        if not listening.is_open:
            clock.sleep_until(clock.mono_ns() + int(POLL_SECONDS * SECOND_NS))
    return None


def _chosen(heard: dict[str, Announcement]) -> Announcement:
    newest = max(heard.values(), key=lambda one: one.order)
    if len(heard) > 1:
        LOG.warning("many_runs_of_one_plan runs=%s joined=%s", sorted(heard), newest.run_id)
    return newest


def _say_what_is_odd(one: Announcement, clock: Clock, *, can_join: bool) -> None:
    if not can_join:
        LOG.error("run_not_joined run=%s: its folder here holds another run of that id", one.run_id)
    skew_ns = clock.wall_ns() - one.said_wall_ns
    if abs(skew_ns) > MOST_SKEW_NS:
        LOG.error(
            "clocks_differ run=%s seconds=%.1f: what is recorded here is that much off its seconds",
            one.run_id,
            skew_ns / SECOND_NS,
        )
