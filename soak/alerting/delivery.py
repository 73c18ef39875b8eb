"""Deliver one notification: render it, send it to its sink, and store the result."""

from __future__ import annotations

import logging
import shlex
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from detectors import attribution, level_shift, outage
from detectors.causes.hypothesis import Confirmation
from soak.alerting import heartbeat_message
from soak.alerting.broker_state import read_broker_state
from soak.alerting.chart import (
    Overview,
    chart_title,
    draw_chart,
    draw_overview,
    drawn,
    read_window,
    window_bounds,
)
from soak.alerting.confirmation import addresses_of, known_of
from soak.alerting.digest import compose_digest, compose_end, wants_digests
from soak.alerting.heartbeat import Notice, read_notices
from soak.alerting.load_state import RATE_SECONDS, LoadState, read_load, read_rate_before
from soak.alerting.message.compose import LATE_SECONDS, compose
from soak.alerting.message.context import MessageContext
from soak.alerting.places import NOWHERE, Places, read_places
from soak.core import json_text, wording
from soak.core.errors import FindingsError, JournalError
from soak.core.model import Change, Finding
from soak.core.plan.plan import OUTAGE_DETECTOR, STREAM_DETECTOR, Plan
from soak.core.ports import Clock, Message, Outcome, RepeatingSink, Sink
from soak.core.retry import Backoff
from soak.core.series import parse_series
from soak.core.units import SECOND_NS
from soak.runtime.incident_size import IncidentSize, incident_size
from soak.service.files import read_small_text
from soak.store.findings.port import FindingsPlace
from soak.store.findings.rows import Notification, NotificationContent, is_correction, is_end
from soak.store.findings.store import MAX_RETRY_WAIT_NS
from soak.store.journal.history import MAX_WINDOW_SECONDS, History
from soak.store.plan_home import is_service_run
from soak.store.run_folder import Run, RunFolder

LOG = logging.getLogger("soak.alerting")
_T = TypeVar("_T")
RETRY_BACKOFF = Backoff(5 * SECOND_NS, MAX_RETRY_WAIT_NS)
MAX_SIZED_SECONDS = MAX_WINDOW_SECONDS
"""Incidents that lasted longer have their size in the report: reading them would delay other messages."""
RESEND_PERIOD_NS = 120 * SECOND_NS


def try_send(send: Callable[[], Outcome]) -> Outcome:
    """Send, and return the outcome; an unexpected error becomes `retry`.

    The detail of such an outcome names the kind and place of the error only: its text may quote a secret.

    Raises:
        FindingsError: the findings cannot be used, which concerns all messages.
    """
    try:
        return send()
    except FindingsError:
        raise
    except Exception as error:  # noqa: BLE001  # one bad message must not block all others
        return Outcome("retry", _kind_and_place(error))


def _kind_and_place(error: Exception) -> str:
    at = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} in {Path(at.filename).name}:{at.lineno}"


def report_command(folder: RunFolder, host: str, plan: str) -> str:
    """Return how to make the report of a run; that of a service belongs to the unit's user, not to root."""
    if is_service_run(folder):
        return f"on {host}: systemctl start soak-report@{plan}, then see {folder.report}"
    path = shlex.quote(str(folder.path.resolve()))
    page = folder.report.relative_to(folder.path)
    return f"on {host}: {_own_command()} report {path}, then see {page} in it"


def _own_command() -> str:
    """Return the command `soak` of the installation that this process is from: it may not be on the PATH."""
    installed = Path(sys.executable).with_name("soak")
    if installed.exists():
        return shlex.quote(str(installed))
    return f"{shlex.quote(sys.executable)} -m soak.cli.main"


def cluster_text(plan: Plan) -> str:
    """Return kind and first address of the cluster: `kafka 10.0.0.4:9092 and 2 more`; "" without one."""
    first, *others = addresses_of(plan) or [""]
    more = f" and {len(others)} more" if others else ""
    return f"{plan.broker_kind} {first}{more}" if first else ""


