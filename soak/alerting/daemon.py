"""The alert daemon of a run: it sends the pending notifications of the findings, each once.

A message counts as sent only when its sink took it and that is on disk. When the drive takes no writes
nothing is sent, because the result could not be stored. Of several daemons on one store the owner sends.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from soak.alerting.calendar import Calendar, bad_crons
from soak.alerting.chart import load_library
from soak.alerting.delivery import Delivery, Resender
from soak.alerting.digest import DigestSchedule
from soak.alerting.heartbeat import HeartbeatMonitor
from soak.core.errors import FindingsError, PlanError, RunFolderError, raise_combined
from soak.core.model import Column, Finding
from soak.core.plan import plugins
from soak.core.plan import text as plan_text
from soak.core.plan.plan import AlertingPlan, Plan, plugins_without
from soak.core.ports import Clock, Outcome, Sink
from soak.core.units import SECOND_NS
from soak.runtime.context import PhaseFile, open_page
from soak.service.files import file_lock, read_small_text
from soak.service.systemd import notifier
from soak.store.findings.port import Findings, FindingsPlace
from soak.store.findings.rows import NEWS_OF_CAUSES, Notification, NotificationKind
from soak.store.findings.store import MAX_RETRY_WAIT_NS
from soak.store.findings.topic import findings_place
from soak.store.run_folder import Run, RunFolder, read_plan, read_run

LOG = logging.getLogger("soak.alerting")
HOUR_NS = 3600 * SECOND_NS
SHUTDOWN_LIMIT_NS = 10 * SECOND_NS
"""How long the last round may take to begin another message; the sink's own limit bounds each."""
ADDED_SINKS_PERIOD_NS = 5 * SECOND_NS
COUNT_PERIOD_NS = 5 * SECOND_NS
RANKS: dict[NotificationKind, int] = {
    **dict.fromkeys(("opened", "missing", "aborted"), 0),
    **dict.fromkeys(NEWS_OF_CAUSES, 1),
    **dict.fromkeys(("ended", "digest"), 2),
    **dict.fromkeys(("resolved", "returned"), 3),
}
"""Which of the messages that are due go first: people act on what has begun, and not on what is over.

One that waits for an hour and is overtaken goes with the first: it would wait for ever where the hourly limit
is used up. While nothing can be sent, as in a maintenance window, none overtakes another.
"""

_POLL_SECONDS = 1.0


def run(run_dir: Path, stop: threading.Event, clock: Clock, settings: Path | None = None) -> int:
    """Send notifications until `stop`, then try the remaining ones once more; return the exit code.

    `settings` is a plan whose `sinks` and `alerts` replace those that the run began with.

    Raises:
        SoakError: no run folder, a sink that cannot be built, or another alert daemon at work.
    """
    folder = RunFolder(run_dir.resolve())  # `current` may become another run's before this one ends
    begun_as, known = read_plan(folder), read_run(folder)
    plan = with_notification_settings(settings, begun_as)
    page = open_page(folder, plan, known, "alert", clock)
    manager = notifier()
    with file_lock(folder.path / "alert.lock", "the outbox"):
        added = [name for name in plan.sinks if name not in begun_as.sinks]
        daemon = AlertDaemon(folder, plan, known, build_sinks(plan), clock, manager.alive, added)
        manager.ready()
        settled = 0
        while not stop.is_set():
            manager.alive()
            settled += daemon.poll(stop.is_set)
            if plan.metrics:
                page.show(daemon.samples(settled))
            stop.wait(_POLL_SECONDS)
        manager.stopping()
        daemon.shut_down()
        daemon.close()
    return 0


def build_sinks(plan: Plan) -> dict[str, Sink]:
    return {
        name: plugins.load("soak.sinks", name).build(config) for name, config in plan.sinks.items()
    }


