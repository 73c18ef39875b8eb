"""The conductor: alone decides the phases, ahead of time, in `phases.jsonl`."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

from soak.core.clock import Grid
from soak.core.phase_plan import planned
from soak.core.phases import Phase, Phases, to_line
from soak.core.ports import Clock
from soak.core.units import SECOND_NS, format_size
from soak.daemons.context import PhaseFile
from soak.store.journal_reader import last_record, sources
from soak.store.run_folder import (
    RunFolder,
    exclusive,
    read_plan,
    read_run,
    write_atomically,
)

AHEAD_SECONDS = 5
"""A decision lies at least this far ahead, so that every daemon has read it in time."""
POLL_SECONDS = 0.5


def run(run_dir: Path, stop: threading.Event, clock: Clock) -> int:
    """Decide until the run is over; `stop` ends it now."""
    folder = RunFolder(run_dir)
    plan, run_ = read_plan(folder), read_run(folder)
    grid = Grid.anchored(run_.start_wall_ns, clock)
    drain_seconds = plan.phases.drain // SECOND_NS
    with exclusive(run_dir / "conduct.lock", "the conductor of this run"):
        phase_file = PhaseFile(folder.phases)
        if not folder.phases.exists():
            write_planned(folder, planned(plan.phases))
        while True:
            is_stopped = stop.wait(POLL_SECONDS)
            k = grid.k_at(clock.mono_ns())
            phases = phase_file.poll()
            if phases.end_k is not None and k >= phases.end_k:
                return 0
            if is_stopped:
                decide(folder, "end", k + 1, "stopped")
                return 0
            if phases.end_k is not None:
                continue
            if phases.at(k) != "drain":
                free = shutil.disk_usage(run_dir).free
                if free < plan.free_space_floor and phases.at(k + AHEAD_SECONDS) != "drain":
                    reason = f"{format_size(free // 2**20 * 2**20)} free is below the floor"
                    decide(folder, "drain", k + AHEAD_SECONDS, reason)
            elif is_drained(folder, phases, k):
                decide(folder, "end", k + AHEAD_SECONDS, "drained")
            elif k >= _drain_k(phases) + drain_seconds - AHEAD_SECONDS:
                decide(folder, "end", k + AHEAD_SECONDS, "drain limit reached")


def write_planned(folder: RunFolder, phases: Phases) -> None:
    """Write what is known from the start; whole or not at all."""
    write_atomically(folder.phases, "".join(one.to_line() for one in phases.decisions))


def decide(folder: RunFolder, name: Phase, from_k: int, reason: str) -> None:
    """Add one decision, on disk before anyone acts on it; daemons see the old file or the new one."""
    text = folder.phases.read_text() if folder.phases.exists() else ""
    whole = text[: text.rfind("\n") + 1]  # a torn line is dropped
    write_atomically(folder.phases, whole + to_line(name, from_k, reason))


def is_drained(folder: RunFolder, phases: Phases, k: int) -> bool:
    """True when every consumer has seen a quiet second without lag since the sending ended."""
    consumers = [name for name in sources(folder.journal) if name.startswith("consume.")]
    for source in consumers:
        found = last_record(folder.journal, source)
        if found is None:
            return False
        record, columns = found
        values = {
            column.metric: value for column, value in zip(columns, record.values, strict=True)
        }
        is_recent = record.k >= max(_drain_k(phases) + 2, k - AHEAD_SECONDS)
        if not is_recent or values["lag_messages"] or values["received_messages"]:
            return False
    return bool(consumers)


def _drain_k(phases: Phases) -> int:
    begin = phases.first_k("drain")
    return 0 if begin is None else begin
