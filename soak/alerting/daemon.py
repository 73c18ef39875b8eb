"""The alert daemon of a run: it sends the pending notifications of `findings.db`, each once, and retries what fails."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from soak.alerting.calendar import Calendar, find_bad_cron
from soak.alerting.delivery import Delivery, Resender
from soak.alerting.digest import Digests, not_stopped
from soak.alerting.heartbeat import HeartbeatMonitor
from soak.core import plugins
from soak.core.errors import FindingsError, PlanError, RunFolderError
from soak.core.model import Column
from soak.core.plan import text as plan_text
from soak.core.plan.plan import AlertingPlan, Plan, plugins_without
from soak.core.ports import Clock, Sink
from soak.core.units import SECOND_NS
from soak.runtime.context import PhaseFile, open_page
from soak.service.files import file_lock
from soak.service.systemd import notifier
from soak.store.findings.store import MAX_RETRY_WAIT_NS, FindingsStore
from soak.store.run_folder import Run, RunFolder, read_plan, read_run

LOG = logging.getLogger("soak.alerting.daemon")


def with_notification_settings(path: Path | None, plan: Plan) -> Plan:
    """Return the plan of a run with `sinks` and `alerts` of a file, or as it is where that cannot be used."""
    if path is None:
        return plan
    try:
        telling = _read_notification_settings(path, plan)
    except PlanError as error:
        LOG.warning("file_not_used sinks_and_alerts=%r why=%r", "as the run began", str(error))
        return plan
    names = ",".join(telling.sinks)
    LOG.info("file_used sinks_and_alerts=%s sinks=%s", path, names)
    for name in plan.sinks.keys() - telling.sinks.keys():
        LOG.warning("sink_left name=%s its_messages=%r", name, "given up")
    return replace(plan, sinks=telling.sinks, alerts=telling.alerts)


def _read_notification_settings(path: Path, plan: Plan) -> AlertingPlan:
    """Return what a file says of telling; raises `PlanError` where it may not be meant for this run."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise PlanError(f"{path}: cannot read the plan: {error}") from error
    telling, document = plan_text.load_alerting(text, str(path))
    if telling.name != plan.name:
        raise document.error(("name",), f"is not {plan.name}, whose run it is")
    if plan.sinks and not telling.sinks:
        raise document.error(("sinks",), "names nobody, and all that is owed would be given up")
    told = replace(plan, sinks=telling.sinks, alerts=telling.alerts)
    for name in plugins_without(told, "sinks", "host"):
        raise document.error(("sinks", name, "host"), "names no server")
    wrong = find_bad_cron(telling.alerts)
    if wrong:
        raise document.error(("alerts", *wrong[0]), wrong[1])
    return telling


# --- Findings for sinks that a run's plan did not have when it began: the detector queues for those it had.

ADDED_SINKS_PERIOD_NS = 5 * SECOND_NS


class AddedSinks:
    """Call `poll` each round: what lasts, and what comes from now on, is owed to these sinks too."""

    def __init__(self, folder: RunFolder, run: Run, sinks: Sequence[str], clock: Clock) -> None:
        self._folder = folder
        self._run = run
        self._sinks = sinks
        self._clock = clock
        self._since_k: int | None = None
        self._next_ns = 0

    def poll(self) -> None:
        """Raise `FindingsError` when the file cannot be used."""
        if self._sinks and self._clock.mono_ns() >= self._next_ns:
            self._next_ns = self._clock.mono_ns() + ADDED_SINKS_PERIOD_NS
            self.queue()

    def queue(self) -> None:
        """Queue at once what there is; raises as `poll`."""
        if not self._sinks or not self._folder.findings.exists():
            return
        now_ns = self._clock.wall_ns()
        if self._since_k is None:
            self._since_k = (now_ns - self._run.start_wall_ns) // SECOND_NS
        with FindingsStore(self._folder.findings) as store:
            store.queue_added(self._run.id, self._sinks, self._since_k, now_ns)


# --- The alert daemon: tells people what the findings file owes them, once, however often it must try.
# That a daemon is missed goes the same way as a finding.
# A message counts as sent only when the sink took it and that is on disk; what cannot be sent stays owed.
# A drive that takes nothing is a bad round: nothing is sent that could not be noted.

HOUR_NS = 3600 * SECOND_NS
SHUTDOWN_LIMIT_NS = 10 * SECOND_NS
"""How long the last round may take to begin another message; the sink's own limit bounds each."""

_POLL_SECONDS = 1.0


def run(run_dir: Path, stop: threading.Event, clock: Clock, telling: Path | None = None) -> int:
    """Send what is owed until `stop`, then try once more what is left; return the exit code.

    `telling` is a plan whose `sinks` and `alerts` count instead of those that the run began with.

    Raises:
        SoakError: no run folder, a sink that cannot be built, or another alert daemon at work.
    """
    folder = RunFolder(run_dir.resolve())  # `current` may become another run's before this one ends
    begun_as, known = read_plan(folder), read_run(folder)
    plan = with_notification_settings(telling, begun_as)
    page = open_page(folder, plan, known, "alert", clock)
    manager = notifier()
    with file_lock(folder.path / "alert.lock", "the outbox"):
        added = [name for name in plan.sinks if name not in begun_as.sinks]
        alerts = AlertDaemon(folder, plan, known, build_sinks(plan), clock, manager.alive, added)
        manager.ready()
        settled = 0
        while not stop.is_set():
            manager.alive()
            settled += alerts.poll(stop.is_set)
            page.show([(Column("alert_settled_messages_total", (), "messages"), float(settled))])
            stop.wait(_POLL_SECONDS)
        manager.stopping()
        alerts.farewell()
    return 0


