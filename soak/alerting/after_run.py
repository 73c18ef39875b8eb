"""Deliver the pending notifications of runs that have ended.

A mail server that is down at the end of a run may be back an hour later.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from soak.alerting.daemon import AlertDaemon, build_sinks, with_notification_settings
from soak.core.errors import FindingsError, SoakError
from soak.core.plan.plan import Plan
from soak.core.ports import Clock, Sink
from soak.core.units import SECOND_NS
from soak.service.files import file_lock
from soak.service.systemd import notifier
from soak.store.findings.port import FindingsPlace
from soak.store.findings.topic import findings_place
from soak.store.run_folder import Run, RunFolder, read_plan, read_run

LOG = logging.getLogger("soak.alerting")
MAX_AGE_NS = 24 * 3600 * SECOND_NS
"""Notifications of a run that ended longer ago are not news."""

_POLL_SECONDS = 1.0


def run(runs: Path, stop: threading.Event, clock: Clock, settings: Path | None = None) -> int:
    """Send the pending notifications of the runs below a folder that ended within a day; return 0 when done.

    `settings` is a plan whose `sinks` and `alerts` replace those that the runs began with.
    """
    manager = notifier()
    manager.ready()
    with ExitStack() as stack:
        delivery = AfterRunDelivery(
            runs, clock, stack, manager.alive, is_stopped=stop.is_set, settings=settings
        )
        while delivery.poll() and not stop.is_set():
            manager.alive()
            stop.wait(_POLL_SECONDS)
    return 0


@dataclass(slots=True)
class AfterRunDelivery:
    """Holds the lock of each run with pending notifications until the stack closes."""

    runs: Path
    clock: Clock
    stack: ExitStack
    alive: Callable[[], None] = lambda: None
    sinks_of: Callable[[Plan], Mapping[str, Sink]] = build_sinks
    is_stopped: Callable[[], bool] = lambda: False
    settings: Path | None = None
    _daemons: dict[Path, tuple[AlertDaemon, FindingsPlace]] = field(default_factory=dict)
    _known: dict[Path, tuple[Plan, FindingsPlace]] = field(default_factory=dict)  # ended runs
    _skipped: set[Path] = field(default_factory=set)  # runs that cannot be opened, logged once

    def poll(self) -> bool:
        """Do a round for each run; return whether any has pending notifications still."""
        for path in sorted(self.runs.glob("*/run.json")):
            folder = RunFolder(path.parent)
            if not folder.path.is_symlink() and folder.path not in self._daemons:
                self._open(folder)
        is_pending = False
        for path, (daemon, findings) in self._daemons.items():
            if self._is_news(RunFolder(path)) and _has_pending(findings):
                daemon.deliver(self.is_stopped)
                is_pending = True
        return is_pending

    def _is_news(self, folder: RunFolder) -> bool:
        """True for a day after `run.json` was last written, which is at the end of the run."""
        try:
            written_ns = folder.run_json.stat().st_mtime_ns
        except FileNotFoundError:  # the run was deleted
            return False
        return self.clock.wall_ns() - written_ns < MAX_AGE_NS

    def _open(self, folder: RunFolder) -> None:
        try:
            if not self._is_news(folder):
                return
            run = read_run(folder)
            if run.state in {"beginning", "running"}:
                return
            if folder.path not in self._known:
                self._known[folder.path] = self._plan_and_findings(folder, run)
            begun_as, findings = self._known[folder.path]
            if not _has_pending(findings):
                return
            plan = with_notification_settings(self.settings, begun_as)
            daemon = AlertDaemon(
                folder,
                plan,
                run,
                self.sinks_of(plan),
                self.clock,
                self.alive,
                findings=findings,
            )
            self.stack.enter_context(file_lock(folder.path / "alert.lock", "the outbox"))
        except (SoakError, OSError) as error:
            if folder.path not in self._skipped:
                LOG.warning("run_skipped folder=%s error=%s", folder.path, error)
            self._skipped.add(folder.path)
            return
        self._daemons[folder.path] = daemon, findings

    def _plan_and_findings(self, folder: RunFolder, run: Run) -> tuple[Plan, FindingsPlace]:
        plan = read_plan(folder)
        findings = findings_place(folder, plan, run.id, self.clock)
        self.stack.callback(findings.close)
        return plan, findings


def _has_pending(findings: FindingsPlace) -> bool:
    if not findings.exists():
        return False
    try:
        with findings.open() as store:
            return bool(store.open_notifications())
    except FindingsError:  # unreadable now: it may have some
        return True
