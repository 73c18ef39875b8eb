"""Announce a run on the samples topic, listen for announcements, and follow the announced run until it ends."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

from soak.core.clock import Grid
from soak.core.errors import BrokerError
from soak.core.plan.phases import decision_line
from soak.core.ports import Clock
from soak.core.retry import Backoff, Once, Retry
from soak.core.units import SECOND_NS
from soak.runtime.context import PhaseFile
from soak.service.files import write_atomically
from soak.store.run_announcements import ANNOUNCE_PERIOD_NS, Announcement
from soak.store.run_folder import Run, RunFolder

# --- Says every few seconds which run goes on here, so that hosts which only probe join it and end with it.


class AnnouncementTarget(Protocol):
    """What says it; see `Announcer`."""

    def say(self, announcement: Announcement) -> None: ...
    def close(self) -> None: ...


class RunAnnouncer:
    """Call `poll` as often as you like."""

    def __init__(
        self, voice: AnnouncementTarget, run: Run, phase_file: PhaseFile, grid: Grid, clock: Clock
    ) -> None:
        self._voice = voice
        self._run = run
        self._phase_file = phase_file
        self._grid = grid
        self._clock = clock
        self._due_ns = clock.mono_ns()

    def poll(self) -> None:
        """Say it when it is time to."""
        now_ns = self._clock.mono_ns()
        if now_ns >= self._due_ns:
            self._due_ns = now_ns + ANNOUNCE_PERIOD_NS
            self._voice.say(self._now())

    def close(self) -> None:
        """Say it a last time: whoever ends the run has decided by now."""
        self._voice.say(self._now())
        self._voice.close()

    def _now(self) -> Announcement:
        end_k = self._phase_file.poll().end_k
        k = self._grid.k_at(self._clock.mono_ns())
        is_over = end_k is not None and k >= end_k
        run, now_ns = self._run, self._clock.wall_ns()
        return Announcement(run.name, run.id, run.start_wall_ns, end_k, is_over, now_ns)


# --- Listens for a plan's runs: opens the topic when it can, and anew when nothing is said for a minute.
# The client does not tell that a topic was deleted, and after an outage it would begin with what is old.

LOG = logging.getLogger("soak.shipping.announcements")
SILENCE_NS = 60 * SECOND_NS
OPEN_BACKOFF = Backoff(SECOND_NS, 30 * SECOND_NS)
MAX_OTHER_PLANS = 20  # plans that are told of: a topic may serve a fleet


class AnnouncementSource(Protocol):
    """Where runs are announced; see `AnnouncedRuns`."""

    def open(self) -> None: ...
    def take(self, timeout_seconds: float) -> list[Announcement]: ...
    def close(self) -> None: ...


class AnnouncementListener:
    """Call `hear` over and over."""

    def __init__(self, runs: AnnouncementSource, plan: str, clock: Clock) -> None:
        self._runs = runs
        self._plan = plan
        self._clock = clock
        self._retry = Retry(OPEN_BACKOFF)
        self._heard_ns = 0
        self._errors = Once()
        self._others: set[str] = set()
        self.is_open = False

    def hear(self, timeout_seconds: float) -> list[Announcement]:
        """Return what was said of this plan; at once, and nothing, while the cluster does not answer."""
        now_ns = self._clock.mono_ns()
        if self.is_open and now_ns - self._heard_ns >= SILENCE_NS:
            self.is_open, self._retry.due_ns = False, now_ns
        if not self.is_open and not (self._retry.is_due(now_ns) and self._opened()):
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
        for plan in sorted(plans - self._others)[: MAX_OTHER_PLANS - len(self._others)]:
            LOG.info("other_plan_announced plan=%.100s waiting_for=%s", plan, self._plan)
            self._others.add(plan)

    def _opened(self) -> bool:
        try:
            self._runs.open()
        except BrokerError as error:
            if self._errors.is_new(str(error)):
                LOG.warning("runs_not_heard error=%s", error)
            self._retry.note_failure(self._clock.mono_ns())
            return False
        self.is_open = True
        self._retry.note_success()
        self._errors.clear()
        self._heard_ns = self._clock.mono_ns()
        return True


# --- Ends what a host that only probes records when the run that it joined is over, by what is said of
# that run.
# It is over by its plan's end, when a newer run of the plan goes on, or when nothing was said of it for
# an hour
# in which the topic could be read: nobody receives it, and when somebody does again, it is joined again.

ABANDONED_NS = 3600 * SECOND_NS


class RunFollower:
    """Call `poll` about once a second; the end goes into `phases.jsonl`, which the probe daemon reads."""

    def __init__(
        self,
        folder: RunFolder,
        run: Run,
        listening: AnnouncementListener,
        may_join: Callable[[Announcement], bool],
        grid: Grid,
        clock: Clock,
    ) -> None:
        self._folder = folder
        self._run = run
        self._listening = listening
        self._may_join = may_join
        self._grid = grid
        self._clock = clock
        self._end_k = PhaseFile(folder.phases).poll().end_k
        self._heard_ns = clock.mono_ns()

    def poll(self) -> None:
        """Take in what was said since the last call; waits for nothing but a cluster that is away."""
        found = self._listening.hear(0.0)
        now_ns = self._clock.mono_ns()
        if not self._listening.is_open:  # then silence tells nothing
            self._heard_ns = now_ns
        for one in found:
            self._take(one, now_ns)
        if now_ns - self._heard_ns >= ABANDONED_NS:
            self._leave("nobody has received it for an hour")

    def close(self) -> None:
        self._listening.close()

    def _take(self, one: Announcement, now_ns: int) -> None:
        run = self._run
        if one.run_id == run.id:
            if one.start_wall_ns == run.start_wall_ns:
                self._heard_ns = now_ns
                self._follow(one)
        elif (
            one.order > (run.start_wall_ns, run.id)
            and one.goes_on(self._clock.wall_ns())
            and self._may_join(one)
        ):
            self._leave(f"run {one.run_id} of the same plan goes on, which is newer")

    def _follow(self, one: Announcement) -> None:
        if one.is_over:
            self._leave("it is over")
        elif one.end_k is not None:
            self._end_at(one.end_k, "announced")

    def _leave(self, why: str) -> None:
        self._end_at(max(0, self._grid.k_at(self._clock.mono_ns())), why)

    def _end_at(self, k: int, why: str) -> None:
        """Write the end, unless it is past: what cannot be written is tried with the next word."""
        is_past = self._end_k is not None and self._end_k <= self._grid.k_at(self._clock.mono_ns())
        if is_past or k == self._end_k:
            return
        try:
            write_atomically(self._folder.phases, decision_line("end", k, why))
        except OSError as error:
            LOG.warning("end_not_written error=%s", error)
            return
        LOG.info("run_ends_here run=%s k=%d why=%s", self._run.id, k, why)
        self._end_k = k
