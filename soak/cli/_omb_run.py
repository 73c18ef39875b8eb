"""Reads a run folder for export: what it says of the run, and its seconds, all sources side by side."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from itertools import groupby

from soak.core.errors import RunFolderError
from soak.core.phases import Phases, parse
from soak.omb.run_result import Second, Source
from soak.store.journal_reader import read_source, sources
from soak.store.run_folder import RunFolder, read_plan, read_run

_ROLES = ("produce", "consume")
_NO_END = 2**62


def source(folder: RunFolder) -> Source:
    """Return the run and which of its seconds are measured: from the first of the soak to its last.

    Raises:
        SoakError: no run folder, a damaged plan, or the soak has not begun.
    """
    run, plan = read_run(folder), read_plan(folder)
    begin_k, end_k = _measured(_phases(folder), folder)
    return Source(
        plan=plan,
        name=run.name or plan.name,
        start_wall_ns=run.start_wall_ns,
        begin_k=begin_k,
        end_k=end_k,
    )


def seconds(folder: RunFolder) -> Iterator[Second]:
    """Give (k, records of all producers and consumers), ascending in k as long as no clock was set back."""
    streams = [
        read_source(folder.journal, name)
        for name in sources(folder.journal)
        if name.startswith(_ROLES)
    ]
    merged = heapq.merge(*streams, key=lambda told: told[0].k)
    for k, told in groupby(merged, key=lambda told: told[0].k):
        yield k, list(told)


def _phases(folder: RunFolder) -> Phases:
    try:
        return parse(folder.phases.read_text())
    except FileNotFoundError:
        return Phases()
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunFolderError(f"{folder.phases} cannot be read: {error}") from error


def _measured(phases: Phases, folder: RunFolder) -> tuple[int, int]:
    soaks = [at for at, name in enumerate(phases.names) if name == "soak"]
    if not soaks:
        raise RunFolderError(f"the soak of {folder.path} has not begun: there is nothing to export")
    after = soaks[-1] + 1
    end_k = phases.from_k[after] if after < len(phases.from_k) else _NO_END
    return phases.from_k[soaks[0]], end_k
