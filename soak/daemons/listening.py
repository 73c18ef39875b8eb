"""Listens for a plan's runs: opens the topic when it can, and anew when nothing is said for a minute.

The client does not tell that a topic was deleted, and after an outage it would begin with what is old.
"""

from __future__ import annotations

import logging
from typing import Protocol

from soak.core.announcement import Announcement
from soak.core.errors import BrokerError
from soak.core.ports import Clock
from soak.core.units import SECOND_NS

LOG = logging.getLogger("soak.daemons.listening")
SILENCE_NS = 60 * SECOND_NS
FIRST_WAIT_NS, LONGEST_WAIT_NS = SECOND_NS, 30 * SECOND_NS
MOST_OTHERS = 20  # plans that are told of: a topic may serve a fleet


class Runs(Protocol):
    """Where runs are announced; see `AnnouncedRuns`."""

    def open(self) -> None: ...
    def take(self, timeout_seconds: float) -> list[Announcement]: ...
    def close(self) -> None: ...


class Listening:
    """Call `hear` over and over."""

    def __init__(self, runs: Runs, plan: str, clock: Clock) -> None:
        self._runs = runs
        self._plan = plan
        self._clock = clock
        self._wait_ns = 0  # after a failure; 0: all is well
        self._again_ns = 0
        self._heard_ns = 0
        self._said = ""
        self._others: set[str] = set()
        self.is_open = False

    def hear(self, timeout_seconds: float) -> list[Announcement]:
        """Return what was said of this plan; at once, and nothing, while the cluster does not answer."""
        now_ns = self._clock.mono_ns()
        if self.is_open and now_ns - self._heard_ns >= SILENCE_NS:
            self.is_open, self._again_ns = False, now_ns
        if not self.is_open and (now_ns < self._again_ns or not self._opened()):
            return []
        every = self._runs.take(timeout_seconds)
        found = [one for one in every if one.plan == self._plan]
        self._tell_others({one.plan for one in every} - {self._plan})
        if found:
            self._heard_ns = self._clock.mono_ns()
        return found

    def close(self) -> None:
        self._runs.close()

    def _tell_others(self, plans: set[str]) -> None:
        """Say once whose runs are not meant: a name may be misspelt."""
        for plan in sorted(plans - self._others)[: MOST_OTHERS - len(self._others)]:
            LOG.info("other_plan_announced plan=%.100s waiting_for=%s", plan, self._plan)
            self._others.add(plan)

    def _opened(self) -> bool:
        try:
            self._runs.open()
        except BrokerError as error:
            if str(error) != self._said:
                LOG.warning("runs_not_heard error=%s", error)
            self._said = str(error)
            self._wait_ns = min(2 * self._wait_ns or FIRST_WAIT_NS, LONGEST_WAIT_NS)
            self._again_ns = self._clock.mono_ns() + self._wait_ns
            return False
        self.is_open, self._wait_ns, self._said = True, 0, ""
        self._heard_ns = self._clock.mono_ns()
        return True
