"""Looking back over whole series beside ruptures (rbf, l2) and Otava: CPU seconds, and cuts where nothing is.

    python -m tests.bench.detect.offline [--rows 129600] [--peer-rows 6480] [--rounds 3]

Peers whose time grows with the square of the rows get fewer of them: both sides are measured on those, and
ours on all rows too. Writes `build/bench/detect-offline.json`. Otava takes part where it can be imported
(`pip install --no-deps apache-otava`).
"""

from __future__ import annotations

import argparse
import importlib
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from math import log
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from ruptures import KernelCPD

from detectors.segmentation import Config, detect
from soak.core.model import Series
from tests.bench.detect import noises
from tests.bench.figures import Figure, Goal, Measures, Spec, figures, side_by_side, table, write

OUT = Path("build/bench/detect-offline.json")
DAY_AND_A_HALF = 129_600
MOST_SECONDS = 0.5
STEPS = 50
_SD = 0.05  # of log10, which a p99 of a healthy cluster has
_RBF_WIDTH = 0.01
_ANY_STEP = Config(smallest_step_ratio=1.005, smallest_step_seconds=0.0)

Floats = NDArray[np.float64]
Cut = Callable[[Floats], int]
"""Takes a series on log10 and returns how many cuts it finds."""


def ours(y: Floats) -> int:
    here = np.flatnonzero(np.isfinite(y))
    return len(detect(Series("p99", here, 0.004 * 10.0 ** y[here]), _ANY_STEP))


def rbf(y: Floats) -> int:
    model = KernelCPD("rbf", min_size=3, params={"gamma": 1.0 / _RBF_WIDTH**2 / 2.0})
    return len(model.fit(_column(y)).predict(pen=log(y.size))) - 1


def l2(y: Floats) -> int:
    """Least squares, with the noise judged from neighbours and the price of Schwarz's criterion."""
    column = _column(y)
    noise = float(np.median(np.abs(np.diff(column[:, 0])))) / 0.954 or 1.0
    return (
        len(KernelCPD("linear", min_size=3).fit(column / noise).predict(pen=2.0 * log(y.size))) - 1
    )


def otava(y: Floats) -> int:
    found, _ = importlib.import_module("otava.analysis").compute_change_points(_column(y)[:, 0])
    return len(found)


def peers() -> Mapping[str, Cut]:
    """Return those that are installed."""
    there = {"ruptures rbf": rbf, "ruptures l2": l2}
    return there | ({"Otava": otava} if find_spec("otava") else {})


def quiet(rows: int) -> dict[str, Floats]:
    """Return one series of each noise, on log10."""
    found = {}
    for number, (name, make) in enumerate(noises.NOISES.items()):
        found[name] = _SD * make(np.random.default_rng(number), rows, 1)[:, 0]
    return found


def with_steps(rows: int) -> Floats:
    """Return independent noise with steps of 4 sd, up or down."""
    rng = np.random.default_rng(23)
    y = rng.normal(0.0, _SD, rows)
    for at in rng.integers(0, rows, STEPS):
        y[at:] += 4.0 * _SD * rng.choice([-1.0, 1.0])
    return y


def measured(cut: Cut, y: Floats, _round: int = 0) -> Measures:
    start = time.process_time()
    cuts = cut(y)
    return {"seconds": time.process_time() - start, "cuts": float(cuts)}


def beside(rows: int, rounds: int) -> list[Figure]:
    """Return seconds and cuts of us and of each peer on series of as many rows."""
    found = []
    chosen = ("independent", "AR(1) 0.6", "spikes in 5 % of seconds")
    series = {name: y for name, y in quiet(rows).items() if name in chosen}
    for peer, cut in peers().items():
        for name, y in (*series.items(), (f"{STEPS} steps of 4 sd", with_steps(rows))):
            title = f"{name}, {rows} rows, beside {peer}"
            specs = [
                Spec("seconds", f"{title}: CPU seconds", Goal(ratio_most=1.0)),
                Spec("cuts", f"{title}: cuts", Goal()),
            ]
            pairs = side_by_side(rounds, partial(measured, ours, y), partial(measured, cut, y))
            found += figures(specs, pairs)
    return found


def alone(rows: int) -> list[Figure]:
    """Return our own seconds and cuts on every noise; there is no peer to wait for."""
    found = []
    for name, y in (*quiet(rows).items(), (f"{STEPS} steps of 4 sd", with_steps(rows))):
        once = measured(ours, y)
        specs = [
            Spec("seconds", f"{name}, {rows} rows: CPU seconds", Goal(ours_most=MOST_SECONDS)),
            Spec("cuts", f"{name}, {rows} rows: cuts", Goal()),
        ]
        nobody = {"seconds": float("nan"), "cuts": float("nan")}
        found += [
            replace(one, spread=(float("nan"),) * 2) for one in figures(specs, [(once, nobody)])
        ]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=DAY_AND_A_HALF)
    parser.add_argument("--peer-rows", type=int, default=DAY_AND_A_HALF // 20)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    found = [*beside(args.peer_rows, args.rounds), *alone(args.rows)]
    Console().print(table("Offline detection", found))
    if "Otava" not in peers():
        Console().print("Otava is not installed: left out")
    write(OUT, found)


def _column(y: Floats) -> Floats:
    here = y[np.isfinite(y)]
    return np.asarray((here - np.median(here)).reshape(-1, 1))


if __name__ == "__main__":
    main()
