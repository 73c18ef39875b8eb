"""Noise without a change: fourteen generated kinds, and quiet pieces of what was recorded."""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import pi, sqrt
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.bench.detect import traces
from tests.bench.detect.feed import FAR
from tests.support.paths import RECORDED

FOLDER = RECORDED / "noise"
SD = 0.05
"""Of log10, which a p99 of a healthy cluster has: the size of noise that is generated for offline methods."""
_SECONDS = "*_seconds.csv.gz"
_DAY = 86_400
_MS = 5.0  # level of values in whole milliseconds
_MS_SD = 0.1  # of their log10
_OMB_SERIES = ("publishLatency99pct", "endToEndLatency99pct", "publishLatency50pct")
_BLOCK = 30  # rows of a mean that the long-run sd is judged from
_MARGIN = 40  # rows of a trace near a label that belong to no quiet stretch
_LEAST_ROWS = 600  # of a quiet stretch
_QUIET_ROWS, _QUIET = 60, 0.5  # four standard errors of a mean, a quarter of a step of 2 sd

Table = NDArray[np.float64]
"""Rows x series."""
Floats = NDArray[np.float64]
Make = Callable[[np.random.Generator, int, int], Table]


# ---- generated


def autocorrelated(correlation: float) -> Make:
    """AR(1) of unit variance that starts in its stationary state."""

    def make(rng: np.random.Generator, rows: int, series: int) -> Table:
        x = rng.standard_normal((rows, series))
        fresh = sqrt(1.0 - correlation**2)
        for row in range(1, rows):
            x[row] = correlation * x[row - 1] + fresh * x[row]
        return x

    return make


def independent(rng: np.random.Generator, rows: int, series: int) -> Table:
    return rng.standard_normal((rows, series))


def random_walk(rng: np.random.Generator, rows: int, series: int) -> Table:
    """Independent noise on a level that takes a random step of 0.03 each second: one sd in 1,100 s."""
    level = np.cumsum(0.03 * rng.standard_normal((rows, series)), axis=0)
    return np.asarray(level + rng.standard_normal((rows, series)))


def student(rng: np.random.Generator, rows: int, series: int) -> Table:
    return rng.standard_t(4, (rows, series))


def lognormal(rng: np.random.Generator, rows: int, series: int) -> Table:
    """As a latency that is not judged on log10."""
    return rng.lognormal(0.0, 0.5, (rows, series))


def heteroscedastic(rng: np.random.Generator, rows: int, series: int) -> Table:
    """The sd triples and falls back within an hour."""
    phase = rng.random(series)
    wave = np.sin(2.0 * pi * (np.arange(rows)[:, np.newaxis] / 3600.0 + phase))
    return rng.standard_normal((rows, series)) * 3.0 ** (0.5 * wave)


def daily(rng: np.random.Generator, rows: int, series: int) -> Table:
    """A wave of a day, up and down by two standard deviations."""
    phase = rng.random(series)
    wave = np.sin(2.0 * pi * (np.arange(rows)[:, np.newaxis] / _DAY + phase))
    return rng.standard_normal((rows, series)) + 2.0 * wave


def rounded(rng: np.random.Generator, rows: int, series: int) -> Table:
    """Few different values."""
    return np.round(0.7 * rng.standard_normal((rows, series)))


def whole_milliseconds(rng: np.random.Generator, rows: int, series: int) -> Table:
    """The log10, in terms of SD, of a latency near 5 ms that is given in whole milliseconds, at least one."""
    exact = _MS * 10.0 ** (_MS_SD * rng.standard_normal((rows, series)))
    return np.log10(np.maximum(np.round(exact), 1.0) / _MS) / SD


def mixture(rng: np.random.Generator, rows: int, series: int) -> Table:
    """Two modes: three seconds in ten are four standard deviations higher."""
    return rng.standard_normal((rows, series)) + 4.0 * (rng.random((rows, series)) < 0.3)


def spikes(rng: np.random.Generator, rows: int, series: int) -> Table:
    """One second in twenty, at random, is much higher."""
    x = rng.standard_normal((rows, series))
    return x + (rng.random((rows, series)) < 0.05) * rng.lognormal(1.5, 0.8, (rows, series))


_MILLISECONDS = "whole milliseconds"
NOISES: Mapping[str, Make] = {
    "independent": independent,
    "AR(1) 0.3": autocorrelated(0.3),
    "AR(1) 0.6": autocorrelated(0.6),
    "AR(1) 0.8": autocorrelated(0.8),
    "AR(1) 0.95": autocorrelated(0.95),
    "random walk": random_walk,
    "Student t, 4 degrees": student,
    "log-normal, not on log10": lognormal,
    "sd triples within the hour": heteroscedastic,
    "a day's wave of 2 sd": daily,
    "rounded to few values": rounded,
    _MILLISECONDS: whole_milliseconds,
    "mixture of two modes": mixture,
    "spikes in 5 % of seconds": spikes,
}


def as_measured(name: str, table: Table) -> Table:
    """Return a noise as an online detector gets it: on a far level, or in its unit."""
    return _MS / 1e3 * 10.0 ** (SD * table) if unit_of(name) else FAR + table