def with_notification_settings(path: Path | None, plan: Plan) -> Plan:
    """Return the plan of a run with `sinks` and `alerts` of a file; unchanged where the file is unusable."""
    if path is None:
        return plan
    try:
        settings = _read_notification_settings(path, plan)
    except PlanError as error:
        LOG.warning("notification_settings_rejected reason=%r", str(error))
        return plan
    LOG.info("notification_settings_used file=%s sinks=%s", path, ",".join(settings.sinks))
    for name in plan.sinks.keys() - settings.sinks.keys():
        LOG.warning("sink_removed sink=%s pending_messages=%r", name, "dropped")
    return replace(plan, sinks=settings.sinks, alerts=settings.alerts)


def _read_notification_settings(path: Path, plan: Plan) -> AlertingPlan:
    """Return the settings of a file; raises `PlanError` when they may not be meant for this run."""
    try:
        text = read_small_text(path)
    except (OSError, UnicodeDecodeError) as error:
        raise PlanError(f"{path}: cannot read the plan: {error}") from error
    settings, document = plan_text.load_alerting(text, str(path))
    if settings.name != plan.name:
        raise document.error(("name",), f"is not {plan.name}, the plan of this run")
    if plan.sinks and not settings.sinks:
        raise document.error(("sinks",), "names no sink; all pending messages would be dropped")
    combined = replace(plan, sinks=settings.sinks, alerts=settings.alerts)
    for name in plugins_without(combined, "sinks", "host"):
        raise document.error(("sinks", name, "host"), "names no server")
    wrong = bad_crons(settings.alerts)
    raise_combined([document.error(("alerts", *place), why) for place, why in wrong])
    return settings


class AddedSinks:
    """Queues findings for sinks that were added to the plan after the run began.

    The detector queues only for those of the plan that the run began with.
    """

    def __init__(
        self, findings: FindingsPlace, run: Run, sinks: Sequence[str], clock: Clock
    ) -> None:
        self._findings = findings
        self._run = run
        self._sinks = sinks
        self._clock = clock
        self._since_k: int | None = None
        self._next_ns = 0

    def poll(self) -> None:
        """Queue now and then the open findings, and those that come.

        Raises:
            FindingsError: the file cannot be used.
        """
        if self._clock.mono_ns() >= self._next_ns:
            self._next_ns = self._clock.mono_ns() + ADDED_SINKS_PERIOD_NS
            self.queue()

    def queue(self) -> None:
        """Queue at once; raises as `poll`."""
        if not self._sinks or not self._findings.exists():
            return
        now_ns = self._clock.wall_ns()
        if self._since_k is None:
            self._since_k = (now_ns - self._run.start_wall_ns) // SECOND_NS
        with self._findings.open() as store:
            store.queue_added(self._run.id, self._sinks, self._since_k, now_ns)


