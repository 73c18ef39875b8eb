"""Reads all probes, each on a thread of its own, and joins what they return to one row a second."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue

from soak.core.errors import NotAvailableError, ProbeError
from soak.core.model import Column, Event, Reading
from soak.core.plan.plan import Sampling
from soak.core.ports import Clock, Probe
from soak.core.units import SECOND_NS, format_duration

TURN_SECONDS = 0.002
"""A probe waits so long for the others: at once, they would hand the interpreter to and fro at each file
that they open. One that hangs costs the rest no more than this."""


@dataclass(frozen=True, slots=True)
class ProbeAnswer:
    """What one reading came to; times are on the monotonic clock."""

    name: str
    begin_ns: int
    end_ns: int
    result: Reading | Exception


class ProbeReader:
    """Reads when asked and puts the answer into a queue that all readers share, as they do `turn`."""

    def __init__(
        self,
        name: str,
        probe: Probe,
        answers: SimpleQueue[ProbeAnswer],
        turn: threading.Lock,
        clock: Clock,
    ) -> None:
        self._name = name
        self._probe = probe
        self._answers = answers
        self._turn = turn
        self._clock = clock
        self._asked: SimpleQueue[bool] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=f"probe-{name}", daemon=True)

    def ask(self) -> None:
        """Have the probe read once; not again before its answer has come."""
        if self._thread.ident is None:
            self._thread.start()
        self._asked.put(True)

    def close(self) -> None:
        """Have the probe closed, by the thread that read it; returns at once."""
        if self._thread.ident is None:
            self._probe.close()
        else:
            self._asked.put(False)

    def wait(self, timeout_seconds: float) -> None:
        """Wait until it is closed; a thread that hangs is left behind."""
        if self._thread.ident is not None:
            self._thread.join(timeout_seconds)

    def _work(self) -> None:
        while self._asked.get():
            has_turn = self._turn.acquire(timeout=TURN_SECONDS)
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
        except Exception as error:  # noqa: BLE001  # judged, or raised again, by who takes the answer
            return error


# --- All probes together: one row a second, whose columns only ever grow at the end.
# What is not read soon after its second is left behind, and recorded in the second in which it comes.

LOG = logging.getLogger("soak.sampling.scheduler")
REPEAT_WARNING_NS = 60 * SECOND_NS  # a failing probe is told of this often
RETRY_ABSENT_SECONDS = 60  # and an absent one asked
MAX_COLUMNS = 5000  # a probe whose labels never end must not fill the memory
ROW_TIMEOUT_SECONDS = 0.25  # a second's row waits so long for the readings of that second
CLOSE_SECONDS = 2.0

Samples = list[tuple[Column, float]]


@dataclass(slots=True)
class _ProbeState:
    """Where one probe stands: when it is due, since when its answer is awaited, what was said of it."""

    sampling: Sampling
    next_k: int = 0
    asked_k: int = 0
    due_ns: int = 0  # end of that second
    is_out: bool = False
    is_overdue: bool = False  # told of as failed
    reason: str = ""
    said_ns: int = 0
    failures: int = 0  # since then


@dataclass(slots=True)
class _Row:
    """What one second gives."""

    values: dict[Column, float] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)

    def note_lag(self, column: Column, lag_ns: int) -> None:
        """Keep the largest: of a late reading, and of the one that was asked for after it."""
        lag = lag_ns / SECOND_NS
        self.values[column] = max(lag, self.values.get(column, lag))


class Scheduler:
    """Asks the probes that are due, each on its own thread, and says what became of it."""

    def __init__(
        self,
        probes: Mapping[str, Probe],
        clock: Clock,
        sampling: Mapping[str, Sampling] | None = None,
        *,
        max_columns: int = MAX_COLUMNS,
        patience_seconds: float = ROW_TIMEOUT_SECONDS,
        close_seconds: float = CLOSE_SECONDS,
    ) -> None:
        self._clock = clock
        self._max_columns = max_columns
        self._patience_seconds = patience_seconds
        self._close_seconds = close_seconds
        self._answers: SimpleQueue[ProbeAnswer] = SimpleQueue()
        turn = threading.Lock()
        self._readers = {
            name: ProbeReader(name, probe, self._answers, turn, clock)
            for name, probe in probes.items()
        }
        given = sampling or {}
        self._turns = {name: _ProbeState(given.get(name) or Sampling()) for name in probes}
        self._columns: dict[Column, None] = {}
        self._is_full = False

    def read(self, k: int, due_ns: int) -> tuple[Samples, list[Event]]:
        """Return every column seen so far, NaN where nothing was measured, and the events.

        `due_ns` is the monotonic instant at which second k ended. A probe whose answer came after its own row
        is in this one, and is not asked for it again: a reading empties its source.
        """
        found = _Row()
        late = self._take_late(found)
        awaited = {name for name in self._turns if name not in late and self._ask(name, k, due_ns)}
        self._take(awaited, found)
        for name, turn in self._turns.items():
            if turn.is_out:
                self._note_out(name, turn, found)
        self._extend(found)
        samples = [(column, found.values.get(column, math.nan)) for column in self._columns]
        return samples, found.events

    def close(self) -> None:
        """Close every probe; one that hangs is left behind."""
        for reader in self._readers.values():
            reader.close()
        end_ns = self._clock.mono_ns() + round(self._close_seconds * SECOND_NS)
        for reader in self._readers.values():
            reader.wait(max(0.0, (end_ns - self._clock.mono_ns()) / SECOND_NS))

    def _ask(self, name: str, k: int, due_ns: int) -> bool:
        turn = self._turns[name]
        if turn.is_out or k < turn.next_k:
            return False
        period = turn.sampling.period // SECOND_NS
        turn.next_k = (k // period + 1) * period  # every host reads in the same seconds
        turn.asked_k, turn.due_ns = k, due_ns
        turn.is_out, turn.is_overdue = True, False
        self._readers[name].ask()
        return True

    def _take_late(self, found: _Row) -> set[str]:
        """Take what came since the last row, and return whose; of one probe there is only one reading."""
        late: set[str] = set()
        while not self._answers.empty():
            answer = self._answers.get()
            late.add(answer.name)
            self._take_one(answer, found)
        return late

    def _take(self, awaited: set[str], found: _Row) -> None:
        end_ns = self._clock.mono_ns() + round(self._patience_seconds * SECOND_NS)
        came: dict[str, ProbeAnswer] = {}
        while awaited - came.keys():
            try:
                left = (end_ns - self._clock.mono_ns()) / SECOND_NS
                answer = self._answers.get(timeout=max(0.0, left))
            except Empty:
                break
            came[answer.name] = answer
        for name in self._turns:  # in the plan's order, whoever was first
            if name in came:
                self._take_one(came[name], found)

    def _take_one(self, answer: ProbeAnswer, found: _Row) -> None:
        name, result, turn = answer.name, answer.result, self._turns[answer.name]
        success, duration, lag = own_columns(name)
        turn.is_out = False
        if isinstance(result, NotAvailableError):
            turn.next_k = max(turn.next_k, turn.asked_k + RETRY_ABSENT_SECONDS)
            self._say_absent(name, str(result), found)
            return
        found.note_lag(lag, answer.end_ns - turn.due_ns)
        if isinstance(result, ProbeError):
            found.values[success] = 0.0
            found.values[duration] = (answer.end_ns - answer.begin_ns) / SECOND_NS
            self._say_failed(name, str(result), found)
        elif isinstance(result, Reading):
            found.events.extend(result.events)
            if turn.is_overdue:  # numbers of nobody knows when; events have their own times
                return
            found.values.update(
                (column, value) for column, value in result.samples if not math.isinf(value)
            )  # no record holds an infinite number
            if result.samples:  # one that still looks for its source neither succeeded nor failed
                found.values[success] = 1.0
                found.values[duration] = result.cost_seconds
        else:  # a bug, or a page that nobody has thought of: it costs this probe, not the others
            reason = f"{type(result).__name__}: {result}"
            if reason != turn.reason:
                LOG.error("probe_broken probe=%s", name, exc_info=result)
            found.values[success] = 0.0
            self._say_failed(name, reason, found)

    def _note_out(self, name: str, turn: _ProbeState, found: _Row) -> None:
        """Say how late a reading is that is not there yet, and beyond its limit that it has failed."""
        success, _, lag = own_columns(name)
        late_ns = self._clock.mono_ns() - turn.due_ns
        found.note_lag(lag, late_ns)
        if late_ns < turn.sampling.timeout:
            return
        found.values[success] = 0.0
        if not turn.is_overdue:
            turn.is_overdue = True
            limit = format_duration(turn.sampling.timeout)
            self._say_failed(name, f"no answer within {limit}", found)

    def _say_absent(self, name: str, reason: str, found: _Row) -> None:
        turn = self._turns[name]
        if reason == turn.reason:
            return
        turn.reason = reason
        LOG.warning("probe_not_available probe=%s reason=%r", name, reason)
        found.events.append(self._event("probe_not_available", {"probe": name, "reason": reason}))

    def _say_failed(self, name: str, reason: str, found: _Row) -> None:
        turn = self._turns[name]
        turn.failures += 1
        now_ns = self._clock.mono_ns()
        if reason == turn.reason and now_ns - turn.said_ns < REPEAT_WARNING_NS:
            return
        LOG.warning("probe_failed probe=%s reason=%r failures=%d", name, reason, turn.failures)
        fields: dict[str, str | int] = {
            "probe": name,
            "reason": reason,
            "failures": turn.failures,
        }
        found.events.append(self._event("probe_failed", fields))
        turn.reason, turn.said_ns, turn.failures = reason, now_ns, 0

    def _event(self, kind: str, fields: Mapping[str, str | int]) -> Event:
        at_ns = self._clock.wall_ns()
        return Event(kind, at_ns, at_ns - SECOND_NS, dict(fields))

    def _extend(self, found: _Row) -> None:
        for column in found.values:
            if len(self._columns) < self._max_columns:
                self._columns.setdefault(column)
            elif column not in self._columns and not self._is_full:
                self._is_full = True
                LOG.error(
                    "probe_columns_full limit=%d first_left_out=%s", self._max_columns, column.name
                )
                fields: dict[str, str | int] = {"limit": self._max_columns, "column": column.name}
                found.events.append(self._event("probe_columns_full", fields))


def own_columns(name: str) -> tuple[Column, Column, Column]:
    """Return what is recorded of each probe itself: success, what it cost, how late it was."""
    labels = (("probe", name),)
    return (
        Column("probe_success", labels, "ratio"),
        Column("probe_duration_seconds", labels, "seconds"),
        Column("probe_lag_seconds", labels, "seconds"),
    )
