"""The live view of a run: a refreshed panel on a terminal, plain lines everywhere else."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Protocol, Self

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from soak.core import wording
from soak.core.clock import Grid, RunClock
from soak.core.errors import SoakError
from soak.core.model import Column, Finding, Record
from soak.core.plan.phases import Decision, Phases, drain_k
from soak.core.plan.plan import Plan
from soak.core.ports import Clock
from soak.core.units import SECOND_NS
from soak.runtime.context import PhaseFile
from soak.store.findings.store import FindingsStore
from soak.store.journal.reader import last_record, sources
from soak.store.run_folder import RunFolder

HISTORY = 240  # points of the sparklines
LINE_EVERY_SECONDS = 10
NOTES = 6  # newest lines that stay below the panel
NARROW = 60  # columns


def latency_text(seconds: float) -> str:
    return wording.amount(seconds, "seconds")


def count_text(value: float) -> str:
    return wording.amount(value, "")


def clock_text(seconds: int) -> str:
    """Return a time as `h:mm:ss` or `m:ss`."""
    minutes, rest = divmod(max(0, seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


_Newest = tuple[Record, tuple[Column, ...]]


@dataclass(frozen=True, slots=True)
class Latency:
    """Quantiles of one latency in the newest interval, in seconds; NaN without a value."""

    p50: float = math.nan
    p99: float = math.nan
    p999: float = math.nan


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The current state of a run, read from its journals and findings."""

    start_wall_ns: int  # of the run
    k: int
    total_seconds: int
    end_k: int | None
    phase: str
    sent: float
    received: float
    lag: float
    publish: Latency
    end_to_end: Latency
    invalid: str
    p50_history: tuple[float, ...]
    p99_history: tuple[float, ...]
    findings: tuple[Finding, ...]


@dataclass(slots=True)
class Watcher:
    """Reads a run folder repeatedly, and keeps the history for the sparklines."""

    folder: RunFolder
    plan: Plan
    run_id: str
    grid: Grid
    clock: Clock
    _seconds: RunClock = field(init=False)
    _p50: deque[float] = field(default_factory=lambda: deque(maxlen=HISTORY))
    _p99: deque[float] = field(default_factory=lambda: deque(maxlen=HISTORY))
    _seen: tuple[int, int] = (-1, -1)

    def __post_init__(self) -> None:
        self._seconds = RunClock.on(self.grid, self.clock)

    def look(self) -> Snapshot:
        k = self._seconds.interval_index()
        phases = PhaseFile(self.folder.phases).poll()
        produced, consumed = self._newest("produce."), self._newest("consume.")
        end_to_end = _latency(consumed, "end_to_end_latency_seconds")
        newest = max(((record.k, record.epoch) for record, _ in consumed), default=self._seen)
        if newest != self._seen:
            self._seen = newest
            self._p50.append(end_to_end.p50)
            self._p99.append(end_to_end.p99)
        return Snapshot(
            start_wall_ns=self.grid.start_wall_ns,
            k=k,
            total_seconds=self._total(phases),
            end_k=phases.end_k,
            phase=_phase(phases.decision_at(k)),
            sent=_total(produced, "sent_messages"),
            received=_total(consumed, "received_messages"),
            lag=_total(consumed, "lag_messages"),
            publish=_latency(produced, "publish_latency_seconds"),
            end_to_end=end_to_end,
            invalid=next(
                (str(why) for one, _ in produced if (why := one.validity.get("reason"))), ""
            ),
            p50_history=tuple(self._p50),
            p99_history=tuple(self._p99),
            findings=self._findings(),
        )

    def _total(self, phases: Phases) -> int:
        lengths = self.plan.phases
        return phases.end_k or drain_k(phases, lengths) + lengths.drain // SECOND_NS

    def _newest(self, role: str) -> list[_Newest]:
        """Return the newest record of every source of a role, with its columns."""
        found = (
            last_record(self.folder.journal, source)
            for source in sources(self.folder.journal)
            if source.startswith(role)
        )
        return [one for one in found if one is not None]

    def _findings(self) -> tuple[Finding, ...]:
        if not self.folder.findings.exists():
            return ()
        try:
            with FindingsStore(self.folder.findings) as store:
                return tuple(store.findings(self.run_id))
        except SoakError:  # busy: the next call reads them
            return ()


def _phase(decision: Decision | None) -> str:
    if decision is None:
        return "starting"
    return f"{decision.phase}: {decision.part}" if decision.part else decision.phase


def _values(newest: list[_Newest], metric: str, quantile: str = "") -> list[float]:
    labels = (("quantile", quantile),) if quantile else ()
    return [
        value
        for record, columns in newest
        for column, value in zip(columns, record.values, strict=True)
        if column.metric == metric and column.labels == labels
    ]


def _total(newest: list[_Newest], metric: str) -> float:
    """Return the sum over the sources; NaN without a value."""
    found = _values(newest, metric)
    return sum(found) if found else math.nan


def _latency(newest: list[_Newest], metric: str) -> Latency:
    """Return the worst of the sources, because quantiles cannot be added."""
    found = (_values(newest, metric, quantile) for quantile in ("0.5", "0.99", "0.999"))
    return Latency(
        *(max((one for one in values if one == one), default=math.nan) for values in found)  # noqa: PLR0124  # NaN
    )


