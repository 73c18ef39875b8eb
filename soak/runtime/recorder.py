"""Turn the measurements of one second into a journal record, and detect clock steps and suspends.

Names, labels and fields may come from a cluster. A column or an event that the reader of the journal would
refuse is left out and counted here, for all daemons, so that none costs its whole second.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from soak.core.clock import Grid
from soak.core.journal_format import columns_line, readable_columns, readable_events
from soak.core.model import Column, Event, Record, Span
from soak.core.ports import Clock
from soak.core.units import SECOND_NS
from soak.service.metrics import Distributions, Samples

LOG = logging.getLogger("soak.runtime.recorder")

LEFT_OUT_EVENT = "left_out_of_journal"
"""Columns and events that no reader of the journal would take, as of a label beyond its bounds."""

CLOCK_STEP_NS = SECOND_NS // 2  # NTP slews below 500 ppm stay far under this in a second
SUSPEND_NS = SECOND_NS
REPEAT_EVENT_NS = 60 * SECOND_NS  # between two reports of what was left out


class Journal(Protocol):
    """Takes records: a journal writer, or the thread of one."""

    @property
    def epoch(self) -> int: ...

    @property
    def is_behind(self) -> bool: ...

    def append(self, record: Record, columns: Sequence[Column]) -> None: ...

    def close(self, *, is_end: bool) -> None: ...


class Recorder:
    """Appends one record per interval; `is_suspended` becomes true when this epoch must end."""

    def __init__(
        self,
        writer: Journal,
        grid: Grid,
        clock: Clock,
        show: Callable[[Samples, Distributions], None] = lambda _, __: None,
    ) -> None:
        self._writer = writer
        self._show = show
        self._grid = grid
        self._clock = clock
        self._given: tuple[Column, ...] | None = None
        self._columns: tuple[Column, ...] = ()  # without those that no journal holds
        self._columns_id = ""
        self._refused = ""  # why the first of the others was left out
        self._events_out = 0  # left out since the last report
        self._reason = ""  # to be reported
        self._reported_ns: int | None = None
        self._last_ns = clock.mono_ns()
        self._wall_ahead_ns = clock.wall_ns() - self._last_ns
        self._boot_ahead_ns = clock.boot_ns() - self._last_ns
        self._is_behind = False
        self._noted: list[Event] = []
        self.is_suspended = False

    def note_event(self, kind: str, fields: Mapping[str, str | int | float]) -> None:
        """Add an event that happened now to the next record."""
        now_ns = self._clock.wall_ns()
        self._noted.append(Event(kind, now_ns, now_ns, fields))

    def append(
        self,
        k: int,
        samples: Samples,
        *,
        histograms: Mapping[str, str] | None = None,
        distributions: Distributions | None = None,
        acknowledged: Mapping[str, tuple[Span, ...]] | None = None,
        received: Mapping[str, tuple[Span, ...]] | None = None,
        sent_next: Mapping[str, int] | None = None,
        events: Sequence[Event] = (),
        validity: Mapping[str, str | int | float | bool] | None = None,
    ) -> None:
        """Write the measurements of interval k; the columns may change from call to call.

        `distributions` are those of the `histograms`, for the metrics page.
        """
        now_ns = self._clock.mono_ns()
        samples = self._readable(samples)
        clock_events = self._clock_events(now_ns)
        reasons = {"reason": clock_events[0].kind} if clock_events else {}
        record = Record(
            k=k,
            epoch=self._writer.epoch,
            at_ns=self._clock.wall_ns(),
            length_ns=now_ns - self._last_ns,
            columns_id=self._columns_id,
            values=tuple(value for _, value in samples),
            histograms=histograms or {},
            acknowledged=acknowledged or {},
            received=received or {},
            sent_next=sent_next or {},
            events=self._readable_events((*self._noted, *events, *clock_events), now_ns),
            validity={**(validity or {}), **reasons},
        )
        self._noted.clear()
        self._last_ns = now_ns
        self._show(samples, distributions or {})
        self._writer.append(record, self._columns)
        if self._writer.is_behind != self._is_behind:
            self._is_behind = self._writer.is_behind
            LOG.warning("journal_behind is_behind=%s k=%d", self._is_behind, k)

    def append_earlier(self, k: int, samples: Samples) -> None:
        """Write what a source still knows of an interval before this daemon started."""
        samples = self._readable(samples)
        record = Record(
            k=k,
            epoch=self._writer.epoch,
            at_ns=self._grid.wall_of(k + 1),
            length_ns=SECOND_NS,
            columns_id=self._columns_id,
            values=tuple(value for _, value in samples),
        )
        self._writer.append(record, self._columns)

    def _readable(self, samples: Samples) -> Samples:
        """Return the samples whose columns a journal can hold; note the columns."""
        given = tuple(column for column, _ in samples)
        if given != self._given:
            self._given = given
            self._columns, self._refused = readable_columns(given)
            self._columns_id = columns_line(self._columns).id
        if len(self._columns) == len(given):
            return samples
        kept = frozenset(self._columns)
        return [(column, value) for column, value in samples if column in kept]

    def _readable_events(self, events: Sequence[Event], now_ns: int) -> tuple[Event, ...]:
        """Return the events that a journal can hold, and once a minute one that counts what was left out."""
        kept, refused = readable_events(events)
        columns_out = len(self._given or ()) - len(self._columns)
        self._events_out += len(events) - len(kept)
        self._reason = self._refused or refused or self._reason
        is_due = self._reported_ns is None or now_ns - self._reported_ns >= REPEAT_EVENT_NS
        if not (self._reason and is_due):
            return kept
        LOG.warning(
            "left_out_of_journal columns=%d events=%d reason=%r",
            columns_out,
            self._events_out,
            self._reason,
        )
        fields: dict[str, str | int | float] = {
            "columns": columns_out,
            "events": self._events_out,
            "reason": self._reason,
        }
        self._events_out, self._reason, self._reported_ns = 0, "", now_ns
        at_ns = self._clock.wall_ns()
        return (*kept, Event(LEFT_OUT_EVENT, at_ns, at_ns - SECOND_NS, fields))

    def _clock_events(self, now_ns: int) -> list[Event]:
        wall_ns = self._clock.wall_ns()
        moved_ns = wall_ns - now_ns - self._wall_ahead_ns
        slept_ns = self._clock.boot_ns() - now_ns - self._boot_ahead_ns
        self._wall_ahead_ns += moved_ns
        self._boot_ahead_ns += slept_ns
        since_ns = self._grid.wall_of(self._grid.interval_index_at(self._last_ns))
        if slept_ns > SUSPEND_NS:
            self.is_suspended = True
            return [Event("suspend", wall_ns, since_ns, {"seconds": slept_ns / SECOND_NS})]
        if abs(moved_ns) > CLOCK_STEP_NS:
            return [Event("clock_step", wall_ns, since_ns, {"seconds": moved_ns / SECOND_NS})]
        return []


def quantile_column(metric: str, quantile: str) -> Column:
    """Return the column of one quantile of a latency."""
    return Column(metric, (("quantile", quantile),), "seconds")
