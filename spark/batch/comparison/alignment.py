"""Which seconds of runs are compared: those that all have, counted from an event of each run.

Each second of a soak has a place on an axis that rises: its number in the soak, the time since retention
first deleted, or the bytes written since the load began. The seconds between the places that all runs have
are compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from soak.core.errors import RunFolderError
from spark.batch.comparison.run import ComparedRun

Alignment = Literal["soak", "first-deletion", "bytes-written"]
ALIGNMENTS: Mapping[str, Alignment] = {one: one for one in get_args(Alignment)}
NAMES: Mapping[Alignment, str] = {
    "soak": "the start of the soak",
    "first-deletion": "the first deletion by retention",
    "bytes-written": "equal bytes written",
}


@dataclass(frozen=True, slots=True)
class Span:
    """The part of the axis that all runs have: seconds, or bytes of payload that were acknowledged."""

    low: float
    high: float
    unit: Literal["seconds", "bytes"]


def aligned(
    runs: Sequence[ComparedRun], alignment: Alignment
) -> tuple[list[ComparedRun], Span | None]:
    """Return the runs with the seconds that are compared, and what they have in common; None: no journal.

    Raises:
        RunFolderError: a run lacks the event, or has no second in common with the others; names the run.
    """
    axes = {
        at: _axis(run, alignment)
        for at, run in enumerate(runs)
        if run.result is None or alignment != "soak"
    }
    axes = {at: axis for at, axis in axes.items() if axis.size}
    if not axes:
        return list(runs), None
    low = max(0.0, *(float(axis[0]) for axis in axes.values()))
    high = min(float(axis[-1]) for axis in axes.values())
    windows = {
        at: (int(np.searchsorted(axis, low)), int(np.searchsorted(axis, high, side="right")))
        for at, axis in axes.items()
    }
    for at, (begin, end) in windows.items():
        if begin >= end:
            last = max(axes, key=lambda one: float(axes[one][0]))
            first = min(axes, key=lambda one: float(axes[one][-1])) if at == last else at
            raise RunFolderError(
                f"{runs[first].path} has no second of its soak in common with {runs[last].path}, aligned at "
                f"{NAMES[alignment]}: compare them with --align soak"
            )
    found = [
        replace(run, begin=windows[at][0], end=windows[at][1]) if at in windows else run
        for at, run in enumerate(runs)
    ]
    return found, Span(low, high, "bytes" if alignment == "bytes-written" else "seconds")


def _axis(run: ComparedRun, alignment: Alignment) -> NDArray[np.float64]:
    """Return the place of each recorded second of the soak, ascending."""
    seconds = run.recorded.seconds
    if alignment == "soak":
        return np.arange(seconds.size, dtype=np.float64)
    cannot = f"{run.path} cannot be aligned at {NAMES[alignment]}"
    if run.result is not None or run.plan is None:
        raise RunFolderError(f"{cannot}: it is a benchmark result; compare it with --align soak")
    if alignment == "first-deletion":
        if run.first_deletion is None:
            raise RunFolderError(
                f"{cannot}: its report saw none. It needs a probe of retention, and a load that reaches the "
                "limit; or compare it with --align soak"
            )
        if seconds.size and run.first_deletion > seconds[-1]:
            raise RunFolderError(
                f"{cannot}, which came after its soak; compare it with --align soak"
            )
        return seconds.astype(np.float64) - run.first_deletion
    if not run.recorded.acked.size or not run.recorded.acked[-1]:
        raise RunFolderError(
            f"{cannot}: its journals have no acknowledged message; compare it with --align soak"
        )
    return run.recorded.acked.astype(np.float64) * run.plan.load.mean_size
