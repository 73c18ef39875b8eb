"""Deliver the pending notifications of runs that have ended, for at most a day."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from soak.alerting.daemon import AlertDaemon, build_sinks, with_notification_settings
from soak.alerting.digest import not_stopped, pending_digests
from soak.core.errors import FindingsError, SoakError
from soak.core.plan.plan import Plan
from soak.core.ports import Clock, Sink
from soak.core.units import SECOND_NS
from soak.service.files import file_lock
from soak.service.systemd import notifier
from soak.store.findings.store import FindingsStore
from soak.store.run_folder import RunFolder, read_plan, read_run

LOG = logging.getLogger("soak.alerting.daemon")
MAX_AGE_NS = 24 * 3600 * SECOND_NS
"""So long after its end a run is news to somebody."""

_POLL_SECONDS = 1.0


def run(runs: Path, stop: threading.Event, clock: Clock, telling: Path | None = None) -> int:
    """Tell what the runs below a folder owe that ended within a day; return 0 once that is nothing.

    `telling` is a plan whose `sinks` and `alerts` count instead of those that the runs began with.
    """
    manager = notifier()
    manager.ready()
    with ExitStack() as stack:
        debts = AfterRunDelivery(
            runs, clock, stack, manager.alive, is_stopped=stop.is_set, telling=telling
        )
        while debts.poll() and not stop.is_set():
            manager.alive()
            stop.wait(_POLL_SECONDS)
    return 0


@dataclass(slots=True)
class AfterRunDelivery:
    """Holds the outbox of each run that owes, from when it is seen until the stack closes."""

    runs: Path
    clock: Clock
    stack: ExitStack
    alive: Callable[[], None] = lambda: None
    sinks_of: Callable[[Plan], Mapping[str, Sink]] = build_sinks
    is_stopped: Callable[[], bool] = not_stopped
    telling: Path | None = None
    _alerts: dict[Path, AlertDaemon] = field(default_factory=dict)
    _passed_over: set[Path] = field(default_factory=set)  # what cannot be served, said once

    def poll(self) -> bool:
        """Do a round for each run; return whether any owes something still."""
        for path in sorted(self.runs.glob("*/findings.db")):
            folder = RunFolder(path.parent)
            if not folder.path.is_symlink() and folder.path not in self._alerts:
                self._take_on(folder)
        owing = False
        for path, alerts in self._alerts.items():
            folder = RunFolder(path)
            if self._is_news(folder) and _has_pending(folder):
                alerts.deliver(self.is_stopped)
                owing = True
        return owing

    def _is_news(self, folder: RunFolder) -> bool:
        """True for a day after the run's description was written last, which is at its end."""
        try:
            written_ns = folder.run_json.stat().st_mtime_ns
        except FileNotFoundError:  # somebody has thrown the run away
            return False
        return self.clock.wall_ns() - written_ns < MAX_AGE_NS

    def _take_on(self, folder: RunFolder) -> None:
        try:
            if not self._is_news(folder):
                return
            run = read_run(folder)
            if run.state in {"beginning", "running"} or not _has_pending(folder):
                return
            plan = with_notification_settings(self.telling, read_plan(folder))
            alerts = AlertDaemon(folder, plan, run, self.sinks_of(plan), self.clock, self.alive)
            self.stack.enter_context(file_lock(folder.path / "alert.lock", "the outbox"))
        except (SoakError, OSError) as error:
            if folder.path not in self._passed_over:
                LOG.warning("passed_over folder=%s error=%s", folder.path, error)
            self._passed_over.add(folder.path)
            return
        self._alerts[folder.path] = alerts


def _has_pending(folder: RunFolder) -> bool:
    try:
        with FindingsStore(folder.findings) as store:
            return store.owed() > 0 or bool(pending_digests(store))
    except FindingsError:  # as long as nobody can tell, it may
        return True
