"""Announce a run on the samples topic, listen for announcements, and follow the announced run to its end."""

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
from soak.store.run_announcements import ANNOUNCE_PERIOD_NS, MAX_PHASES, Announcement
from soak.store.run_folder import Run, RunFolder

LOG = logging.getLogger(__name__)
REOPEN_NS = 60 * SECOND_NS
"""A topic without announcements is opened again: the client does not report that a topic was deleted."""
OPEN_BACKOFF = Backoff(max_ns=30 * SECOND_NS)
MAX_OTHER_PLANS = 20  # that are logged: a topic may serve a fleet
ABANDONED_NS = 3600 * SECOND_NS


class AnnouncementTarget(Protocol):
    """Where announcements go; see `AnnouncementWriter`."""

    def send(self, announcement: Announcement) -> None: ...
    def close(self) -> None: ...


class RunAnnouncer:
    """Announces a run every few seconds, so that probe hosts join it and end with it."""

    def __init__(
        self,
        target: AnnouncementTarget,
        run: Run,
        phase_file: PhaseFile,
        grid: Grid,
        clock: Clock,
        detection: str = "",
    ) -> None:
        """`detection`: that section of the plan as JSON, for a detector of many runs."""
        self._detection = detection
        self._target = target
        self._run = run
        self._phase_file = phase_file
        self._grid = grid
        self._clock = clock
        self._due_ns = clock.mono_ns()

    def poll(self) -> None:
        """Send an announcement if one is due."""
        now_ns = self._clock.mono_ns()
        if now_ns >= self._due_ns:
            self._due_ns = now_ns + ANNOUNCE_PERIOD_NS
            self._target.send(self._announcement())

    def close(self) -> None:
        """Send a last announcement: by now the end of the run is decided."""
        self._target.send(self._announcement())
        self._target.close()

    def _announcement(self) -> Announcement:
        phases = self._phase_file.poll()
        end_k = phases.end_k
        k = self._grid.interval_index_at(self._clock.mono_ns())
        is_over = end_k is not None and k >= end_k
        run, now_ns = self._run, self._clock.wall_ns()
        return Announcement(
            run.name,
            run.id,
            run.start_wall_ns,
            end_k,
            is_over,
            now_ns,
            phases=tuple(zip(phases.from_k, phases.names, strict=True))[-MAX_PHASES:],
            detection=self._detection,
        )


class AnnouncementSource(Protocol):
    """Where announcements come from; see `AnnouncementReader`."""

    def open(self) -> None: ...
    def poll(self, timeout_seconds: float) -> list[Announcement]: ...
    def close(self) -> None: ...


class AnnouncementListener:
    """Returns the announcements of one plan, and reconnects after a failure or a minute of silence."""

    def __init__(self, source: AnnouncementSource, plan: str, clock: Clock) -> None:
        self._source = source
        self._plan = plan
        self._clock = clock
        self._retry = Retry(OPEN_BACKOFF)
        self._failures = Once()
        self._heard_ns = 0
        self._other_plans: set[str] = set()
        self.is_open = False

    def poll(self, timeout_seconds: float) -> list[Announcement]:
        """Return the new announcements of the plan; none, at once, while the cluster does not answer."""
        now_ns = self._clock.mono_ns()
        if self.is_open and now_ns - self._heard_ns >= REOPEN_NS:
            self.is_open = False
        if not self.is_open and not (self._retry.is_due(now_ns) and self._open()):
            return []
        every = self._source.poll(timeout_seconds)
        found = [one for one in every if one.plan == self._plan]
        self._log_other_plans({one.plan for one in every} - {self._plan})
        if found:
            self._heard_ns = self._clock.mono_ns()
        return found

    def close(self) -> None:
        self._source.close()

    def _log_other_plans(self, plans: set[str]) -> None:
        """Log each other plan once: the name of a plan may be misspelt."""
        for plan in sorted(plans - self._other_plans)[: MAX_OTHER_PLANS - len(self._other_plans)]:
            LOG.info("other_plan_announced plan=%.100s waiting_for=%s", plan, self._plan)
            self._other_plans.add(plan)

    def _open(self) -> bool:
        try:
            self._source.open()
        except BrokerError as error:
            if self._failures.is_new(str(error)):
                LOG.warning("announcements_not_read error=%s", error)
            self._retry.note_failure(self._clock.mono_ns())
            return False
        self._retry.note_success()
        self._failures.clear()
        self.is_open, self._heard_ns = True, self._clock.mono_ns()
        return True


class RunFollower:
    """Ends the recording of a probe host when the run that it joined is over.

    The run is over at the end of its plan, when a newer run of the plan goes on, or when the topic could be
    read for an hour without an announcement of it: then no receiver takes the records. A host joins it again
    when it is announced again. The end goes into `phases.jsonl`, which the probe daemon reads.
    """

    def __init__(
        self,
        folder: RunFolder,
        run: Run,
        listener: AnnouncementListener,
        may_join: Callable[[Announcement], bool],
        grid: Grid,
        clock: Clock,
    ) -> None:
        self._folder = folder
        self._run = run
        self._listener = listener
        self._may_join = may_join
        self._grid = grid
        self._clock = clock
        self._end_k = PhaseFile(folder.phases).poll().end_k
        self._heard_ns = clock.mono_ns()

    def poll(self) -> None:
        """Process the announcements since the last call; call it about once a second.

        Opening the topic may wait for a cluster that does not answer; nothing else waits.
        """
        found = self._listener.poll(0.0)
        now_ns = self._clock.mono_ns()
        if not self._listener.is_open:  # silence means nothing while the topic cannot be read
            self._heard_ns = now_ns
        for one in found:
            self._process(one, now_ns)
        if now_ns - self._heard_ns >= ABANDONED_NS:
            self._end_now("not announced for an hour")

    def close(self) -> None:
        self._listener.close()

    def _process(self, one: Announcement, now_ns: int) -> None:
        run = self._run
        if one.run_id == run.id:
            if one.start_wall_ns == run.start_wall_ns:
                self._heard_ns = now_ns
                self._follow(one)
        elif (
            one.order > (run.start_wall_ns, run.id)
            and one.is_ongoing(self._clock.wall_ns())
            and self._may_join(one)
        ):
            self._end_now(f"run {one.run_id} of the same plan is newer")

    def _follow(self, one: Announcement) -> None:
        if one.is_over:
            self._end_now("it is over")
        elif one.end_k is not None:
            self._end_at(one.end_k, "announced")

    def _end_now(self, reason: str) -> None:
        self._end_at(max(0, self._grid.interval_index_at(self._clock.mono_ns())), reason)

    def _end_at(self, k: int, reason: str) -> None:
        """Write the end, unless it is past; the next announcement repeats a write that failed."""
        is_past = self._end_k is not None and self._end_k <= self._grid.interval_index_at(
            self._clock.mono_ns()
        )
        if is_past or k == self._end_k:
            return
        try:
            write_atomically(self._folder.phases, decision_line("end", k, reason))
        except OSError as error:
            LOG.warning("end_not_written error=%s", error)
            return
        LOG.info("run_ends_here run=%s k=%d reason=%s", self._run.id, k, reason)
        self._end_k = k