class View(Protocol):
    def show(self, snapshot: Snapshot) -> None: ...
    def note(self, line: str) -> None: ...
    def close(self) -> None: ...


def open_view(console: Console, title: str) -> View:
    """Return a panel if the console is a terminal that can redraw, otherwise plain lines."""
    if console.is_terminal and not console.is_dumb_terminal:
        return LiveView(console, title).start()
    return PlainView(console, title)


class PlainView:
    """Prints a line every ten seconds and at each event, for a log."""

    def __init__(self, console: Console, title: str) -> None:
        self._console = console
        self._title = title
        self._last_k: int | None = None
        self._last_phase = ""
        self._states: dict[str, str] = {}

    def show(self, snapshot: Snapshot) -> None:
        for found in snapshot.findings:
            line = wording.finding_text(found, snapshot.start_wall_ns)
            if self._states.get(found.key) != line:
                self._states[found.key] = line
                self.note(line)
        is_due = self._last_k is None or snapshot.k - self._last_k >= LINE_EVERY_SECONDS
        if is_due or snapshot.phase != self._last_phase:
            self._last_k, self._last_phase = snapshot.k, snapshot.phase
            self._print(
                f"{clock_text(snapshot.k)}/{clock_text(snapshot.total_seconds)} {snapshot.phase}: "
                f"sent {count_text(snapshot.sent)}/s, received {count_text(snapshot.received)}/s, "
                f"publish p99 {latency_text(snapshot.publish.p99)}, "
                f"end to end p50 {latency_text(snapshot.end_to_end.p50)} "
                f"p99 {latency_text(snapshot.end_to_end.p99)}"
            )

    def note(self, line: str) -> None:
        self._print(line)

    def close(self) -> None:
        pass

    def _print(self, line: str) -> None:
        stamp = datetime.now(UTC).strftime("%H:%M:%SZ")
        self._console.print(f"{stamp} {line}", markup=False, highlight=False, soft_wrap=True)


class LiveView:
    """Shows a panel with phase, progress, rates, latencies with sparklines, and findings."""

    def __init__(self, console: Console, title: str) -> None:
        self._console = console
        self._title = title
        self._notes: list[str] = []
        self._snapshot: Snapshot | None = None
        self._live = Live(console=console, auto_refresh=False, transient=False)

    def start(self) -> Self:
        self._live.start()
        return self

    def show(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._refresh()

    def note(self, line: str) -> None:
        if "\n" in line:  # a mail: printed above the panel, where it stays
            self._live.console.print(line, markup=False, highlight=False, soft_wrap=True)
            return
        stamp = datetime.now(UTC).strftime("%H:%M:%SZ")
        self._notes = [*self._notes, f"{stamp} {line}"][-NOTES:]
        self._refresh()

    def close(self) -> None:
        self._live.stop()

    def _refresh(self) -> None:
        self._live.update(self._body(self._console.width), refresh=True)

    def _body(self, width: int) -> Group:
        parts: list[Text | Table] = [Text(self._title, style="bold")]
        if self._snapshot is not None:
            parts += panel(self._snapshot, width)
        parts += [Text(line, overflow="fold") for line in self._notes]
        return Group(*parts)


def panel(snapshot: Snapshot, width: int) -> list[Text | Table]:
    """Return the parts of the panel for a terminal of this width."""
    clock = f"{clock_text(snapshot.k)} of {clock_text(snapshot.total_seconds)}"
    done = max(0, min(snapshot.k, snapshot.total_seconds))
    parts: list[Text | Table] = [
        Text(f"{snapshot.phase}  {clock}"),
        Text(bar(done / max(1, snapshot.total_seconds), width)),
        Text(
            f"sent {count_text(snapshot.sent)}/s  received {count_text(snapshot.received)}/s  "
            f"lag {count_text(snapshot.lag)}"
        ),
    ]
    if snapshot.invalid:
        parts.append(Text(f"the client was the bottleneck: {snapshot.invalid}", style="yellow"))
    table = Table(box=None, pad_edge=False, show_edge=False)
    for heading in ("", "p50", "p99") if width < NARROW else ("", "p50", "p99", "p99.9"):
        table.add_column(heading, justify="left" if not heading else "right")
    for name, value in (("publish", snapshot.publish), ("end to end", snapshot.end_to_end)):
        cells = [latency_text(value.p50), latency_text(value.p99), latency_text(value.p999)]
        table.add_row(name, *cells[: len(table.columns) - 1])
    parts.append(table)
    room = min(width - 5, 120)
    parts.append(Text(f"p50  {wording.sparkline(snapshot.p50_history, room)}"))
    parts.append(Text(f"p99  {wording.sparkline(snapshot.p99_history, room)}"))
    for found in snapshot.findings:
        style = "bold red" if found.state == "confirmed" and found.is_about_cluster else ""
        line = wording.finding_text(found, snapshot.start_wall_ns)
        parts.append(Text(line, style=style, overflow="fold"))
    return parts


def bar(share: float, width: int) -> str:
    """Return a progress bar that is readable without colour."""
    room = max(4, min(width, 80) - 5)
    full = round(room * min(max(share, 0.0), 1.0))
    return f"{'━' * full}{'·' * (room - full)} {min(max(share, 0.0), 1.0):4.0%}"
