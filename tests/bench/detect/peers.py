"""Other methods that the detectors are compared with.

Online: a CUSUM, a moving-average limit as people write it in PromQL, and a reference program. Offline:
ruptures, Otava, and a reference program. A folder of reference programs (`--reference`) holds one or both of

    online_detector.py    run(values, unit, every, panel, ratio, seconds, confirm), values (rows, series);
                          returns (row of the alarm, series, row of the onset, 1 or -1)
    offline_detector.py   detect(values, spacing, ratio, alpha); returns objects with a `row`

Otava requires another numpy: `make otava` installs it into an environment of its own.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from math import expm1, log
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import ruptures
from numpy.typing import NDArray
from scipy.optimize import brentq

from tests.bench.detect import feed
from tests.bench.detect.feed import FAR, Alarm, Table
from tests.bench.detect.parts import OURS

OTAVA = Path("build/otava")
ABSENT = "Otava is left out: `make otava` installs it"
CUSUM, MOVING_AVERAGE, REFERENCE = "CUSUM", "moving average", "reference"
RBF, PELT, OTAVAS = "ruptures rbf", "ruptures Pelt", "Otava"
LEARN_ROWS = 120
_SLACK = 0.5  # sd: half of the step that a CUSUM is made for
_OVERSHOOT = (
    1.166  # Siegmund 1985: what the crossing of a random walk of unit steps adds to its limit
)
_WINDOW, _TIMES = 600, 1.5  # avg_over_time(value[10m]), and the factor that it is multiplied by
_LATENCY, _SD = (
    0.01,
    0.05,
)  # a latency of 10 ms with that sd of log10, for a moving average on noise of unit sd
_MIN_ROWS = 10  # of a level, for ruptures, as long as an online change must last
_RATIO, _ALPHA = (
    1.005,
    0.05,
)  # smallest step of the offline reference, and its rate of series with a false cut
_TIMEOUT_SECONDS = 900
_IN_OTAVA = """
import json, sys, time
from otava.analysis import compute_change_points
compute_change_points([0.0, 1.0] * 30)
many, begin = json.load(sys.stdin), time.process_time()
cuts = [sorted(int(one.index) for one in compute_change_points(y)[0]) for y in many]
print(json.dumps([cuts, time.process_time() - begin]))
"""

Floats = NDArray[np.float64]
Online = Callable[[Table, str, float], list[Alarm]]
"""Takes values (rows, series), their unit, and the seconds between two false alarms of a series."""
Offline = Callable[[Floats], list[int]]
"""Takes a series on log10 without missing rows and returns the first rows of new levels."""


def online_methods(references: Path | None, *, with_peers: bool = True) -> Mapping[str, Online]:
    """Return the online methods by name, ours first."""
    found: dict[str, Online] = {OURS: feed.alarms}
    if with_peers:
        found |= {CUSUM: _cusum_alarms, MOVING_AVERAGE: _moving_average_alarms}
        if references is not None and (references / "online_detector.py").exists():
            found[REFERENCE] = partial(_reference_alarms, references)
    return found


def offline_methods(references: Path | None, *, with_peers: bool = True) -> Mapping[str, Offline]:
    """Return the offline methods by name, ours first."""
    found: dict[str, Offline] = {OURS: lambda y: [cut.row for cut in feed.offline_cuts(y)]}
    if with_peers:
        found |= {RBF: scaled_rbf, PELT: pelt}
        if has_otava():
            found[OTAVAS] = otava
        if references is not None and (references / "offline_detector.py").exists():
            found[REFERENCE] = partial(reference_cuts, references)
    return found


def alarms_of_each(
    detect: Online, tables: Sequence[Table], unit: str, every_seconds: float
) -> list[list[Alarm]]:
    """Return the alarms of each table; one search of all costs little more than one of the smallest."""
    edges = np.cumsum([0, *(table.shape[1] for table in tables)])
    found: list[list[Alarm]] = [[] for _ in tables]
    for alarm in detect(np.hstack(list(tables)), unit, every_seconds):
        at = int(np.searchsorted(edges, alarm.series, side="right")) - 1
        found[at].append(replace(alarm, series=alarm.series - int(edges[at])))
    return found


def cuts_of_all(name: str, detect: Offline, many: list[Floats]) -> list[list[int]]:
    """Return the cuts of each series; Otava gets all of them in one process."""
    return in_otava(many)[0] if name == OTAVAS else [detect(y) for y in many]


# ---- online


def cusum(values: Table, limits: Floats, learn_rows: int = LEARN_ROWS) -> list[Alarm]:
    """Return the alarms of a two-sided CUSUM (Page 1954) of each column, `limits` in sd, one a column.

    Mean and sd come from the first rows, and after an alarm from the rows that follow it. A missing value
    counts as no change.
    """
    rows, series = values.shape
    begin = np.zeros(series, dtype=np.int64)
    mean, sd = np.zeros(series), np.ones(series)
    sums = np.zeros((2, series))  # of a rise, of a fall
    found = []
    for row in range(rows):
        learnt = row - begin == learn_rows
        if learnt.any():
            first = values[row - learn_rows : row, learnt]
            mean[learnt], sd[learnt] = np.nanmean(first, axis=0), np.nanstd(first, axis=0) + 1e-12
        score = np.where(row - begin >= learn_rows, np.nan_to_num((values[row] - mean) / sd), 0.0)
        sums = np.maximum(sums + np.stack([score, -score]) - _SLACK, 0.0)
        crossed = sums.max(axis=0) > limits
        if crossed.any():
            found += [
                Alarm(row, int(i), bool(sums[0, i] > limits[i])) for i in np.flatnonzero(crossed)
            ]
            begin[crossed] = row + 1
            sums[:, crossed] = 0.0
    return found


def cusum_limit(every_rows: float) -> float:
    """Return the limit at which independent normal noise crosses once in so many rows (Siegmund 1985)."""

    def rows(limit: float) -> float:
        exponent = 2.0 * _SLACK * (limit + _OVERSHOOT)
        one_sided = (expm1(exponent) - exponent) / (2.0 * _SLACK**2)
        return one_sided / 2.0

    return float(brentq(lambda limit: log(rows(limit) / every_rows), 1e-3, 200.0))


def moving_average(values: Table, times: float = _TIMES, window: int = _WINDOW) -> list[Alarm]:
    """Return where `value > times * avg_over_time(value[window])` begins to be true, in order of rows."""
    here = np.isfinite(values)
    sums, counts = (
        np.concatenate([np.zeros((1, values.shape[1])), np.cumsum(one, axis=0)])
        for one in (np.where(here, values, 0.0), here)
    )
    last = np.arange(1, values.shape[0] + 1)
    first = np.maximum(last - window, 0)
    average = (sums[last] - sums[first]) / np.maximum(counts[last] - counts[first], 1)
    fires = here & (np.nan_to_num(values) > times * average)
    begins = fires & ~np.vstack([np.zeros((1, values.shape[1]), bool), fires[:-1]])
    return [Alarm(int(row), int(i), is_up=True) for row, i in zip(*np.nonzero(begins), strict=True)]


def _cusum_alarms(values: Table, unit: str, every_seconds: float) -> list[Alarm]:
    y = np.log10(values) if unit == "seconds" else values
    return cusum(y, np.full(values.shape[1], cusum_limit(every_seconds)))


def _moving_average_alarms(values: Table, unit: str, _every_seconds: float) -> list[Alarm]:
    """Return the alarms of a limit that no rate is set for."""
    return moving_average(
        values if unit == "seconds" else _LATENCY * 10.0 ** (_SD * (values - FAR))
    )


def _reference_alarms(folder: Path, values: Table, unit: str, every_seconds: float) -> list[Alarm]:
    found = program(folder, "online_detector").run(
        values, unit, every_seconds, 1, 1.000001, 0.0, feed.CONFIRM_SECONDS
    )
    return [Alarm(int(row), int(i), way > 0) for row, i, _, way in found]


# ---- offline


def rbf(y: Floats, width: float, min_rows: int, price: float) -> list[int]:
    """Return the cuts of `KernelCPD("rbf")`, whose search is PELT, exact."""
    model = ruptures.KernelCPD("rbf", min_size=min_rows, params={"gamma": 0.5 / width**2})
    return [int(at) for at in model.fit(y.reshape(-1, 1)).predict(pen=price)[:-1]]


def scaled_rbf(y: Floats) -> list[int]:
    """Return its cuts for noise of any size: as wide as the noise of a row, a price of 3 ln n."""
    return rbf(y, _noise(y), _MIN_ROWS, 3.0 * log(y.size))


def pelt(y: Floats, min_rows: int = _MIN_ROWS) -> list[int]:
    """Return the cuts of PELT with least squares at the price of Schwarz's criterion, noise from neighbours.

    `KernelCPD("linear")` is that search in C; `Pelt(model="l2")` in Python takes a thousand times as long.
    """
    scaled = ((y - np.median(y)) / _noise(y)).reshape(-1, 1)
    model = ruptures.KernelCPD("linear", min_size=min_rows).fit(scaled)
    return [int(at) for at in model.predict(pen=2.0 * log(y.size))[:-1]]


def otava(y: Floats) -> list[int]:
    cuts, _ = in_otava([y])
    return cuts[0]


def in_otava(many: list[Floats]) -> tuple[list[list[int]], float]:
    """Return the cuts of each series, found in Otava's own environment, and the CPU seconds of all.

    Raises:
        subprocess.SubprocessError: it failed, or took longer than a quarter of an hour.
    """
    done = subprocess.run(
        [str(OTAVA / "bin/python"), "-c", _IN_OTAVA],
        input=json.dumps([y.tolist() for y in many]),
        text=True,
        check=True,
        capture_output=True,
        timeout=_TIMEOUT_SECONDS,
    )
    cuts, seconds = json.loads(done.stdout)
    return cuts, float(seconds)


def has_otava() -> bool:
    """Return whether Otava is installed."""
    return (OTAVA / ".installed").exists()


def reference_cuts(folder: Path, y: Floats, spacing: float = 1.0) -> list[int]:
    """Return the cuts of the offline reference program, `spacing` seconds from row to row; NaN is missing."""
    latency = 0.004 * 10.0 ** (y - np.nanmedian(y))
    found = program(folder, "offline_detector").detect(latency, spacing, _RATIO, _ALPHA)
    return sorted({int(change.row) for change in found})


@cache
def program(folder: Path, name: str) -> Any:
    """Return a reference program as a module."""
    spec = importlib.util.spec_from_file_location(f"reference_{name}", folder / f"{name}.py")
    if spec is None or spec.loader is None:
        raise ImportError(f"{folder / name}.py cannot be read as a module")
    module: ModuleType = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look it up
    spec.loader.exec_module(module)
    return module


def _noise(y: Floats) -> float:
    """Return the sd of a row from differences of neighbours, 1 where they are alike."""
    return float(np.median(np.abs(np.diff(y)))) / 0.954 or 1.0
