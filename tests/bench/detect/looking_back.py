"""The offline detector on the labelled traces, beside ruptures and Otava with their own cuts.

Otava takes part where it can be imported (`pip install --no-deps apache-otava`).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from math import log
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from ruptures import KernelCPD

from tests.bench.detect import traces
from tests.bench.detect.online import figure
from tests.bench.figures import Figure, Goal

GOAL = 0.70
_RBF_WIDTH = 0.01

Cut = Callable[[NDArray[np.float64]], list[int]]
"""Takes a series on log10 without holes and returns the first rows of new levels."""


def rbf(y: NDArray[np.float64]) -> list[int]:
    model = KernelCPD("rbf", min_size=3, params={"gamma": 0.5 / _RBF_WIDTH**2})
    return [int(at) for at in model.fit(y.reshape(-1, 1)).predict(pen=log(y.size))[:-1]]


def l2(y: NDArray[np.float64]) -> list[int]:
    """Least squares, the noise judged from neighbours, the price of Schwarz's criterion."""
    noise = float(np.median(np.abs(np.diff(y)))) / 0.954 or 1.0
    scaled = ((y - np.median(y)) / noise).reshape(-1, 1)
    model = KernelCPD("linear", min_size=3)
    return [int(at) for at in model.fit(scaled).predict(pen=2.0 * log(y.size))[:-1]]


def otava(y: NDArray[np.float64]) -> list[int]:
    found, _ = importlib.import_module("otava.analysis").compute_change_points(y)
    return [int(one.index) for one in found]


def peers() -> Mapping[str, Cut]:
    """Return those that are installed."""
    there: dict[str, Cut] = {"ruptures rbf": rbf, "ruptures l2": l2}
    return there | ({"Otava": otava} if find_spec("otava") else {})


def on_traces(shared: Path) -> list[Figure]:
    """Score the labelled traces; none where they are not there."""
    read = [traces.read(path) for path in sorted(shared.glob("latency-traces/real-*.csv.gz"))]
    if not read:
        return []
    ours = traces.pooled(read, traces.score_offline)
    found = [figure("offline: F1", ours.f1, GOAL, Goal(ratio_least=1.0))]
    for name, cut in peers().items():
        theirs = traces.together([_scored(one, cut) for one in read])
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


def _scored(trace: traces.Trace, cut: Cut) -> traces.Score:
    """Score a peer on the rows that have a value, which it sees as one row after the other."""
    here = np.flatnonzero(np.isfinite(trace.series.values))
    y = np.log10(np.maximum(trace.series.values[here], 1e-9))
    return traces.score_rows(trace, sorted(int(here[at]) for at in cut(y)))
