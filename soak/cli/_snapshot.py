"""What a run looks like right now, read from its journals and findings: for the live view."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

from soak.core.clock import Grid, RunClock
from soak.core.errors import SoakError
from soak.core.model import Column, Finding, Record
from soak.core.phase_plan import drain_k
from soak.core.phases import Decision, Phases
from soak.core.plan import Plan
from soak.core.ports import Clock
from soak.core.units import SECOND_NS
from soak.daemons.context import PhaseFile
from soak.store.findings import FindingsStore
from soak.store.journal_reader import last_record, sources
from soak.store.run_folder import RunFolder

HISTORY = 240


_Newest = tuple[Record, tuple[Column, ...]]


@dataclass(frozen=True, slots=True)
class Latency:
    """Quantiles of one latency in the newest second, in seconds; NaN where there is none."""

    p50: float = math.nan
    p99: float = math.nan
    p999: float = math.nan


@dataclass(frozen=True, slots=True)
class Snapshot:
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
    untrusted: str
    p50_history: tuple[float, ...]
    p99_history: tuple[float, ...]
    findings: tuple[Finding, ...]


@dataclass(slots=True)
class Watcher:
    """Reads a run folder again and again, and keeps the history that the sparklines show."""

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
        k = self._seconds.k()
        phases = PhaseFile(self.folder.phases).poll()
        produced, consumed = self._newest("produce."), self._newest("consume.")
        end_to_end = _latency(consumed, "end_to_end_latency_seconds")
        newest = max(((record.k, record.inc) for record, _ in consumed), default=self._seen)
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
            untrusted=next(
                (str(why) for one, _ in produced if (why := one.trust.get("reason"))), ""
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
        except SoakError:  # busy now: the next look will tell
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
    """Return the sum over the sources; NaN where there is none."""
    found = _values(newest, metric)
    return sum(found) if found else math.nan


def _latency(newest: list[_Newest], metric: str) -> Latency:
    """Return the worst of the sources: quantiles of several cannot be added up."""
    found = (_values(newest, metric, quantile) for quantile in ("0.5", "0.99", "0.999"))
    return Latency(
        *(max((one for one in values if one == one), default=math.nan) for values in found)  # noqa: PLR0124  # NaN: nothing came
    )