def _overview_chart(found: Mapping[str, Any] | None) -> bytes | None:
    if found is None:
        return None
    try:
        return draw_overview(Overview(**found))
    except Exception as error:  # noqa: BLE001  # a mail without a chart is better than none
        LOG.warning("chart_failed finding=end error=%r", error)
        return None


@dataclass(frozen=True, slots=True)
class _RunContext:
    """What messages about findings refer to: the changes and open findings of the run, and its audit."""

    changes: Sequence[Change]
    open_findings: Sequence[Finding]  # about the cluster
    audit: Mapping[str, Any] | None  # None before the end of the run


class Delivery:
    """Every call raises `FindingsError` when the findings cannot be used; nothing is sent then."""

    def __init__(
        self,
        folder: RunFolder,
        plan: Plan,
        run: Run,
        sinks: Mapping[str, Sink],
        clock: Clock,
        findings: FindingsPlace,
    ) -> None:
        self._folder = folder
        self._findings = findings
        self._plan = plan
        self._run = run
        self._sinks = sinks
        self._clock = clock
        self._last_result: tuple[Notification, Outcome] | None = None  # until it is on disk
        self._context: _RunContext | None = None

    def begin_round(self) -> None:
        """Read the other findings of the run again for the messages that follow."""
        self._context = None

    def try_once(self, row: Notification) -> Outcome | None:
        """Send a notification and return the outcome; None when it is not needed any more."""
        now_ns = self._clock.wall_ns()
        with self._findings.open() as store:
            # Stored first: a message that kills this process must not meet the next one at once.
            content = store.begin_try(row, now_ns, now_ns + RETRY_BACKOFF.wait_ns(row.attempts + 1))
            notice = None if content is None else store.notice(row.subject)
        if content is None:
            return None
        row = replace(row, progress=content.progress)
        outcome = try_send(lambda: self._send(row, content, notice))
        LOG.info(
            "message_tried subject=%s kind=%s occurrence=%d sink=%s result=%s detail=%r",
            row.subject,
            row.kind,
            row.occurrence,
            row.sink,
            outcome.result,
            outcome.detail,
        )
        self._last_result = row, outcome
        self.store_last_result()
        return outcome

    def store_last_result(self) -> None:
        """Store the outcome of the last try, if that failed before: nothing else may be sent until then."""
        if self._last_result is not None:
            self._store_result(*self._last_result)
            self._last_result = None

    def messages(self, rows: Sequence[Notification]) -> list[Message]:
        """Return messages without charts; one whose finding is missing or damaged is left out."""
        self.begin_round()
        with self._findings.open() as store:  # once: a run may have thousands
            stored = [(row, store.content(row), store.notice(row.subject)) for row in rows]
        found = []
        for row, content, notice in stored:
            plainly = partial(compose, chart_png=None, now_wall_ns=row.created_wall_ns)
            try:
                found.append(self._message(row, content, notice, plainly))
            except FindingsError:
                raise
            except Exception as error:  # noqa: BLE001  # as in `try_send`
                reason = _kind_and_place(error)
                LOG.warning("resend_failed sink=%s findings=%d reason=%r", row.sink, 1, reason)
        return [message for message in found if message is not None]

    def _send(self, row: Notification, content: NotificationContent, notice: str | None) -> Outcome:
        sink = self._sinks.get(row.sink)
        if sink is None:
            return Outcome("never", f"the plan has no sink {row.sink!r}")
        if row.kind == "digest" and not (self._plan.alerts.digest and wants_digests(sink)):
            return Outcome("never", f"the plan has no digest for {row.sink!r}")
        if row.kind == "ended" and not wants_digests(sink):
            return Outcome("never", f"{row.sink!r} takes messages about single incidents only")
        draw = partial(self._with_chart, row)
        message = self._message(row, content, notice, draw)
        if message is None:
            return Outcome("never", "what it is about is not stored")
        return sink.send(replace(message, progress=row.progress))

    def _run_context(self) -> _RunContext:
        """Return what is read once for the messages of a round."""
        if self._context is None:
            with self._findings.open() as store:
                open_findings = [
                    one
                    for one in store.findings(self._run.id)
                    if one.state == "confirmed" and one.is_about_cluster
                ]
                audit = _audit(store.end_summary(self._run.id))
                changes = store.changes(self._run.id)
                self._context = _RunContext(changes, open_findings, audit)
        return self._context

    def _message(
        self,
        row: Notification,
        content: NotificationContent,
        notice: str | None,
        compose_finding: Callable[[MessageContext], Message],
    ) -> Message | None:
        if row.kind == "digest":
            return self._digest(row)
        if row.kind == "ended":
            return self._end(row)
        if notice is not None:
            read = Notice.of_text(notice)
            return self._tagged(
                heartbeat_message.compose(
                    read, row.kind, self._run.id, self._plan.name, row.created_wall_ns
                )
            )
        if content.finding is None:
            return None
        context = self._run_context()
        finding = content.finding
        places = self._places(finding.key, finding.onset_k)
        load = self._load(finding, row)
        return compose_finding(
            MessageContext(
                finding=finding,
                kind=row.kind,
                occurrence=row.occurrence,
                previous_cause=content.previous_cause,
                previous_suspect=content.previous_suspect,
                plan=self._plan.name,
                report=self._report(),
                start_wall_ns=self._run.start_wall_ns,
                changes=context.changes,
                other_findings=[one for one in context.open_findings if one.key != row.subject],
                advice=attribution.next_step(finding),
                confirmation=self._confirmation(finding, places),
                cluster=cluster_text(self._plan),
                is_lab=self._plan.lab is not None,
                runbook_page=self._plan.alerts.runbook_url,
                size=self._size(finding, row),
                places=places,
                load=load,
                audit=context.audit,
                broker_state=self._broker_state(finding, row),
                late_seconds=self._late_seconds(),
            )
        )

    def _late_seconds(self) -> float:
        outages: outage.Config = self._plan.detection.detectors[OUTAGE_DETECTOR]
        return outages.limit / SECOND_NS

    def _confirmation(self, finding: Finding, places: Places) -> Confirmation | None:
        """Return the command for the cause with the names and numbers of this incident."""
        found = attribution.confirmation(finding, self._plan.broker_kind)
        if found is None:
            return None
        rate = self._from_journals(
            finding.key, lambda history: read_rate_before(history, finding.onset_k)
        )
        own = {"soak": _own_command(), "run_dir": shlex.quote(str(self._folder.path.resolve()))}
        return found.filled(own | known_of(finding, places, self._plan, rate or 0.0))

    def _broker_state(self, finding: Finding, row: Notification) -> str:
        """Return whether a broker that was silent answers again, at the time of a message that it is over."""
        if row.kind != "resolved" or not (finding.suspect and finding.is_about_cluster):
            return ""
        end_k = (row.created_wall_ns - self._run.start_wall_ns) // SECOND_NS
        seen = (finding.suspect, finding.onset_k, end_k, self._run.start_wall_ns)
        return self._from_journals(finding.key, lambda found: read_broker_state(found, *seen)) or ""

    def _size(self, finding: Finding, row: Notification) -> IncidentSize | None:
        """Return the size of the incident at the time of a message; of a long one the report has it."""
        end_k = (row.created_wall_ns - self._run.start_wall_ns) // SECOND_NS
        last_k = end_k if finding.resolved_k is None else finding.resolved_k
        if is_correction(row.kind) or not 0 <= last_k - finding.onset_k <= MAX_SIZED_SECONDS:
            return None
        detector: level_shift.Config = self._plan.detection.detectors[STREAM_DETECTOR]
        return self._from_journals(
            finding.key,
            lambda found: incident_size(found, finding, last_k, detector.minimum_effect),
        )

    def _load(self, finding: Finding, row: Notification) -> LoadState | None:
        """Return the load at the time of a message; when an incident is resolved, just after its end."""
        if is_correction(row.kind):
            return None
        end_k = (row.created_wall_ns - self._run.start_wall_ns) // SECOND_NS
        resolved_k = finding.resolved_k if row.kind == "resolved" else None
        if resolved_k is not None:
            end_k = min(end_k, resolved_k + RATE_SECONDS)
        return self._from_journals(
            finding.key,
            lambda found: read_load(
                found,
                finding.onset_k,
                end_k,
                resolved_k,
                with_consumers=_is_about_consumers(finding.series),
            ),
        )

    def _places(self, subject: str, k: int | None) -> Places:
        """Return who and what is where in a second, or at the end of what is recorded."""

        def read(history: History) -> Places:
            last_k = max(history.latest().values(), default=0) if k is None else k
            return read_places(history, last_k)

        return self._from_journals(subject, read) or NOWHERE

    def _from_journals(self, subject: str, read: Callable[[History], _T | None]) -> _T | None:
        """Return what is read; None where it cannot be, as no message waits for its journals."""
        try:
            return read(History(self._folder.journal))
        except (JournalError, OSError, ValueError) as error:
            LOG.warning("journals_unreadable subject=%s error=%r", subject, error)
            return None

    def _digest(self, row: Notification) -> Message:
        with self._findings.open() as store:
            findings = store.findings(self._run.id)
            unsent = sum(one.kind != "digest" for one in store.open_notifications())
            since_ns = store.last_digest_ns(row.sink) or self._run.start_wall_ns
        missing = [one for one in read_notices(self._findings) if one.is_open]
        message = compose_digest(
            self._run, findings, missing, unsent, since_ns, row.created_wall_ns
        )
        return self._tagged(message)

    def _end(self, row: Notification) -> Message | None:
        """Return what the report says, which may be on another host; None when that is not known."""
        with self._findings.open() as store:
            text = store.end_summary(self._run.id)
        try:
            # A program of before left it in the report alone.
            text = text or read_small_text(self._folder.summary)
            summary = json_text.loads(text)
        except (OSError, ValueError) as error:
            LOG.warning("summary_unreadable file=%s error=%s", self._folder.summary, error)
            return None
        chart = _overview_chart(summary.get("overview"))
        places = self._places("end", None)
        return self._tagged(
            compose_end(self._run, summary, self._report(), chart, row.created_wall_ns, places)
        )

    def _tagged(self, message: Message) -> Message:
        """Return a message about the whole run with the tag of its cluster in the subject."""
        usual, own = (
            wording.subject_tag(is_lab=one) for one in (False, self._plan.lab is not None)
        )
        return replace(message, subject=message.subject.replace(usual, own, 1))

    def _report(self) -> str:
        """Return where the report is: an address if the plan has one, else how to make it."""
        url = self._plan.alerts.report_url
        if url:
            return url.replace("{run}", self._run.id)
        return report_command(self._folder, self._run.host, self._plan.name)

    def _with_chart(self, row: Notification, context: MessageContext) -> Message:
        """Return the message with its chart, or without one when there is nothing to draw."""
        context = replace(context, composed_wall_ns=self._clock.wall_ns())
        if context.finding.kind == "objective":  # no single series shows a budget
            return compose(context, None, row.created_wall_ns)
        finding = drawn(context.finding)
        try:
            first_k, last_k = window_bounds(finding, is_resolved=is_end(row.kind))
            last_k = self._last_shown_k(row, finding, last_k)
            window = read_window(self._folder.journal, finding.series, first_k, last_k)
            if window is None:
                return compose(context, None, row.created_wall_ns)
            seen = (finding, window, self._run.start_wall_ns, context.places)
            chart, title = draw_chart(*seen), chart_title(*seen)
            context = replace(context, chart_title=title)
            if finding is context.finding:  # else the window shows another series
                context = replace(context, window=window)
            return compose(context, chart, row.created_wall_ns)
        except Exception as error:  # noqa: BLE001  # a mail without a chart is better than none
            LOG.warning("chart_failed finding=%s error=%r", row.subject, error)
            return compose(context, None, row.created_wall_ns)

    def _last_shown_k(self, row: Notification, finding: Finding, last_k: int) -> int:
        """Return the last second of a chart: as the table has it, but of a late message all there is."""
        late_ns = self._clock.wall_ns() - row.created_wall_ns
        if row.kind != "opened" or late_ns >= LATE_SECONDS * SECOND_NS:
            return last_k
        shown_k = (row.created_wall_ns - self._run.start_wall_ns) // SECOND_NS - 1
        is_set_back = shown_k < finding.raised_k  # the clock was, since the finding was raised
        return last_k if is_set_back else min(last_k, shown_k)

    def _store_result(self, row: Notification, outcome: Outcome) -> None:
        now_ns = self._clock.wall_ns()
        arrived = outcome.may_have_arrived
        with self._findings.open() as store:
            if outcome.result == "delivered":
                store.mark_sent(row, now_ns, outcome.detail)
            elif outcome.result == "never":
                store.mark_refused(row, now_ns, outcome.detail, may_have_arrived=arrived)
            else:
                store.mark_deferred(
                    row,
                    now_ns,
                    now_ns + RETRY_BACKOFF.wait_ns(row.attempts + 1),
                    outcome.detail,
                    outcome.progress or row.progress,
                    may_have_arrived=arrived,
                )