class AlertDaemon:
    """Works through the outbox of one run, round by round."""

    def __init__(
        self,
        folder: RunFolder,
        plan: Plan,
        run: Run,
        sinks: Mapping[str, Sink],
        clock: Clock,
        alive: Callable[[], None] = lambda: None,
        added: Sequence[str] = (),
        findings: FindingsPlace | None = None,
    ) -> None:
        """`alive` is called before each try, as a round may be long; `added` are names of added sinks.

        `findings` is where the plan says unless given.
        """
        self._findings = findings or findings_place(folder, plan, run.id, clock)
        self._folder = folder
        self._plan = plan
        self._run = run
        self._clock = clock
        self._alive = alive
        self._draws_later = True
        self._calendar = Calendar(plan.alerts)
        self._delivery = Delivery(folder, plan, run, sinks, clock, self._findings)
        self._digests = DigestSchedule(self._findings, run, sinks, self._calendar, clock)
        self._sinks = tuple(sinks)
        self._heartbeats = self._new_heartbeats()
        self._resender = Resender(self._findings, self._delivery, sinks, clock, alive)
        self._added = AddedSinks(self._findings, run, added, clock)
        self._is_owner = True
        self._sent: dict[str, int] = {}  # in the last hour and this round, by sink
        self._failing: set[str] = set()  # sinks whose last try failed: those that work go first
        self._busy: set[str] = set()  # sinks that deferred some recipients of a mail in this round
        self._problem = ""  # why not all messages could be sent in this round
        self._logged_problem = ""
        self._counts: list[tuple[Column, float]] = []  # of incidents, for the metrics page
        self._count_again_ns = 0

    def poll(self, is_stopped: Callable[[], bool] = lambda: False) -> int:
        """Queue what is due and send it; return how many messages were settled.

        Once stopped it begins nothing more: `shut_down` follows, which has a limit too.
        """
        self._problem = ""
        if not self._claim():
            return 0
        for queue in (self._added.poll, self._heartbeats.poll, self._digests.poll):
            if not is_stopped():
                self._attempt(queue)
        settled = self._deliver_due(is_stopped)
        if not is_stopped():
            self._attempt(self._resender.poll)
        self._log_problem()
        return settled

    def deliver(self, is_stopped: Callable[[], bool] = lambda: False) -> None:
        """Send what is due and queue nothing: for a run that has ended."""
        self._problem = ""
        if self._claim():
            self._deliver_due(is_stopped)
            self._log_problem()

    def pending(self) -> int:
        """Return how many messages are neither sent nor refused.

        Raises:
            FindingsError: the findings cannot be used.
        """
        if not self._findings.exists():
            return 0
        with self._findings.open() as store:
            return len(store.open_notifications())

    def samples(self, settled: int) -> list[tuple[Column, float]]:
        """Return the columns of the metrics page; the findings are read every few seconds."""
        if self._clock.mono_ns() >= self._count_again_ns:
            self._count_again_ns = self._clock.mono_ns() + COUNT_PERIOD_NS
            self._attempt(self._count)
        return [
            (Column("alert_settled_messages_total", (), "messages"), float(settled)),
            *self._counts,
        ]

    def _count(self) -> None:
        findings: list[Finding] = []
        pending = 0
        if self._findings.exists():
            with self._findings.open() as store:
                findings = [
                    one
                    for one in store.findings(self._run.id)
                    if one.is_about_cluster and one.state != "warning"
                ]
                pending = len(store.open_notifications())
        is_open = [one.state == "confirmed" for one in findings]
        counts = {"open": sum(is_open), "resolved": len(findings) - sum(is_open)}
        self._counts = [
            *(
                (Column("incidents", (("state", state),), "incidents"), float(count))
                for state, count in counts.items()
            ),
            (Column("pending_notifications", (), "messages"), float(pending)),
        ]

    def close(self) -> None:
        """Give up the claim to send, so that another daemon need not wait for it."""
        self._findings.close()

    def shut_down(self) -> None:
        """Try all pending messages at the end of the run, without waits and without the hourly limit.

        In a pause another daemon follows: this is a round like others then.
        """
        until_ns = self._clock.mono_ns() + SHUTDOWN_LIMIT_NS
        self._problem = ""
        self._busy.clear()
        if not self._claim():
            return
        self._attempt(self._added.queue)

        def is_late() -> bool:
            return self._clock.mono_ns() >= until_ns

        if PhaseFile(self._folder.phases).poll().end_k is None:
            self._deliver_due(is_late)
        else:
            self._attempt(self._digests.poll)
            # A sink that fails is not tried again: what may have arrived by then would be repeated.
            unavailable: set[str] = set()
            while self._round(MAX_RETRY_WAIT_NS, is_late, lambda _row, _rank: False, unavailable):
                continue  # a settled message makes the next one of its subject due
        self._log_problem()

    def _new_heartbeats(self) -> HeartbeatMonitor:
        return HeartbeatMonitor(
            self._folder, self._plan, self._run, self._sinks, self._clock, self._findings
        )

    def _claim(self) -> bool:
        """Return whether this daemon may send; one that may again forgets what it knew of daemons."""
        try:
            is_owner = self._findings.claim()
        except FindingsError as error:
            self._problem = str(error)
            self._log_problem()
            return False
        if is_owner != self._is_owner:
            LOG.info("ownership_changed run=%s is_owner=%s", self._run.id, is_owner)
            self._heartbeats = self._new_heartbeats()
        self._is_owner = is_owner
        return is_owner

    def _attempt(self, part: Callable[[], None]) -> None:
        try:
            part()
        except (FindingsError, RunFolderError) as error:
            self._problem = str(error)

    def _log_problem(self) -> None:
        if self._problem not in {"", self._logged_problem}:
            LOG.warning("messages_delayed reason=%r", self._problem)
        self._logged_problem = self._problem

    def _deliver_due(self, is_stopped: Callable[[], bool]) -> int:
        """Try each message that is due once; return how many were settled."""
        self._busy.clear()
        if self._calendar.is_quiet(self._clock.wall_ns()):
            self._problem = "maintenance window"
            return 0
        return self._round(0, is_stopped, self._is_over_limit, set())

    def _round(
        self,
        ahead_ns: int,
        is_stopped: Callable[[], bool],
        is_over_limit: Callable[[Notification, int], bool],
        unavailable: set[str],
    ) -> int:
        """Try what is due, but nothing to `unavailable` sinks, which a sink that fails becomes one of."""
        if not self._findings.exists():
            return 0
        settled = 0
        self._sent.clear()
        self._delivery.begin_round()
        try:
            self._delivery.store_last_result()
            with self._findings.open() as store:
                now_ns = self._clock.wall_ns()
                found = store.due(now_ns + ahead_ns)
                overtaken = _overtaken(store, found, now_ns)
                ranks = {row: 0 if row in overtaken else RANKS[row.kind] for row in found}
                rows = sorted(found, key=lambda row: (row.sink in self._failing, ranks[row]))
                is_in_sight = self._draws_later and store.has_findings(self._run.id)
            if is_in_sight and not rows:  # its message is due in some seconds
                self._draws_later = False
                load_library()
            for row in rows:
                if is_stopped() or not self._findings.claim():
                    break
                if row.sink in unavailable or self._is_put_off(row, ranks[row], is_over_limit):
                    continue
                self._alive()
                outcome = self._delivery.try_once(row)
                settled += self._note_outcome(row, outcome, unavailable)
        except FindingsError as error:
            self._problem = str(error)
        return settled

    def _is_put_off(
        self, row: Notification, rank: int, is_over_limit: Callable[[Notification, int], bool]
    ) -> bool:
        """True for what waits for a later round; a message that some recipients have was counted before."""
        return row.sink in self._busy if row.progress else is_over_limit(row, rank)

    def _note_outcome(
        self, row: Notification, outcome: Outcome | None, unavailable: set[str]
    ) -> bool:
        """Note what became of a try; return whether the message is settled."""
        if outcome is None:
            return True
        has_arrived = outcome.result == "delivered" or bool(outcome.progress)
        if row.sink in self._sent and not row.progress and not _is_summary(row):
            self._sent[row.sink] += has_arrived
        if outcome.result != "retry":
            self._failing.discard(row.sink)
            return True
        if outcome.progress:  # it works, and deferred some of the recipients
            self._busy.add(row.sink)
        else:
            unavailable.add(row.sink)
            self._failing.add(row.sink)
        return False

    def _is_over_limit(self, row: Notification, rank: int) -> bool:
        """True when the sink got its share of messages in the last hour; summaries are not counted.

        A quarter of them is left to messages of rank 0.
        """
        if _is_summary(row):
            return False
        if row.sink not in self._sent:  # asked once a round: thousands may wait
            now_ns = self._clock.wall_ns()
            with self._findings.open() as store:
                self._sent[row.sink] = store.sent_between(row.sink, now_ns - HOUR_NS, now_ns)
        sent = self._sent[row.sink]
        limit = self._plan.alerts.max_per_hour
        if sent < (limit if rank == 0 else limit - limit // 4):
            return False
        self._problem = f"hourly limit: {sent} messages to {row.sink}"
        return True


def _overtaken(store: Findings, rows: Sequence[Notification], now_ns: int) -> set[Notification]:
    """Return those that have waited for an hour, and whose sink took another message meanwhile."""
    waited = [row for row in rows if now_ns - row.created_wall_ns >= HOUR_NS]
    last_ns = {sink: store.last_sent_ns(sink, now_ns) for sink in {row.sink for row in waited}}
    return {row for row in waited if (last_ns[row.sink] or 0) > row.created_wall_ns}


def _is_summary(row: Notification) -> bool:
    return row.kind in {"digest", "ended"}
