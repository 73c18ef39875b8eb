"""Looking back over whole series beside ruptures (rbf, l2), Otava and a naive GLR: CPU seconds, memory, cuts.

    python -m tests.bench.detect.offline [--rows 129600] [--peer-rows 6480] [--rounds 3]

Peers whose time grows with the square of the rows get fewer of them: both sides are measured on those, and
ours on all rows too. `--peer-rows 129600 --rounds 1` has everyone on all rows. Writes
`build/bench/detect-offline.json`.
"""

from __future__ import annotations

import argparse
import subprocess
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
from rich.console import Console

from tests.bench.detect import noises, one_cut
from tests.bench.detect.one_cut import OURS, Floats, Measured
from tests.bench.figures import Figure, Goal, Measures, Spec, figures, side_by_side, table, write

OUT = Path("build/bench/detect-offline.json")
DAY_AND_A_HALF = 129_600
MOST_SECONDS = 0.5
STEPS = 50
_SD = 0.05  # of log10, which a p99 of a healthy cluster has
_MEGABYTE = 1e6
_NOBODY = Measured([], float("nan"), 0)

Measure = Callable[[str, Floats], Measured]
"""Takes a method's name and a series on log10 without holes."""


def quiet(rows: int) -> dict[str, Floats]:
    """Return one series of each noise, on log10."""
    found = {}
    for number, (name, make) in enumerate(noises.NOISES.items()):
        y = _SD * make(np.random.default_rng(number), rows, 1)[:, 0]
        found[name] = y[np.isfinite(y)]
    return found


def with_steps(rows: int) -> Floats:
    """Return independent noise with steps of 4 sd, up or down."""
    rng = np.random.default_rng(23)
    y = rng.normal(0.0, _SD, rows)
    for at in rng.integers(0, rows, STEPS):
        y[at:] += 4.0 * _SD * rng.choice([-1.0, 1.0])
    return y


def beside(rows: int, rounds: int, measure: Measure = one_cut.apart) -> list[Figure]:
    """Return seconds, memory and cuts of us and of each peer on series of as many rows.

    A peer that fails, or takes longer than anyone waits, has no figures: NaN.
    """
    found = []
    chosen = ("independent", "AR(1) 0.6", "spikes in 5 % of seconds")
    series = {name: y for name, y in quiet(rows).items() if name in chosen}
    for peer in one_cut.peers():
        for name, y in (*series.items(), (f"{STEPS} steps of 4 sd", with_steps(rows))):
            title = f"{name}, {rows} rows, beside {peer}"
            specs = [
                Spec("seconds", f"{title}: CPU seconds", Goal(ratio_most=1.0)),
                Spec("megabytes", f"{title}: MB", Goal()),
                Spec("cuts", f"{title}: cuts", Goal()),
            ]
            sides = (partial(_measured, measure, one, y) for one in (OURS, peer))
            found += figures(specs, side_by_side(rounds, *sides))
    return found


def alone(rows: int, measure: Measure = one_cut.here) -> list[Figure]:
    """Return our own seconds and cuts on every noise; there is no peer to wait for."""
    found = []
    for name, y in (*quiet(rows).items(), (f"{STEPS} steps of 4 sd", with_steps(rows))):
        specs = [
            Spec("seconds", f"{name}, {rows} rows: CPU seconds", Goal(ours_most=MOST_SECONDS)),
            Spec("cuts", f"{name}, {rows} rows: cuts", Goal()),
        ]
        pair = _measured(measure, OURS, y), dict.fromkeys(_names(_NOBODY), float("nan"))
        found += [replace(one, spread=(float("nan"),) * 2) for one in figures(specs, [pair])]
    return found


def _measured(measure: Measure, name: str, y: Floats, _round: int = 0) -> Measures:
    try:
        return _names(measure(name, y))
    except subprocess.SubprocessError:
        return dict.fromkeys(_names(_NOBODY), float("nan"))


def _names(one: Measured) -> Measures:
    return {
        "seconds": one.seconds,
        "megabytes": one.grown_bytes / _MEGABYTE,
        "cuts": float(len(one.cuts)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=DAY_AND_A_HALF)
    parser.add_argument("--peer-rows", type=int, default=DAY_AND_A_HALF // 20)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    found = [*beside(args.peer_rows, args.rounds), *alone(args.rows)]
    Console().print(table("Offline detection", found))
    if not one_cut.is_there():
        Console().print(one_cut.ABSENT)
    write(OUT, found)


if __name__ == "__main__":
    main()
