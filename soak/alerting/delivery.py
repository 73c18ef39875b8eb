"""Deliver one notification: render it, send it to its sink, and store the result."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from soak.alerting import heartbeat_message
from soak.alerting.chart import draw_chart, read_window, window_bounds
from soak.alerting.heartbeat import Notice
from soak.alerting.message import MessageContext, compose
from soak.core import plugins
from soak.core.errors import FindingsError, PlanError
from soak.core.model import Change, Finding
from soak.core.plan.plan import Plan
from soak.core.ports import Clock, Message, Outcome, RepeatingSink, Sink
from soak.core.units import SECOND_NS
from soak.store.findings.rows import Notification, NotificationContent
from soak.store.findings.store import MAX_RETRY_WAIT_NS, FindingsStore
from soak.store.plan_home import is_service_run
from soak.store.run_folder import Run, RunFolder


def try_send(send: Callable[[], Outcome]) -> Outcome:
    """Return what became of it; a fault of our own is one more reason to try again later.

    Such an error is told by its kind and place: its text may quote a secret.

    Raises:
        FindingsError: not this message but all of them are out of reach.
    """
    try:
        return send()
    except FindingsError:
        raise
    except Exception as error:  # noqa: BLE001  # else one message could keep all others from people
        at = traceback.extract_tb(error.__traceback__)[-1]
        return Outcome("retry", f"{type(error).__name__} in {Path(at.filename).name}:{at.lineno}")


# --- From a row of the outbox to its sink: noted before it is tried, and settled once it was.

LOG = logging.getLogger("soak.alerting.daemon")
FIRST_WAIT_NS = 5 * SECOND_NS


@dataclass(frozen=True, slots=True)
class _RunContext:
    """What a run's messages say beside their own finding."""

    changes: Sequence[Change]
    lasting: Sequence[Finding]  # those about the cluster


class Delivery:
    """Every call raises `FindingsError` when the outbox cannot be used; nothing is sent then."""

    def __init__(
        self, folder: RunFolder, plan: Plan, run: Run, sinks: Mapping[str, Sink], clock: Clock
    ) -> None:
        self._folder = folder
        self._plan = plan
        self._run = run
        self._sinks = sinks
        self._clock = clock
        self._unmarked: tuple[Notification, Outcome] | None = (
            None  # the last try, until it is on disk
        )

    def settle(self) -> None:
        """Write what became of the last message, if that could not be written then: before any other."""
        if self._unmarked is not None:
            self._mark(*self._unmarked)
            self._unmarked = None

    def try_once(self, row: Notification) -> Outcome | None:
        """Return what became of a message; None when it is not owed any more."""
        now_ns = self._clock.wall_ns()
        with FindingsStore(self._folder.findings) as store:
            # First, so that a message in which this process dies does not meet the next one at once.
            word = store.begin_try(row, now_ns, now_ns + retry_wait_ns(row.attempts))
        if word is None:
            return None
        row = replace(row, so_far=word.so_far)
        outcome = try_send(lambda: self._sent(row, word))
        LOG.info(
            "message_tried finding=%s kind=%s turn=%d sink=%s result=%s detail=%r",
            row.key,
            row.kind,
            row.turn,
            row.sink,
            outcome.result,
            outcome.detail,
        )
        self._unmarked = row, outcome
        self.settle()
        return outcome

    def words(self, rows: Sequence[Notification]) -> list[Message]:
        """Return messages without window and picture, of those of which there is something to tell."""
        found = self._found()
        messages = []
        for row in rows:
            with FindingsStore(self._folder.findings) as store:
                word = store.word(row)
            plainly = partial(compose, chart_png=None, now_wall_ns=row.created_wall_ns)
            message = self._message(row, word, found, plainly)
            messages += [] if message is None else [message]
        return messages

    def _sent(self, row: Notification, word: NotificationContent) -> Outcome:
        sink = self._sinks.get(row.sink)
        if sink is None:
            return Outcome("never", f"the plan has no sink {row.sink!r}")
        message = self._message(row, word, self._found(), partial(self._drawn, row))
        if message is None:
            return Outcome("never", "the finding is not there")
        return sink.send(replace(message, so_far=row.so_far))

    def _found(self) -> _RunContext:
        """Return what else there is of the run: read once for all messages, as it may be much."""
        with FindingsStore(self._folder.findings) as store:
            lasting = [
                one
                for one in store.findings(self._run.id)
                if one.state == "confirmed" and one.is_about_cluster
            ]
            return _RunContext(store.changes(self._run.id), lasting)

    def _message(
        self,
        row: Notification,
        word: NotificationContent,
        found: _RunContext,
        composed: Callable[[MessageContext], Message],
    ) -> Message | None:
        with FindingsStore(self._folder.findings) as store:
            notice = store.notice(row.key)
        if notice is not None:
            return self._noticed(notice, row)
        subject = self._subject(row, word, found)
        return None if subject is None else composed(subject)

    def _noticed(self, notice: str, row: Notification) -> Message:
        about = heartbeat_message.About(run=self._run.id, plan=self._plan.name)
        silence = Notice.of_text(notice)
        return heartbeat_message.compose(silence, row.kind, about, row.created_wall_ns)

    def _subject(
        self, row: Notification, word: NotificationContent, found: _RunContext
    ) -> MessageContext | None:
        if word.finding is None:
            return None
        return MessageContext(
            finding=word.finding,
            kind=row.kind,
            turn=row.turn,
            was=word.was,
            plan=self._plan.name,
            report=report_command(self._folder, self._run.host, self._plan.name),
            start_wall_ns=self._run.start_wall_ns,
            changes=found.changes,
            beside=[one for one in found.lasting if one.key != row.key],
            advice=_advice(word.finding.cause),
        )

    def _drawn(self, row: Notification, subject: MessageContext) -> Message:
        """Return the message with its picture, or without where there is nothing to draw it from."""
        finding = subject.finding
        try:
            first_k, last_k = window_bounds(finding, row.kind == "gone")
            window = read_window(self._folder.journal, finding.series, first_k, last_k)
            if window is None:
                return compose(subject, None, row.created_wall_ns)
            chart = draw_chart(finding, window, self._run.start_wall_ns)
            return compose(replace(subject, window=window), chart, row.created_wall_ns)
        except Exception as error:  # noqa: BLE001  # a mail without a picture is better than none
            LOG.warning("window_unusable finding=%s error=%r", row.key, error)
            return compose(subject, None, row.created_wall_ns)

    def _mark(self, row: Notification, outcome: Outcome) -> None:
        now_ns = self._clock.wall_ns()
        with FindingsStore(self._folder.findings) as store:
            if outcome.result == "delivered":
                store.mark_sent(row, now_ns, outcome.detail)
            elif outcome.result == "never":
                store.mark_never(row, now_ns, outcome.detail, is_heard=outcome.is_heard)
            else:
                store.mark_retry(
                    row,
                    now_ns,
                    now_ns + retry_wait_ns(row.attempts),
                    outcome.detail,
                    outcome.so_far or row.so_far,
                    is_heard=outcome.is_heard,
                )