def _audit(summary: str | None) -> Mapping[str, Any] | None:
    """Return the audit in what the report of a run says; None where there is no such report."""
    try:
        found = None if summary is None else json_text.loads(summary).get("audit")
    except (ValueError, AttributeError):
        return None
    return found if isinstance(found, dict) else None


def _is_about_consumers(series: str) -> bool:
    metric = parse_series(series).metric
    return metric == wording.DELIVERY_STOPPED or metric.startswith("end_to_end")


class Resender:
    """Sends open findings again to sinks whose receiver forgets them, as an Alertmanager does on a restart.

    Nothing in it is news, so it ignores maintenance windows and the hourly limit.
    """

    def __init__(
        self,
        findings: FindingsPlace,
        delivery: Delivery,
        sinks: Mapping[str, Sink],
        clock: Clock,
        alive: Callable[[], None] = lambda: None,
    ) -> None:
        self._findings = findings
        self._delivery = delivery
        self._sinks = {name: one for name, one in sinks.items() if isinstance(one, RepeatingSink)}
        self._clock = clock
        self._alive = alive
        self._next_ns = 0
        self._problems: dict[str, str] = {}  # by sink, as logged last

    def poll(self) -> None:
        """Raise `FindingsError` when the file cannot be used."""
        now_ns = self._clock.mono_ns()
        if now_ns < self._next_ns or not self._sinks or not self._findings.exists():
            return
        self._next_ns = now_ns + RESEND_PERIOD_NS
        for name, sink in self._sinks.items():
            self._resend(name, sink)

    def _resend(self, name: str, sink: RepeatingSink) -> None:
        with self._findings.open() as store:
            rows = store.unresolved(name)
        messages = self._delivery.messages(rows)
        if not messages:
            return
        self._alive()
        outcome = try_send(lambda: sink.send_again(messages))
        problem = "" if outcome.result == "delivered" else outcome.detail
        if problem and problem != self._problems.get(name):
            LOG.warning("resend_failed sink=%s findings=%d reason=%r", name, len(messages), problem)
        self._problems[name] = problem
