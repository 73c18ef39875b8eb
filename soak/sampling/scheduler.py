"""Reads all probes, each on a thread of its own, and joins their results to one row a second.

The columns of the rows only ever grow at the end. A reading that comes after its row is part of the next row.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue

from soak.core.errors import NotAvailableError, PartialReadingError, ProbeError
from soak.core.model import Column, Event, Reading
from soak.core.plan.plan import Sampling
from soak.core.ports import Clock, Probe
from soak.core.units import SECOND_NS, format_duration

TURN_SECONDS = 0.002
"""How long a probe waits for its turn: probes that read at the same time would pass the interpreter back
and forth at each file that they open. A probe that hangs delays the others by no more than this."""

LOG = logging.getLogger("soak.sampling.scheduler")
REPEAT_WARNING_NS = 60 * SECOND_NS  # between two reports of the same failure
RETRY_ABSENT_SECONDS = 60  # until an unavailable probe is tried again
MAX_COLUMNS = 5000  # bounds the memory if a probe has ever new labels
ROW_TIMEOUT_SECONDS = 0.25  # how long a row waits for the readings of its second
CLOSE_SECONDS = 2.0
MAX_REASON_CHARACTERS = 500  # of an answer that a cluster made

Samples = list[tuple[Column, float]]


@dataclass(frozen=True, slots=True)
class ProbeAnswer:
    """The result of one reading; times are on the monotonic clock."""

    name: str
    begin_ns: int
    end_ns: int
    result: Reading | Exception


class ProbeReader:
    """Reads one probe on a thread of its own; all readers share the queue of answers and `turn`."""

    def __init__(
        self,
        name: str,
        probe: Probe,
        answers: SimpleQueue[ProbeAnswer],
        turn: threading.Lock,
        clock: Clock,
        *,
        turn_seconds: float = TURN_SECONDS,
    ) -> None:
        self._name = name
        self._probe = probe
        self._answers = answers
        self._turn = turn
        self._turn_seconds = turn_seconds
        self._clock = clock
        self._asked: SimpleQueue[bool] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=f"probe-{name}", daemon=True)

    def ask(self) -> None:
        """Start one reading; must not be called again before its answer has come."""
        if self._thread.ident is None:
            self._thread.start()
        self._asked.put(True)

    def close(self) -> None:
        """Close the probe on the thread that read it; returns at once."""
        if self._thread.ident is None:
            self._probe.close()
        else:
            self._asked.put(False)

    def wait(self, timeout_seconds: float) -> None:
        """Wait until the probe is closed; a thread that hangs is abandoned."""
        if self._thread.ident is not None:
            self._thread.join(timeout_seconds)

    def _work(self) -> None:
        while self._asked.get():
            has_turn = self._turn.acquire(timeout=self._turn_seconds)
            begin_ns = self._clock.mono_ns()
            result = self._read()
            answer = ProbeAnswer(self._name, begin_ns, self._clock.mono_ns(), result)
            if has_turn:
                self._turn.release()
            self._answers.put(answer)
        self._probe.close()

    def _read(self) -> Reading | Exception:
        try:
            return self._probe.read()
        except Exception as error:  # noqa: BLE001  # the scheduler handles it
            return error


@dataclass(slots=True)
class _ProbeState:
    """The state of one probe: when it is due, since when its answer is awaited, what was reported."""

    sampling: Sampling
    next_k: int = 0
    asked_k: int = 0
    due_ns: int = 0  # the end of that second
    is_pending: bool = False
    is_overdue: bool = False  # reported as failed
    reason: str = ""
    reported_ns: int = 0
    failures: int = 0  # since then


@dataclass(slots=True)
class _Row:
    """The values and events of one second."""

    values: dict[Column, float] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)

    def note_lag(self, column: Column, lag_ns: int) -> None:
        """Keep the largest lag: of a late reading, and of the one that was started after it."""
        lag = lag_ns / SECOND_NS
        self.values[column] = max(lag, self.values.get(column, lag))


class Scheduler:
    """Reads the probes that are due, each on its own thread, and reports success, failure and lag of each."""

    def __init__(
        self,
        probes: Mapping[str, Probe],
        clock: Clock,
        sampling: Mapping[str, Sampling] | None = None,
        *,
        max_columns: int = MAX_COLUMNS,
        row_timeout_seconds: float = ROW_TIMEOUT_SECONDS,
        close_seconds: float = CLOSE_SECONDS,
        turn_seconds: float = TURN_SECONDS,
    ) -> None:
        self._clock = clock
        self._max_columns = max_columns
        self._row_timeout_seconds = row_timeout_seconds
        self._close_seconds = close_seconds
        self._answers: SimpleQueue[ProbeAnswer] = SimpleQueue()
        turn = threading.Lock()
        self._readers = {
            name: ProbeReader(name, probe, self._answers, turn, clock, turn_seconds=turn_seconds)
            for name, probe in probes.items()
        }
        settings = sampling or {}
        self._states = {name: _ProbeState(settings.get(name) or Sampling()) for name in probes}
        self._columns: dict[Column, None] = {}
        self._is_full = False

    def read(self, k: int, due_ns: int) -> tuple[Samples, list[Event]]:
        """Return every column seen so far, with NaN if nothing was measured, and the events.

        `due_ns` is the monotonic instant at which second k ended. An answer that came after its own row is
        part of this one, and its probe is not read again for it: a reading empties its source.
        """
        row = _Row()
        late = self._add_late(row)
        awaited = {name for name in self._states if name not in late and self._ask(name, k, due_ns)}
        self._add_in_time(awaited, row)
        for name, state in self._states.items():
            if state.is_pending:
                self._note_pending(name, state, row)
        self._extend(row)
        samples = [(column, row.values.get(column, math.nan)) for column in self._columns]
        return samples, row.events

    def close(self) -> None:
        """Close every probe; one that hangs is abandoned."""
        for reader in self._readers.values():
            reader.close()
        end_ns = self._clock.mono_ns() + round(self._close_seconds * SECOND_NS)
        for reader in self._readers.values():
            reader.wait(max(0.0, (end_ns - self._clock.mono_ns()) / SECOND_NS))

    def _ask(self, name: str, k: int, due_ns: int) -> bool:
        state = self._states[name]
        if state.is_pending or k < state.next_k:
            return False
        period = state.sampling.period // SECOND_NS
        state.next_k = (k // period + 1) * period  # all hosts read in the same seconds
        state.asked_k, state.due_ns = k, due_ns
        state.is_pending, state.is_overdue = True, False
        self._readers[name].ask()
        return True

    def _add_late(self, row: _Row) -> set[str]:
        """Add the answers since the last row and return the names of their probes; each has one at most."""
        late: set[str] = set()
        while not self._answers.empty():
            answer = self._answers.get()
            late.add(answer.name)
            self._add(answer, row)
        return late

    def _add_in_time(self, awaited: set[str], row: _Row) -> None:
        end_ns = self._clock.mono_ns() + round(self._row_timeout_seconds * SECOND_NS)
        came: dict[str, ProbeAnswer] = {}
        while awaited - came.keys():
            try:
                remaining = (end_ns - self._clock.mono_ns()) / SECOND_NS
                answer = self._answers.get(timeout=max(0.0, remaining))
            except Empty:
                break
            came[answer.name] = answer
        for name in self._states:  # in the order of the plan, not of arrival
            if name in came:
                self._add(came[name], row)

    def _add(self, answer: ProbeAnswer, row: _Row) -> None:
        name, result, state = answer.name, answer.result, self._states[answer.name]
        success, duration, lag = own_columns(name)
        state.is_pending = False
        if isinstance(result, NotAvailableError):
            state.next_k = max(state.next_k, state.asked_k + RETRY_ABSENT_SECONDS)
            self._report_absent(name, _reason_of(result), row)
            return
        row.note_lag(lag, answer.end_ns - state.due_ns)
        if isinstance(result, ProbeError):
            if isinstance(result, PartialReadingError):
                self._add_reading(result.reading, state, row)
            row.values[success] = 0.0
            row.values[duration] = (answer.end_ns - answer.begin_ns) / SECOND_NS
            self._report_failed(name, _reason_of(result), row)
        elif isinstance(result, Reading):
            self._add_reading(result, state, row)
            if (
                result.samples and not state.is_overdue
            ):  # one still looking for its source has neither succeeded nor failed
                row.values[success] = 1.0
                row.values[duration] = result.cost_seconds
        else:  # a bug: it must not affect the other probes
            reason = f"{type(result).__name__}: {_reason_of(result)}"
            if reason != state.reason:
                LOG.error("probe_broken probe=%s", name, exc_info=result)
            row.values[success] = 0.0
            self._report_failed(name, reason, row)

    def _add_reading(self, reading: Reading, state: _ProbeState, row: _Row) -> None:
        row.events.extend(reading.events)
        if state.is_overdue:  # the time of its values is unknown; events have their own
            return
        row.values.update(
            (column, value) for column, value in reading.samples if not math.isinf(value)
        )  # a record cannot hold an infinite value

    def _note_pending(self, name: str, state: _ProbeState, row: _Row) -> None:
        """Note the lag of a reading that has not come yet, and report it as failed beyond its limit."""
        success, _, lag = own_columns(name)
        late_ns = self._clock.mono_ns() - state.due_ns
        row.note_lag(lag, late_ns)
        if late_ns < state.sampling.timeout:
            return
        row.values[success] = 0.0
        if not state.is_overdue:
            state.is_overdue = True
            limit = format_duration(state.sampling.timeout)
            self._report_failed(name, f"no answer within {limit}", row)

    def _report_absent(self, name: str, reason: str, row: _Row) -> None:
        state = self._states[name]
        if reason == state.reason:
            return
        state.reason = reason
        LOG.warning("probe_not_available probe=%s reason=%r", name, reason)
        row.events.append(self._event("probe_not_available", {"probe": name, "reason": reason}))

    def _report_failed(self, name: str, reason: str, row: _Row) -> None:
        state = self._states[name]
        state.failures += 1
        now_ns = self._clock.mono_ns()
        if reason == state.reason and now_ns - state.reported_ns < REPEAT_WARNING_NS:
            return
        LOG.warning("probe_failed probe=%s reason=%r failures=%d", name, reason, state.failures)
        fields: dict[str, str | int] = {
            "probe": name,
            "reason": reason,
            "failures": state.failures,
        }
        row.events.append(self._event("probe_failed", fields))
        state.reason, state.reported_ns, state.failures = reason, now_ns, 0

    def _event(self, kind: str, fields: Mapping[str, str | int]) -> Event:
        at_ns = self._clock.wall_ns()
        return Event(kind, at_ns, at_ns - SECOND_NS, dict(fields))

    def _extend(self, row: _Row) -> None:
        for column in row.values:
            if len(self._columns) < self._max_columns:
                self._columns.setdefault(column)
            elif column not in self._columns and not self._is_full:
                self._is_full = True
                LOG.error(
                    "probe_columns_full limit=%d first_left_out=%s", self._max_columns, column.name
                )
                fields: dict[str, str | int] = {"limit": self._max_columns, "column": column.name}
                row.events.append(self._event("probe_columns_full", fields))


def _reason_of(error: Exception) -> str:
    return str(error)[:MAX_REASON_CHARACTERS]


def own_columns(name: str) -> tuple[Column, Column, Column]:
    """Return the columns about a probe itself: success, cost and lag."""
    labels = (("probe", name),)
    return (
        Column("probe_success", labels, "ratio"),
        Column("probe_duration_seconds", labels, "seconds"),
        Column("probe_lag_seconds", labels, "seconds"),
    )