def build_sinks(plan: Plan) -> dict[str, Sink]:
    return {
        name: plugins.load("soak.sinks", name).build(config) for name, config in plan.sinks.items()
    }


class AlertDaemon:
    """One round after the other over the outbox of one run."""

    def __init__(
        self,
        folder: RunFolder,
        plan: Plan,
        run: Run,
        sinks: Mapping[str, Sink],
        clock: Clock,
        alive: Callable[[], None] = lambda: None,
        added: Sequence[str] = (),
    ) -> None:
        """`alive` is called before each try: a round may be long; `added` are sinks of `plan` alone."""
        self._folder = folder
        self._plan = plan
        self._clock = clock
        self._alive = alive
        self._calendar = Calendar(plan.alerts)
        self._delivery = Delivery(folder, plan, run, sinks, clock)
        readers = sinks if plan.alerts.digest else {}
        self._digests = Digests(folder, run, readers, self._calendar, clock, alive)
        self._silences = HeartbeatMonitor(folder, plan, run, tuple(sinks), clock)
        self._lasting = Resender(folder, self._delivery, sinks, clock, alive)
        self._added = AddedSinks(folder, run, added, clock)
        self._held_back = ""  # why nothing, or not all, went out in the last round
        self._why = ""

    def poll(self, is_stopped: Callable[[], bool] = not_stopped) -> int:
        """Do a round of all that there is to tell; return how many messages were settled.

        Once it is to stop it begins nothing: the farewell comes after it, and has a limit too.
        """
        settled = self._delivered(is_stopped)
        digest = partial(self._digest, is_stopped)
        for part in (self._added.poll, self._silences.poll, self._lasting.poll, digest):
            if not is_stopped():
                self._noting_why(part)
        self._say_why()
        return settled

    def _digest(self, is_stopped: Callable[[], bool]) -> None:
        if self._plan.alerts.digest and not self._is_quiet():
            self._digests.poll(is_stopped)

    def _noting_why(self, part: Callable[[], None]) -> None:
        try:
            part()
        except (FindingsError, RunFolderError) as error:
            self._why = str(error)

    def deliver(self, is_stopped: Callable[[], bool] = not_stopped) -> None:
        """Do a round of what is owed after the end of the run, and of nothing else."""
        self._delivered(is_stopped)
        if not self._is_quiet():
            self._noting_why(partial(self._digests.poll_owed, is_stopped))
        self._say_why()

    def _delivered(self, is_stopped: Callable[[], bool]) -> int:
        """Try each message that is due once; return how many were settled."""
        self._why = ""
        if self._is_quiet():
            self._why = "maintenance"
            return 0
        return self._round(self._clock.wall_ns(), is_stopped, self._is_too_much)

    def farewell(self) -> None:
        """Try what is left, whenever it was put off to and however much it is: nobody comes after us.

        In a pause somebody will, and this is a round like others, with the same limit.
        """
        until_ns = self._clock.mono_ns() + SHUTDOWN_LIMIT_NS
        self._noting_why(self._added.queue)

        def is_late() -> bool:
            return self._clock.mono_ns() >= until_ns

        if PhaseFile(self._folder.phases).poll().end_k is None:
            self._delivered(is_late)
            self._say_why()
            return
        while self._round(self._clock.wall_ns() + MAX_RETRY_WAIT_NS, is_late, _is_never_over_limit):
            continue  # a sequel becomes due when the message before it is settled
        if self._plan.alerts.digest:
            self._noting_why(partial(self._digests.farewell, is_late))
        self._say_why()

    def _say_why(self) -> None:
        if self._why not in {"", self._held_back}:
            LOG.warning("messages_held_back why=%r", self._why)
        self._held_back = self._why

    def _is_quiet(self) -> bool:
        return self._calendar.is_quiet(self._clock.wall_ns())

    def _round(
        self,
        due_wall_ns: int,
        is_stopped: Callable[[], bool],
        is_too_much: Callable[[str], bool],
    ) -> int:
        if not self._folder.findings.exists():
            return 0
        settled = 0
        away = set()  # sinks that took nothing: others are not to wait for them
        try:
            self._delivery.settle()
            with FindingsStore(self._folder.findings) as store:
                rows = store.due(due_wall_ns)
            for row in rows:
                if is_stopped():
                    break
                if row.sink in away or is_too_much(row.sink):
                    continue
                self._alive()
                outcome = self._delivery.try_once(row)
                if outcome is not None and outcome.result == "retry":
                    away.add(row.sink)
                settled += outcome is None or outcome.result != "retry"
        except FindingsError as error:
            self._why = str(error)
        return settled

    def _is_too_much(self, sink: str) -> bool:
        """True when a sink has had its share of the hour: what is more waits for the next."""
        now_ns = self._clock.wall_ns()
        with FindingsStore(self._folder.findings) as store:
            sent = store.sent_between(sink, now_ns - HOUR_NS, now_ns)
        if sent < self._plan.alerts.max_per_hour:
            return False
        self._why = f"{sent} messages to {sink} in an hour"
        return True


def _is_never_over_limit(_sink: str) -> bool:
    return False