def unit_of(name: str) -> str:
    """Return the unit of a noise, "" of one without."""
    return "seconds" if name == _MILLISECONDS else ""


def on_log10(name: str, seed: Sequence[int], rows: int) -> Floats:
    """Return one series of a noise as an offline method gets it: on log10, with an sd of SD."""
    return SD * NOISES[name](np.random.default_rng(seed), rows, 1)[:, 0]


# ---- recorded


@dataclass(frozen=True, slots=True)
class Source:
    """A recorded series on log10, without missing rows."""

    name: str
    y: Floats


@dataclass(frozen=True, slots=True)
class Pieces:
    """Pieces of recorded noise of unit long-run sd, (rows, pieces), and the source of each."""

    values: Table
    sources: tuple[str, ...]

    def chosen(self, at: NDArray[np.bool_]) -> Pieces:
        return Pieces(self.values[:, at], tuple(np.array(self.sources)[at]))


def recorded() -> list[Source]:
    """Return the latencies of a lab Kafka and a lab Pulsar, an hour each; steps in them are not cut out."""
    return [
        Source(path.name.removesuffix("_seconds.csv.gz"), np.log10(_above_zero(path)))
        for path in sorted(FOLDER.glob(_SECONDS))
    ]


def sources(shared: Path) -> list[Source]:
    """Return quiet stretches of labelled traces, long benchmark series, and the recorded latencies."""
    return [*stretches(shared), *_omb_series(shared / "omb-results"), *recorded()]


def stretches(shared: Path) -> list[Source]:
    """Return the quiet stretches of the labelled traces, each named after its trace."""
    return [
        Source(name, y)
        for name, trace in traces.labelled(shared).items()
        for y in quiet_stretches(trace)
    ]


def quiet_stretches(trace: traces.Trace) -> Iterator[Floats]:
    """Yield the long stretches between labels, on log10; missing values are left out."""
    edges = [-_MARGIN, *trace.labels, trace.series.values.size + _MARGIN]
    for first, last in pairwise(edges):
        stretch = trace.series.values[first + _MARGIN : last - _MARGIN]
        stretch = stretch[np.isfinite(stretch)]
        if stretch.size >= _LEAST_ROWS:
            yield np.log10(stretch)


def long_run_sd(y: Floats) -> float:
    """Return the sd of means of 30 rows in terms of one row, at least that of a row.

    It comes from differences of neighbours, so that a few steps do not enlarge it.
    """
    found = []
    for block in (1, _BLOCK):
        means = y[: y.size // block * block].reshape(-1, block).mean(axis=1)
        apart = np.abs(np.diff(means))
        found.append(1.4826 * float(np.median(apart)) / sqrt(2.0) * sqrt(block))
    return max(found)


def pieces(noise: Sequence[Source], many: int, rows: int, seed: int) -> Pieces:
    """Return so many pieces, drawn evenly from all the rows of all sources."""
    rng = np.random.default_rng(seed)
    usable = [(one, long_run_sd(one.y)) for one in noise if one.y.size >= rows]
    usable = [(one, sd) for one, sd in usable if sd > 0.0]
    weight = np.array([one.y.size - rows + 1 for one, _ in usable], dtype=np.float64)
    columns, names = [], []
    for which in rng.choice(len(usable), many, p=weight / weight.sum()):
        one, sd = usable[which]
        start = rng.integers(0, one.y.size - rows + 1)
        columns.append(one.y[start : start + rows] / sd)
        names.append(one.name)
    return Pieces(np.column_stack(columns), tuple(names))


def is_quiet(table: Table) -> NDArray[np.bool_]:
    """Return, for each column, whether every mean of a minute lies within half an sd of the median.

    The rule uses nothing but these means, so no detector chooses the noise that it is judged on.
    """
    minutes = table[: table.shape[0] // _QUIET_ROWS * _QUIET_ROWS]
    means = minutes.reshape(-1, _QUIET_ROWS, table.shape[1]).mean(axis=1)
    quiet: NDArray[np.bool_] = (np.abs(means - np.median(table, axis=0)) <= _QUIET).all(axis=0)
    return quiet


def reflected(y: Floats, rows: int) -> Floats:
    """Return a longer series: the recorded one forwards and backwards in turn, so that no level jumps."""
    there_and_back = np.concatenate([y, y[::-1]])
    return np.resize(there_and_back, rows)


def _above_zero(path: Path) -> Floats:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        _, *rows = csv.reader(file)
    return np.array([float(value) for _, value in rows if value and float(value) > 0.0])


def _omb_series(folder: Path) -> list[Source]:
    found = []
    for path in sorted(folder.glob("*.json.gz")):
        result: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes()))
        for name in _OMB_SERIES:
            values = np.asarray(result.get(name, []), dtype=np.float64)
            if values.size >= _LEAST_ROWS and (values > 0.0).all():
                found.append(Source(f"{path.name.partition('.')[0]} {name}", np.log10(values)))
    return found
