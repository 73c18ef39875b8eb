"""Series in which nothing happens, of every kind that a soak brings; one column a series."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import pi, sqrt

import numpy as np
from numpy.typing import NDArray

Table = NDArray[np.float64]
Make = Callable[[np.random.Generator, int, int], Table]

_DAY = 86_400


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


def student(rng: np.random.Generator, rows: int, series: int) -> Table:
    return rng.standard_t(3, (rows, series))


def lognormal(rng: np.random.Generator, rows: int, series: int) -> Table:
    """As a latency that is not judged on log10."""
    return rng.lognormal(0.0, 0.5, (rows, series))


def spikes(rng: np.random.Generator, rows: int, series: int) -> Table:
    """One second in twenty is much higher."""
    x = rng.standard_normal((rows, series))
    return x + (rng.random((rows, series)) < 0.05) * rng.lognormal(1.5, 0.8, (rows, series))


def daily(rng: np.random.Generator, rows: int, series: int) -> Table:
    """A day's wave, up and down by two standard deviations."""
    phase = rng.random(series)
    wave = np.sin(2.0 * pi * (np.arange(rows)[:, np.newaxis] / _DAY + phase))
    return rng.standard_normal((rows, series)) + 2.0 * wave


def rounded(rng: np.random.Generator, rows: int, series: int) -> Table:
    """Few different values."""
    return np.round(0.7 * rng.standard_normal((rows, series)))


def heteroscedastic(rng: np.random.Generator, rows: int, series: int) -> Table:
    """The size of the noise triples and falls back within an hour."""
    phase = rng.random(series)
    wave = np.sin(2.0 * pi * (np.arange(rows)[:, np.newaxis] / 3600.0 + phase))
    return rng.standard_normal((rows, series)) * 3.0 ** (0.5 * wave)


def missing(rng: np.random.Generator, rows: int, series: int) -> Table:
    """Every tenth second without a value, and holes of half a minute."""
    x = autocorrelated(0.6)(rng, rows, series)
    x[rng.random((rows, series)) < 0.1] = np.nan
    for at in rng.integers(0, rows, max(1, rows // 1800)):
        x[at : at + 30] = np.nan
    return x


def wandering(rng: np.random.Generator, rows: int, series: int) -> Table:
    """An AR(1) of 0.9 behind independent noise of the same size."""
    return autocorrelated(0.9)(rng, rows, series) + rng.standard_normal((rows, series))


def bursts(rng: np.random.Generator, rows: int, series: int) -> Table:
    """Once in a hundred seconds one to four seconds ten standard deviations up."""
    x = rng.standard_normal((rows, series))
    begins = rng.random((rows, series)) < 0.01
    length = rng.integers(1, 5, (rows, series))
    for more in range(4):
        later = np.zeros_like(begins)
        later[more:] = (begins & (length > more))[: rows - more]
        x[later] += 10.0 - x[later]
    return x


NOISES: Mapping[str, Make] = {
    "independent": independent,
    "AR(1) 0.3": autocorrelated(0.3),
    "AR(1) 0.6": autocorrelated(0.6),
    "AR(1) 0.8": autocorrelated(0.8),
    "AR(1) 0.95": autocorrelated(0.95),
    "Student t, 3 degrees": student,
    "log-normal, not on log10": lognormal,
    "spikes in 5 % of seconds": spikes,
    "a day's wave of 2 sd": daily,
    "rounded to few values": rounded,
    "size triples within the hour": heteroscedastic,
    "AR(1) 0.6, a tenth missing": missing,
    "AR(1) 0.9 behind equal noise": wandering,
    "bursts of 1 to 4 s": bursts,
}


def bootstrap(
    rng: np.random.Generator, recorded: NDArray[np.float64], rows: int, series: int, block: int
) -> Table:
    """Return series of blocks of a recorded one, drawn with replacement, as they were recorded."""
    starts = rng.integers(0, recorded.size - block + 1, (rows // block + 1, series))
    whole = recorded[starts[:, np.newaxis, :] + np.arange(block)[np.newaxis, :, np.newaxis]]
    made: Table = whole.reshape(-1, series)[:rows]
    return made