def _advice(cause: str) -> str:
    """Return where to look first; of a cause that only another version knows nothing."""
    try:
        return str(plugins.load("detectors.causes", cause).NEXT)
    except PlanError:
        return ""


def report_command(folder: RunFolder, host: str, plan: str) -> str:
    """Return how a run's report is made: of a service's run by its unit, which files of root's would end."""
    if is_service_run(folder):
        return f"on {host}: systemctl start soak-report@{plan}, then see {folder.report}"
    return f"on {host}: soak report {folder.path.resolve()}"


def retry_wait_ns(attempts: int) -> int:
    """Return how long to wait after so many earlier tries: doubled each time, 15 minutes at most."""
    return min(FIRST_WAIT_NS << min(attempts, 20), MAX_RETRY_WAIT_NS)


# --- What was told and lasts, said again to receivers that forget, as an Alertmanager does when it ends.

RESEND_PERIOD_NS = 120 * SECOND_NS


class Resender:
    """Call `poll` each round; it is news to nobody, so no window and no limit holds it back."""

    def __init__(
        self,
        folder: RunFolder,
        delivery: Delivery,
        sinks: Mapping[str, Sink],
        clock: Clock,
        alive: Callable[[], None] = lambda: None,
    ) -> None:
        self._folder = folder
        self._delivery = delivery
        self._sinks = {name: one for name, one in sinks.items() if isinstance(one, RepeatingSink)}
        self._clock = clock
        self._alive = alive
        self._next_ns = 0
        self._failed: dict[str, str] = {}  # by sink: what it last said

    def poll(self) -> None:
        """Raise `FindingsError` when the file cannot be used."""
        now_ns = self._clock.mono_ns()
        if now_ns < self._next_ns or not self._sinks or not self._folder.findings.exists():
            return
        self._next_ns = now_ns + RESEND_PERIOD_NS
        for name, sink in self._sinks.items():
            self._say_again(name, sink)

    def _say_again(self, name: str, sink: RepeatingSink) -> None:
        with FindingsStore(self._folder.findings) as store:
            rows = store.lasting(name)
        messages = self._delivery.words(rows)
        if not messages:
            return
        self._alive()
        outcome = try_send(lambda: sink.say_again(messages))
        problem = "" if outcome.result == "delivered" else outcome.detail
        if problem and problem != self._failed.get(name):
            LOG.warning("not_said_again sink=%s findings=%d why=%r", name, len(messages), problem)
        self._failed[name] = problem
