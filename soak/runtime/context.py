"""What every daemon of a run opens first: plan, run, grid, journal and phases."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from soak.core.clock import Grid
from soak.core.plan import plugins
from soak.core.plan.phases import Phases, parse_phases
from soak.core.plan.plan import AnyPlan, Plan, ProbePlan
from soak.core.ports import Broker, Clock, Topics
from soak.runtime.grid import grid_of, host_name
from soak.runtime.recorder import Journal, Recorder
from soak.service.files import read_small_text
from soak.service.metrics import MetricsPage, publish
from soak.store.journal.writer import BackgroundJournalWriter, JournalWriter
from soak.store.run_folder import Run, RunFolder, read_plan, read_run, reporting_damage

RESTART_CODE = 75
"""Exit code of a daemon that asks for a restart in a new epoch (sysexits: temporary failure)."""

CLIENT_EVENT = "client"
"""Recorded when a daemon starts: the versions of its broker client, and whether batched calls are used."""


def connect(plan: Plan, clock: Clock) -> Broker:
    """Return the plan's broker; it sends no request yet."""
    broker: Broker = plugins.load("soak.brokers", plan.broker_kind).connect(
        plan.broker_config, clock
    )
    return broker


def topics_of(plan: Plan) -> Topics:
    return Topics(plan.topic.names, plan.topic.partitions)


@dataclass(slots=True)
class PhaseFile:
    """Reads `phases.jsonl` while the conductor appends to it."""

    path: Path
    phases: Phases = field(default_factory=Phases)
    _seen: tuple[int, int] = (-1, -1)
    _text: str = ""  # the whole lines read so far

    def poll(self) -> Phases:
        """Return the decisions so far; read the file only when it has changed, and parse only new lines.

        Raises:
            RunFolderError: it is damaged, or cannot be read.
        """
        with reporting_damage(self.path):
            return self._poll()

    def _poll(self) -> Phases:
        try:
            found = self.path.stat()
        except FileNotFoundError:
            return self.phases
        seen = (found.st_size, found.st_mtime_ns)
        if seen != self._seen:
            text = read_small_text(self.path)
            text = text[: text.rfind("\n") + 1]
            is_longer = text.startswith(self._text)
            self.phases = (
                parse_phases(text[len(self._text) :], self.phases)
                if is_longer
                else parse_phases(text)
            )
            self._text, self._seen = text, seen
        return self.phases


@dataclass(frozen=True, slots=True)
class OpenJournal:
    """The open journal of a daemon that records."""

    run: Run
    source: str
    grid: Grid
    writer: Journal
    recorder: Recorder
    phase_file: PhaseFile
    end_page: Callable[[], None]  # to be called by a process that outlives this daemon


@dataclass(frozen=True, slots=True)
class Context:
    """The run, and the open journal of one daemon."""

    folder: RunFolder
    plan: Plan
    run: Run
    source: str
    grid: Grid
    writer: Journal
    recorder: Recorder
    phase_file: PhaseFile


def open_context(run_dir: Path, role: str, clock: Clock) -> Context:
    """Open the journal of `role`@host and anchor the grid.

    Raises:
        SoakError: no run folder, a damaged plan, or another process has this source.
    """
    folder = RunFolder(run_dir)
    plan = read_plan(folder)
    to = open_journal(folder, plan, role, clock)
    plan = _with_client_name(plan, f"soakd-{to.run.id}-{role}")
    return Context(folder, plan, to.run, to.source, to.grid, to.writer, to.recorder, to.phase_file)


def _with_client_name(plan: Plan, name: str) -> Plan:
    """Return the plan with a name for its broker's clients, if they can have one."""
    with_client_id = getattr(plan.broker_config, "with_client_id", None)
    if with_client_id is None:
        return plan
    return replace(plan, broker={plan.broker_kind: with_client_id(name)})


def open_journal(folder: RunFolder, plan: AnyPlan, role: str, clock: Clock) -> OpenJournal:
    """Open the journal of `role`@host, anchor the grid, and serve the newest record if the plan says so.

    Raises:
        SoakError: no run folder, or another process has this source.
    """
    run = read_run(folder)
    source = f"{role}@{host_name()}"
    grid = grid_of(folder, run, clock)
    # A folder that is created again during a run does not know the earlier epochs: its first epoch must be
    # larger than theirs, or a host that has them would take the new records for old ones.
    first_epoch = max(1, grid.interval_index_at(clock.mono_ns()) + 1)
    # With a load, the conductor ends it at the floor, and the journal still records what was sent.
    floor = plan.free_space_floor if isinstance(plan, ProbePlan) else 0
    journal = JournalWriter(folder.journal / source, clock, plan.journal.sync, floor_bytes=floor)
    writer = BackgroundJournalWriter(journal.open(first_epoch))
    page, end_page = _published(folder, plan, run, role, clock)
    shown = (page.show,) if plan.metrics else ()  # sums for a page that is not served cost time
    recorder = Recorder(writer, grid, clock, *shown)
    return OpenJournal(run, source, grid, writer, recorder, PhaseFile(folder.phases), end_page)


def open_page(folder: RunFolder, plan: AnyPlan, run: Run, role: str, clock: Clock) -> MetricsPage:
    """Return the daemon's page for Prometheus, served until the process ends if the plan has `metrics`."""
    return _published(folder, plan, run, role, clock)[0]


def _published(
    folder: RunFolder, plan: AnyPlan, run: Run, role: str, clock: Clock
) -> tuple[MetricsPage, Callable[[], None]]:
    """Return the daemon's page, and a function that stops serving it."""
    page = MetricsPage(clock, {"run": run.id, "plan": plan.name, "daemon": role})
    return page, publish(page, folder.path, plan.metrics, plan.daemons, role)


def process_time() -> float:
    """Return the CPU seconds that this process has used with all its threads."""
    times = os.times()
    return times.user + times.system


class CpuMeter:
    """CPU in cores between two calls, of this process or of what `used` measures in seconds."""

    def __init__(self, clock: Clock, used: Callable[[], float] = process_time) -> None:
        self._clock = clock
        self._used = used
        self._last_ns = clock.mono_ns()
        self._last_seconds = used()

    def ratio(self) -> float:
        now_ns, used = self._clock.mono_ns(), self._used()
        elapsed = (now_ns - self._last_ns) / 1e9
        ratio = (used - self._last_seconds) / elapsed if elapsed > 0 else 0.0
        self._last_ns, self._last_seconds = now_ns, used
        return ratio
