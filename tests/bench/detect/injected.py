"""Steps, spikes and stalls put into recorded noise, where the truth is known."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.bench.detect import one_cut
from tests.bench.detect.false_alarms import FalseAlarms, counted
from tests.bench.detect.feed import FAR, config, feed
from tests.bench.detect.traces import Trace

LASTS = 120  # rows of a step
FOUND_WITHIN = 60
_BEFORE, _BLOCK = 400, 30  # rows before the step; of a mean that the long-run sd is judged from
_BESIDE = 5  # rows that a cut may lie before the step that it is of
_QUIET_ROWS, _QUIET = 60, 0.5  # four standard errors of a mean, a quarter of the smallest step
_MONTH = 30 * 86_400.0
_OMB_SERIES = ("publishLatency99pct", "endToEndLatency99pct", "publishLatency50pct")

Series = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Injected:
    """Of steps of one size: how many were put in, and how many were confirmed in time."""

    size: float
    steps: int
    found: int

    @property
    def share(self) -> float:
        return self.found / max(1, self.steps)


def quiet_stretches(traces: Sequence[Trace], least: int, margin: int = 40) -> list[Series]:
    """Return the stretches between labels, on log10, that are at least so long; missing values left out."""
    found = []
    for trace in traces:
        edges = [-margin, *trace.labels, trace.series.values.size + margin]
        for first, last in pairwise(edges):
            stretch = trace.series.values[first + margin : last - margin]
            stretch = stretch[np.isfinite(stretch)]
            if stretch.size >= least:
                found.append(np.log10(stretch))
    return found


def omb_series(folder: Path, least: int) -> list[Series]:
    """Return the latencies of result files, on log10, that are long enough."""
    found = []
    for path in sorted(folder.glob("*.json.gz")):
        result: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes()))
        for name in _OMB_SERIES:
            values = np.asarray(result.get(name, []), dtype=np.float64)
            if values.size >= least and (values > 0.0).all():
                found.append(np.log10(values))
    return found


def long_run_sd(y: Series) -> float:
    """Return the sd of means of 30 rows, judged from neighbours, in terms of one row; at least a row's."""
    found = []
    for block in (1, _BLOCK):
        means = y[: y.size // block * block].reshape(-1, block).mean(axis=1)
        apart = np.abs(np.diff(means))
        found.append(1.4826 * float(np.median(apart)) / sqrt(2.0) * sqrt(block))
    return max(found)


def pieces(noises: Sequence[Series], many: int, rows: int, seed: int) -> Series:
    """Return pieces of noise of unit long-run sd, (rows, many), drawn from all of it evenly."""
    rng = np.random.default_rng(seed)
    usable = [y for y in noises if y.size >= rows and long_run_sd(y) > 0.0]
    weight = np.array([y.size - rows + 1 for y in usable], dtype=np.float64)
    columns = []
    for which in rng.choice(len(usable), many, p=weight / weight.sum()):
        y = usable[which]
        start = rng.integers(0, y.size - rows + 1)
        columns.append(y[start : start + rows] / long_run_sd(y))
    return np.column_stack(columns)


def is_quiet(noise: Series) -> NDArray[np.bool_]:
    """True for columns in which no mean of a minute lies half a long-run sd from the median.

    The rule looks at nothing but these means, so no detector chooses what it is judged on.
    """
    minutes = noise[: noise.shape[0] // _QUIET_ROWS * _QUIET_ROWS]
    means = minutes.reshape(-1, _QUIET_ROWS, noise.shape[1]).mean(axis=1)
    quiet: NDArray[np.bool_] = (np.abs(means - np.median(noise, axis=0)) <= _QUIET).all(axis=0)
    return quiet


def steps(noise: Series, size: float, every_seconds: float = _MONTH) -> Injected:
    """Step each column after 400 rows, up or down in turn; those that alarm earlier still count."""
    values, sign = FAR + noise[: _BEFORE + LASTS], _signs(noise)
    values[_BEFORE:] += size * sign
    found = {
        one.series
        for one in feed(values, config(every_seconds))
        if one.change.state == "confirmed"
        and _BEFORE <= one.row < _BEFORE + FOUND_WITHIN
        and (one.change.direction == "up") == (sign[one.series] > 0.0)
    }
    return Injected(size, values.shape[1], len(found))


def confirmed_without(noise: Series, every_seconds: float = _MONTH) -> int:
    """Return how many of the columns are confirmed as changed where nothing was put in."""
    return _confirmed(FAR + noise[: _BEFORE + LASTS], every_seconds)


def alarms(noise: Series, every_seconds: float) -> FalseAlarms:
    """Count all alarms where nothing was put in, beside those that are allowed."""
    return counted("recorded", FAR + noise[: _BEFORE + LASTS], every_seconds)


def confirmed_on_disturbances(noise: Series, every_seconds: float = _MONTH) -> int:
    """Return the same with single outliers, two spikes in a row and a stall of five rows put in."""
    return _confirmed(FAR + _disturbed(noise), every_seconds)


def peer_steps(name: str, noise: Series, size: float) -> Injected:
    """Let a method that looks back cut each column when the time is up; any cut since the step counts."""
    values = noise[: _BEFORE + FOUND_WITHIN].copy()
    values[_BEFORE:] += size * _signs(noise)
    cuts = one_cut.of_columns(name, values)
    found = sum(any(at >= _BEFORE - _BESIDE for at in one) for one in cuts)
    return Injected(size, len(cuts), found)


def peer_without(name: str, noise: Series, *, is_disturbed: bool = False) -> int:
    """Return how many columns a method cuts where no step was put in."""
    values = _disturbed(noise) if is_disturbed else noise[: _BEFORE + LASTS]
    return sum(bool(one) for one in one_cut.of_columns(name, values))


def _signs(noise: Series) -> Series:
    return np.where(np.arange(noise.shape[1]) % 2 == 0, 1.0, -1.0)


def _disturbed(noise: Series) -> Series:
    values = noise[: _BEFORE + LASTS].copy()
    for row, length in ((250, 1), (300, 2), (350, 5)):
        values[row : row + length] += 30.0
    return values


def _confirmed(values: Series, every_seconds: float) -> int:
    said = feed(values, config(every_seconds))
    return len({one.series for one in said if one.change.state == "confirmed"})
