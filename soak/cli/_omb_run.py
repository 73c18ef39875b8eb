"""Reads a run folder for export: what it says of the run, and its seconds, all sources side by side."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from soak.core.errors import RunFolderError
from soak.core.phases import Phases
from soak.omb.journal_amounts import Told
from soak.omb.run_result import Second, Source
from soak.store.journal_reader import sources
from soak.store.merged_reader import MergedReader
from soak.store.phases_file import read_phases
from soak.store.run_folder import RunFolder, read_plan, read_run

_ROLES = ("produce", "consume")
_NO_END = 2**62


def source(folder: RunFolder) -> Source:
    """Return the run and which of its seconds are measured: from the first of the soak to its last.

    Raises:
        SoakError: no run folder, a damaged plan, or the soak has not begun.
    """
    run, plan = read_run(folder), read_plan(folder)
    phases = read_phases(folder.phases)
    begin_k, end_k = _measured(phases, folder)
    decided = phases.decision_at(begin_k)
    rate = None if decided is None else decided.rate
    return Source(
        plan=plan,
        rate=plan.load.rate if rate is None else rate,
        name=run.name or plan.name,
        start_wall_ns=run.start_wall_ns,
        begin_k=begin_k,
        end_k=end_k,
    )


def seconds(folder: RunFolder) -> Iterator[Second]:
    """Give (k, records of all producers and consumers), ascending in k as long as no clock was set back."""
    names = [name for name in sources(folder.journal) if name.startswith(_ROLES)]
    found = MergedReader(folder.journal, names).read()
    for k, group in groupby(found, key=lambda one: one.record.k):
        yield k, [Told(one.source, one.record, one.columns) for one in group]


def _measured(phases: Phases, folder: RunFolder) -> tuple[int, int]:
    soaks = phases.spans("soak", _NO_END)
    if not soaks:
        raise RunFolderError(f"the soak of {folder.path} has not begun: there is nothing to export")
    return soaks[0][0], soaks[-1][1]
