"""The alert daemon: tells people what the findings file owes them, once, however often it must try.

A message counts as sent only when the sink took it and that is on disk; what cannot be sent stays owed.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from soak.core import plugins
from soak.core.errors import FindingsBusyError, FindingsError, SoakError
from soak.core.model import Column, Finding
from soak.core.plan import Plan
from soak.core.ports import Clock, Message, Outcome, Sink
from soak.core.units import SECOND_NS
from soak.daemons.alert_calendar import Calendar
from soak.daemons.alert_chart import draw
from soak.daemons.alert_digest import Digests
from soak.daemons.alert_message import Subject, compose
from soak.daemons.alert_window import Window, bounds, read_window
from soak.daemons.context import PhaseFile, open_page
from soak.service.notify import notifier
from soak.store.findings import LONGEST_WAIT_NS, FindingsStore
from soak.store.findings_rows import OutboxRow
from soak.store.run_folder import Run, RunFolder, exclusive, read_plan, read_run

LOG = logging.getLogger("soak.daemons.alert")
FIRST_WAIT_NS = 5 * SECOND_NS
HOUR_NS = 3600 * SECOND_NS
FAREWELL_NS = 10 * SECOND_NS
"""How long the last round may take to begin another message; the sink's time-out bounds each."""

_POLL_SECONDS = 1.0


def run(run_dir: Path, stop: threading.Event, clock: Clock) -> int:
    """Send what is owed until `stop`, then try once more what is left; return the exit code.

    Raises:
        SoakError: no run folder, a sink that cannot be built, or another alert daemon at work.
    """
    folder = RunFolder(run_dir)
    plan, known = read_plan(folder), read_run(folder)
    page = open_page(folder, plan, known, "alert", clock)
    manager = notifier()
    with exclusive(folder.path / "alert.lock", "the outbox"):
        alerts = Alerts(folder, plan, known, build_sinks(plan), clock, manager.alive)
        manager.ready()
        settled = 0
        while not stop.is_set():
            manager.alive()
            settled += alerts.poll()
            page.show([(Column("alert_settled_messages_total", (), "messages"), float(settled))])
            stop.wait(_POLL_SECONDS)
        manager.stopping()
        alerts.farewell()
    return 0


def build_sinks(plan: Plan) -> dict[str, Sink]:
    return {
        name: plugins.load("soak.sinks", name).build(config) for name, config in plan.sinks.items()
    }


