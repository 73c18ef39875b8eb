"""The offline detector on the labelled traces, beside ruptures, Otava and a naive GLR with their own cuts."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.bench.detect import one_cut, traces
from tests.bench.detect.online import figure
from tests.bench.figures import Figure, Goal

GOAL = 0.70


def on_traces(shared: Path) -> list[Figure]:
    """Score the labelled traces; none where they are not there."""
    read = [traces.read(path) for path in sorted(shared.glob("latency-traces/real-*.csv.gz"))]
    if not read:
        return []
    ours = traces.pooled(read, traces.score_offline)
    found = [figure("offline: F1", ours.f1, GOAL, Goal(ratio_least=1.0))]
    for name in one_cut.peers():
        theirs = traces.together([_scored(one, name) for one in read])
        found.append(
            figure(f"offline: F1 beside {name}", ours.f1, theirs.f1, Goal(ratio_least=1.0))
        )
        found.append(
            figure(
                f"offline: false per 1000 beside {name}",
                ours.false_per_1000,
                theirs.false_per_1000,
                Goal(ratio_most=1.0),
            )
        )
    return found


def _scored(trace: traces.Trace, name: str) -> traces.Score:
    """Score a peer on the rows that have a value, which it sees as one row after the other."""
    here = np.flatnonzero(np.isfinite(trace.series.values))
    y = np.log10(np.maximum(trace.series.values[here], 1e-9))
    return traces.score_rows(trace, sorted(int(here[at]) for at in one_cut.apart(name, y).cuts))
