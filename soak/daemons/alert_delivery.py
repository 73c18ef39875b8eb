"""From a row of the outbox to its sink: noted before it is tried, and settled once it was."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace

from soak.core.plan import Plan
from soak.core.ports import Clock, Message, Outcome, Sink
from soak.core.units import SECOND_NS
from soak.daemons.alert_attempt import attempt
from soak.daemons.alert_chart import draw
from soak.daemons.alert_message import Subject, compose
from soak.daemons.alert_window import bounds, read_window
from soak.store.findings import LONGEST_WAIT_NS, FindingsStore
from soak.store.findings_rows import OutboxRow, Word
from soak.store.run_folder import Run, RunFolder

LOG = logging.getLogger("soak.daemons.alert")
FIRST_WAIT_NS = 5 * SECOND_NS


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
        self._unmarked: tuple[OutboxRow, Outcome] | None = None  # the last try, until it is on disk

    def settle(self) -> None:
        """Write what became of the last message, if that could not be written then: before any other."""
        if self._unmarked is not None:
            self._mark(*self._unmarked)
            self._unmarked = None

    def try_once(self, row: OutboxRow) -> Outcome | None:
        """Return what became of a message; None when it is not owed any more."""
        now_ns = self._clock.wall_ns()
        with FindingsStore(self._folder.findings) as store:
            # First, so that a message in which this process dies does not meet the next one at once.
            word = store.begin_try(row, now_ns, now_ns + wait_ns(row.attempts))
        if word is None:
            return None
        outcome = attempt(lambda: self._sent(row, word))
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

    def words(self, row: OutboxRow) -> Message | None:
        """Return a message without its window and picture; None when there is no such finding."""
        with FindingsStore(self._folder.findings) as store:
            word = store.word(row)
        subject = self._subject(row, word)
        return None if subject is None else compose(subject, None, row.created_wall_ns)

    def _sent(self, row: OutboxRow, word: Word) -> Outcome:
        sink = self._sinks.get(row.sink)
        if sink is None:
            return Outcome("never", f"the plan has no sink {row.sink!r}")
        subject = self._subject(row, word)
        if subject is None:
            return Outcome("never", "the finding is not there")
        return sink.send(replace(self._drawn(row, subject), so_far=row.so_far))

    def _subject(self, row: OutboxRow, word: Word) -> Subject | None:
        if word.finding is None:
            return None
        with FindingsStore(self._folder.findings) as store:
            changes = store.changes(self._run.id)
        return Subject(
            finding=word.finding,
            kind=row.kind,
            turn=row.turn,
            was=word.was,
            plan=self._plan.name,
            run_dir=str(self._folder.path.resolve()),
            start_wall_ns=self._run.start_wall_ns,
            changes=changes,
        )

    def _drawn(self, row: OutboxRow, subject: Subject) -> Message:
        """Return the message with its picture, or without where there is nothing to draw it from."""
        finding = subject.finding
        try:
            first_k, last_k = bounds(finding, row.kind == "gone")
            window = read_window(self._folder.journal, finding.series, first_k, last_k)
            if window is None:
                return compose(subject, None, row.created_wall_ns)
            chart = draw(finding, window, self._run.start_wall_ns)
            return compose(replace(subject, window=window), chart, row.created_wall_ns)
        except Exception as error:  # noqa: BLE001  # a mail without a picture is better than none
            LOG.warning("window_unusable finding=%s error=%r", row.key, error)
            return compose(subject, None, row.created_wall_ns)

    def _mark(self, row: OutboxRow, outcome: Outcome) -> None:
        now_ns = self._clock.wall_ns()
        with FindingsStore(self._folder.findings) as store:
            if outcome.result == "delivered":
                store.mark_sent(row, now_ns, outcome.detail)
            elif outcome.result == "never":
                store.mark_never(row, now_ns, outcome.detail)
            else:
                again_ns = now_ns + wait_ns(row.attempts)
                store.mark_retry(
                    row, now_ns, again_ns, outcome.detail, outcome.so_far or row.so_far
                )


def wait_ns(attempts: int) -> int:
    """Return how long to wait after so many earlier tries: doubled each time, 15 minutes at most."""
    return min(FIRST_WAIT_NS << min(attempts, 20), LONGEST_WAIT_NS)