class Alerts:
    """One round after the other over the outbox of one run."""

    def __init__(
        self,
        folder: RunFolder,
        plan: Plan,
        run: Run,
        sinks: Mapping[str, Sink],
        clock: Clock,
        alive: Callable[[], None] = lambda: None,
    ) -> None:
        """`alive` is called before each try: a round may be long."""
        self._folder = folder
        self._plan = plan
        self._run = run
        self._sinks = sinks
        self._clock = clock
        self._alive = alive
        self._calendar = Calendar(plan.alerts)
        self._digests = Digests(folder, run, sinks, self._calendar, clock)
        self._held_back = ""  # why nothing, or not all, goes out; said once

    def poll(self) -> int:
        """Try each message that is due once; return how many were settled."""
        now_ns = self._clock.wall_ns()
        if self._calendar.is_quiet(now_ns):
            self._hold_back("maintenance")
            return 0
        settled = self._round(now_ns, until_ns=None)
        if self._plan.alerts.digest:
            self._digests.poll()
        return settled

    def farewell(self) -> None:
        """Try what is left whenever it was put off to, at any rate: nobody comes after us.

        In a maintenance window of a run that goes on somebody will.
        """
        goes_on = PhaseFile(self._folder.phases).poll().end_k is None
        if goes_on and self._calendar.is_quiet(self._clock.wall_ns()):
            return
        until_ns = self._clock.mono_ns() + FAREWELL_NS
        while self._round(self._clock.wall_ns() + LONGEST_WAIT_NS, until_ns=until_ns):
            continue  # a sequel becomes due when the message before it is settled

    def _round(self, due_wall_ns: int, until_ns: int | None) -> int:
        settled = 0
        for row in self._due(due_wall_ns):
            if until_ns is not None and self._clock.mono_ns() >= until_ns:
                break
            if until_ns is None and self._is_too_much(row.sink, due_wall_ns):
                continue
            self._alive()
            settled += self._try(row)
        return settled

    def _is_too_much(self, sink: str, now_wall_ns: int) -> bool:
        """True when a sink has had its share of the hour: what is more waits for the next."""
        with FindingsStore(self._folder.findings) as store:
            sent = store.sent_since(sink, now_wall_ns - HOUR_NS)
        if sent < self._plan.alerts.most_per_hour:
            return False
        self._hold_back(f"{sent} messages to {sink} in an hour")
        return True

    def _hold_back(self, why: str) -> None:
        if why != self._held_back:
            LOG.warning("messages_held_back why=%r", why)
            self._held_back = why

    def _due(self, due_wall_ns: int) -> list[OutboxRow]:
        if not self._folder.findings.exists():
            return []
        try:
            with FindingsStore(self._folder.findings) as store:
                return store.due(due_wall_ns)
        except FindingsBusyError as error:
            LOG.warning("findings_busy error=%s", error)
            return []

    def _try(self, row: OutboxRow) -> bool:
        sink = self._sinks.get(row.sink)
        if sink is None:
            outcome = Outcome("never", f"the plan has no sink {row.sink!r}")
        else:
            outcome = sink.send(self._message(row))
        return self._mark(row, outcome)

    def _message(self, row: OutboxRow) -> Message:
        with FindingsStore(self._folder.findings) as store:
            finding = store.finding(row.key)
            changes = store.changes(self._run.id)
        if finding is None:
            raise FindingsError(f"{self._folder.findings}: {row.key} is owed and not there")
        subject = Subject(
            finding=finding,
            kind=row.kind,
            plan=self._plan.name,
            run_dir=str(self._folder.path.resolve()),
            start_wall_ns=self._run.start_wall_ns,
            changes=changes,
            window=self._window(row, finding),
        )
        chart = None
        if subject.window is not None:
            chart = draw(finding, subject.window, self._run.start_wall_ns)
        return compose(subject, chart, row.created_wall_ns)

    def _window(self, row: OutboxRow, finding: Finding) -> Window | None:
        first_k, last_k = bounds(finding, row.kind == "gone")
        try:
            return read_window(self._folder.journal, finding.series, first_k, last_k)
        except (SoakError, OSError) as error:  # a mail without a picture is better than none
            LOG.warning("window_unreadable finding=%s error=%s", row.key, error)
            return None

    def _mark(self, row: OutboxRow, outcome: Outcome) -> bool:
        now_ns = self._clock.wall_ns()
        LOG.info(
            "message_tried finding=%s kind=%s sink=%s result=%s detail=%r",
            row.key,
            row.kind,
            row.sink,
            outcome.result,
            outcome.detail,
        )
        for is_last in (False, False, True):  # what was sent and is not marked would be sent again
            try:
                self._write(row, outcome, now_ns)
                break
            except FindingsBusyError:
                if is_last:
                    raise
        return outcome.result != "retry"

    def _write(self, row: OutboxRow, outcome: Outcome, now_ns: int) -> None:
        with FindingsStore(self._folder.findings) as store:
            if outcome.result == "delivered":
                store.mark_sent(row, now_ns, outcome.detail)
            elif outcome.result == "never":
                store.mark_never(row, now_ns, outcome.detail)
            else:
                store.mark_retry(row, now_ns, now_ns + wait_ns(row.attempts), outcome.detail)


def wait_ns(attempts: int) -> int:
    """Return how long to wait after so many earlier tries: doubled each time, 15 minutes at most."""
    return min(FIRST_WAIT_NS << min(attempts, 20), LONGEST_WAIT_NS)
