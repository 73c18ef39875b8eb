"""Waits for the end of a run: its last second, the last records of its daemons, and the detector."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from soak.core.clock import RunClock
from soak.core.plan.phases import latest_end_k
from soak.core.plan.plan import Plan
from soak.core.ports import Clock
from soak.core.units import SECOND_NS
from soak.runtime.context import PhaseFile
from soak.runtime.grid import grid_of, host_name
from soak.service.files import is_locked, read_json
from soak.service.systemd import notifier
from soak.store.journal.reader import has_ended
from soak.store.run_folder import RunFolder, read_plan, read_run
from soak.supervisor.run import DETECT_LIMIT_NS

OVERDUE_NS = 60 * SECOND_NS
"""A daemon that has not ended so long after the run's last second is not waited for any longer."""
UNDECIDED_NS = 600 * SECOND_NS
"""So long after the latest end that the plan allows, a conductor that has not decided the end never will."""
POLL_SECONDS = 1.0


def run(folder: RunFolder, stop: threading.Event, clock: Clock) -> bool:
    """Return True when the run is over, False when `stop` is set before."""
    known = read_run(folder)
    seconds = RunClock.on(grid_of(folder, known, clock), clock)
    run_end = RunEnd(folder, read_plan(folder), clock)
    manager = notifier()
    manager.ready()
    while not stop.wait(POLL_SECONDS):
        manager.alive()
        k = seconds.interval_index()
        phase = run_end.phase_file.poll().at(k) or "not started"
        manager.status(f"run {known.id}: {phase}, second {k}")
        if run_end.is_over(k):
            manager.stopping()
            return True
    return False


@dataclass(slots=True)
class RunEnd:
    """Call `is_over` about once a second: its limits count from the call that first saw the end."""

    folder: RunFolder
    plan: Plan
    clock: Clock
    phase_file: PhaseFile = field(init=False)
    _overdue_ns: int | None = None  # since when the end should have been decided
    _end_ns: int | None = None
    _recorded_ns: int | None = None  # since when all measuring daemons have ended

    def __post_init__(self) -> None:
        self.phase_file = PhaseFile(self.folder.phases)

    def is_over(self, k: int) -> bool:
        now_ns = self.clock.mono_ns()
        if not self._is_past(k, now_ns):
            return False
        if self._end_ns is None:
            self._end_ns = now_ns
        is_late = now_ns - self._end_ns > OVERDUE_NS
        if self._recorded_ns is None and (self._have_daemons_ended() or is_late):
            self._recorded_ns = now_ns
        if self._recorded_ns is None:
            return False
        return self._is_detected() or now_ns - self._recorded_ns > DETECT_LIMIT_NS

    def _is_past(self, k: int, now_ns: int) -> bool:
        """Return whether the last second is over, also where no conductor is left to decide the end."""
        phases = self.phase_file.poll()
        if phases.end_k is not None:
            return k >= phases.end_k
        if k < latest_end_k(phases, self.plan.phases, self.plan.load.backlog):
            return False
        if self._overdue_ns is None:
            self._overdue_ns = now_ns
        return now_ns - self._overdue_ns > UNDECIDED_NS

    def _have_daemons_ended(self) -> bool:
        journal, host = self.folder.journal, host_name()
        return all(has_ended(journal / f"{name}@{host}") for name in self.plan.measuring)

    def _is_detected(self) -> bool:
        """Return whether the detector has finished; while it starts it holds its lock."""
        if is_locked(self.folder.spark / "lock"):
            return False
        try:
            progress = read_json(self.folder.spark / "progress.json")
        except (OSError, ValueError):
            return False
        return not progress.get("is_running", True)
