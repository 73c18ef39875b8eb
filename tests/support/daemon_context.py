"""What a daemon is given when it starts, on a clock of the test's."""

from __future__ import annotations

import os
from pathlib import Path

from soak.core.clock import Grid
from soak.core.plan.plan import Plan
from soak.runtime.context import Context, PhaseFile
from soak.runtime.recorder import Recorder
from soak.store.journal.writer import JournalWriter, Write
from soak.store.run_folder import Run, RunFolder
from tests.support.fakes import FakeClock


def context_of(
    path: Path, plan: Plan, clock: FakeClock, role: str, phases: str, write: Write = os.write
) -> Context:
    """Return a run that starts now; `phases` is the text of its phases file."""
    folder = RunFolder(path)
    folder.phases.write_text(phases)
    source = f"{role}@host"
    writer = JournalWriter(folder.journal / source, clock, write=write).open()
    run = Run("x", clock.wall_ns(), "host", {}, "running")
    grid = Grid.anchored(run.start_wall_ns, clock)
    phase_file = PhaseFile(folder.phases)
    phase_file.poll()
    return Context(
        folder, plan, run, source, grid, writer, Recorder(writer, grid, clock), phase_file
    )
