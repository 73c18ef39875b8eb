"""A run as the conductor sees it: records of a simulated load against a cluster of a known speed."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

from soak.conductor.loop import Conductor, append_decisions, write_planned
from soak.core.clock import Grid
from soak.core.journal_format import columns_line
from soak.core.model import Column, Record
from soak.core.plan import text as plan_text
from soak.core.plan.phases import LOAD_PHASES, Phases, parse_phases, planned_phases
from soak.core.plan.plan import Plan
from soak.core.plan.rates import rates_between
from soak.runtime.recorder import quantile_column
from soak.store.journal.writer import JournalWriter
from soak.store.run_folder import RunFolder
from tests.support.fakes import FakeClock

PRODUCED = (
    *(Column(f"{name}_messages") for name in ("sent", "acked", "missed", "in_flight")),
    quantile_column("publish_latency_seconds", "0.99"),
    quantile_column("schedule_lag_seconds", "0.5"),
)
CONSUMED = (Column("received_messages"), Column("lag_messages"))
PLENTY = 2**40
BROKER = "/var/lib/kafka"


def plan_of(phases: str, rate: str = "100/s") -> Plan:
    text = f"name: w\nbroker: {{kafka: {{}}}}\nload: {{rate: {rate}}}\nphases: {phases}\n"
    return plan_text.load(text, "plan").plan


class SimulatedRun:
    """`advance` simulates one second; the conductor may be replaced by a new one at any time."""

    def __init__(self, path: Path, plan: Plan, max_received: Callable[[int], float]) -> None:
        self.folder, self.plan = RunFolder(path), plan
        self._max_received = max_received  # a second, by second
        self.max_sent = float("inf")  # a second; due messages beyond it are skipped
        self._grid = Grid(1_790_000_000 * 10**9, 0)
        self.k = 0
        self.backlog = 0.0
        self.free = {str(path): PLENTY, BROKER: PLENTY}
        write_planned(self.folder, planned_phases(plan.phases))
        clock = FakeClock()
        self._writers = {
            name: JournalWriter(self.folder.journal / name, clock).open()
            for name in ("produce.0@h", "consume.0@h")
        }
        self.start_conductor()

    @property
    def phases(self) -> Phases:
        return parse_phases(self.folder.phases.read_text())

    def start_conductor(self) -> None:
        self._conductor = Conductor(self.folder, self.plan, self._grid)

    def advance(self) -> None:
        phases = self.phases
        rate = Fraction(0)
        if phases.at(self.k) in LOAD_PHASES:
            rate = next(rates_between(self.plan.load, phases, (), self.k, self.k + 1))[1]
        sent = min(float(rate), self.max_sent)
        self.backlog += sent
        is_building = phases.is_building(self.k)
        received = 0.0 if is_building else min(self.backlog, self._max_received(self.k))
        self.backlog -= received
        lag = float("nan") if is_building else self.backlog
        self.write(self.k, sent=sent, skipped=float(rate) - sent, received=received, lag=lag)
        self.k += 1
        for _ in range(0 if phases.end_k else 2):  # the conductor polls twice a second
            found = self._conductor.next_decisions(self.phases, self.k, self.free)
            append_decisions(self.folder, *found)

    def advance_by(self, seconds: int) -> list[tuple[int, str, str]]:
        """Return the changes of phase in the next seconds: second, phase and part."""
        changes: list[tuple[int, str, str]] = []
        for _ in range(seconds):
            now = self.phases.decision_at(self.k)
            if now is not None and (not changes or changes[-1][1:] != (now.phase, now.part)):
                changes.append((self.k, now.phase, now.part))
            if now is not None and now.phase == "end":
                break
            self.advance()
        return changes

    def write(
        self,
        k: int,
        *,
        sent: float,
        received: float,
        lag: float,
        skipped: float = 0.0,
        in_flight: float = 0.0,
    ) -> None:
        """Write the records of second k."""
        self._append("produce.0@h", k, PRODUCED, (sent, sent, skipped, in_flight, 0.004, 0))
        self._append("consume.0@h", k, CONSUMED, (received, lag))

    def _append(
        self, source: str, k: int, columns: tuple[Column, ...], values: tuple[float, ...]
    ) -> None:
        writer = self._writers[source]
        record = Record(k, writer.epoch, 0, 0, columns_line(columns).id, values)
        writer.append(record, columns)
