"""The noise of each series: its scale, the bound of its scores, and the variance of its contrasts.

Scale:     s, from absolute differences of successive values, which neither a step nor a drift enlarges.
           A score is a value in units of s, or of the minimum effect or half the resolution, if larger.
Clip:      Huber's minimax k for the share of outliers among the differences (Huber 1964), times the root of
           v(22 rows), so that a step of autocorrelated rows is judged in long-run standard deviations.
Variance:  v(m) of a contrast of m rows, times m n / (m + n), learnt by averaging the squared contrasts
           themselves (as Allan 1966 does of neighbouring means). Any autocorrelation, random walk,
           daily wave or heavy tail is in it. Long windows have few independent samples: their v is shrunk
           towards that of an AR(1) with the v of the next shorter window, less so where it was seen to be
           larger by more than its error: to take a random walk for an AR(1) costs alarms, the reverse only
           delay. The degrees of freedom count these samples.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, lru_cache
from math import exp, pi, sqrt

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from detectors.online.constants import CONSTANTS
from detectors.online.state import CELL, ROWS, Floats, SeriesArrays
from detectors.online.window import AGES

_TYPICAL = int(np.searchsorted(AGES, 22))  # by then most steps of 1.5 sd are seen
_LEAST_ROWS = CELL  # for a level
_TEACHING_ROWS = 40  # before contrasts teach: s is known to 10 %; also their least memory
_MIDMEAN = 0.9806  # of absolute differences of independent rows, over their standard deviation
_LEAST_VALUES = 3  # distinct, that make a grid: the distance of two may be a step


@cache
def _kept(bound: float) -> float:
    """Return how much is kept of a squared normal contrast, that teaches up to so many sd."""
    density = exp(-(bound**2) / 2.0) / sqrt(2.0 * pi)
    return 1.0 - 2.0 * bound * density - 2.0 * (1.0 - bound**2) * float(ndtr(-bound))


# Huber's k over the share of outliers of a contaminated normal distribution.
_k = np.linspace(1.0, 3.4, 200)
_odds = 2.0 * np.exp(-(_k**2) / 2.0) / sqrt(2.0 * pi) / _k - 2.0 * ndtr(-_k)
_SHARES, _CLIPS = (_odds / (1.0 + _odds))[::-1], _k[::-1]

# v(m) of an AR(1) whose neighbouring rows differ as those of independent noise of unit variance, (ages, phi).
_phi = 1.0 - np.geomspace(1.0, 0.005, 60)[:, np.newaxis]
_long_run = (1.0 + _phi) / (1.0 - _phi)
_ends = 2.0 * _phi * (1.0 - _phi**AGES) / (AGES * (1.0 - _phi) ** 2)
_CURVES = np.ascontiguousarray(((_long_run - _ends) / (1.0 - _phi)).T)
_OCTAVES = np.log2(AGES / np.concatenate([[1.0], AGES[:-1]]))
_PRIOR = (CONSTANTS.prior_samples / _OCTAVES).tolist()
_UPWARD = (CONSTANTS.upward_samples / _OCTAVES).tolist()
_MOST_TAUGHT = 256  # sets of numbers of rows whose samples are remembered


@dataclass(slots=True)
class Noise:
    """What follows from the arrays."""

    unit: Floats  # (n,), a score of 1 on the scale of each series
    expected: Floats  # (ages, n), v(m) as learnt and shrunk
    variance: Floats  # (ages, n), the same, at least that of the minimum effect
    freedom: Floats  # (ages, n)
    spread: Floats  # (ages, n), variance times freedom


def judge(arrays: SeriesArrays, effect: NDArray[np.float64]) -> Noise:
    """Return the noise of each series; `effect` is the minimum effect at its level, shape (n,)."""
    least_sd = np.maximum(effect, 0.5 * arrays.grid)  # two neighbouring values of a grid
    unit = np.maximum(arrays.scale, least_sd)
    least = (least_sd / unit) ** 2
    taught = np.minimum(arrays.taught, CONSTANTS.noise_rows)
    known = _samples_of(taught)
    # In one precision from here on: a call of NumPy that converts an operand takes twice as long.
    learnt = (known.number * arrays.variance).astype(np.float64)
    variances, numbers, errors = (
        one.astype(np.float64) for one in (arrays.variance, known.number, known.error)
    )
    found = np.empty(variances.shape)
    shorter = (arrays.scale / unit) ** 2
    for g, (usual, upward) in enumerate(zip(_PRIOR, _UPWARD, strict=True)):
        implied = shorter
        if g:
            implied = np.interp(shorter, _CURVES[g - 1], _CURVES[g]) * np.minimum(shorter, 1.0)
        prior = np.where(variances[g] > implied * errors[g], upward, usual)
        shorter = np.divide(learnt[g] + prior * implied, numbers[g] + prior, out=found[g])
    expected = found.astype(np.float32)
    variance = np.maximum(expected, least).astype(np.float32)
    freedom = np.broadcast_to(known.freedom, variance.shape)
    return Noise(unit.astype(np.float32), expected, variance, freedom, variance * freedom)


@dataclass(frozen=True, slots=True)
class _Samples:
    """The independent contrasts that taught each variance, (ages, n); (ages, 1) where all have the same."""

    number: NDArray[np.floating]
    error: NDArray[np.floating]  # 1 and the standard error of a variance
    freedom: Floats


def _samples_of(taught: Floats) -> _Samples:
    """Return the samples of series that were taught by so many rows, shape (n,); few of these differ."""
    if taught.size and (taught == taught[0]).all():
        return _samples((float(taught[0]),))
    distinct, place = np.unique(taught, return_inverse=True)
    known = _samples(tuple(distinct.tolist()))
    return _Samples(known.number[:, place], known.error[:, place], known.freedom[:, place])


@lru_cache(maxsize=_MOST_TAUGHT)
def _samples(rows: tuple[float, ...]) -> _Samples:
    """Return the samples in each number of rows, a column each; sources that record together share them."""
    ages, taught = AGES[:, np.newaxis], np.array(rows, np.float32)
    number = np.maximum(taught - 2.0 * ages, 0.0) / ages
    error = 1.0 + np.sqrt(2.0 / np.maximum(number, 1.0))
    freedom = np.empty(number.shape, np.float32)
    shorter = np.full(taught.size, CONSTANTS.prior_samples)
    for g, usual in enumerate(_PRIOR):
        shorter = number[g] + 1.0 / (1.0 / usual + 1.0 / shorter)
        freedom[g] = shorter
    for array in (number, error, freedom):
        array.flags.writeable = False  # all callers share them
    return _Samples(number, error, freedom)


def log_ratio(
    squared: Floats, spread: NDArray[np.floating], freedom: NDArray[np.floating]
) -> NDArray[np.floating]:
    """Return the log likelihood ratio of squared contrasts by Student's t; `spread` is v(m) times freedom."""
    ratio: NDArray[np.floating] = squared / spread
    ratio += 1.0  # log1p is several times slower, and only large ratios matter
    np.log(ratio, out=ratio)
    ratio *= freedom
    ratio *= 0.5
    return ratio


def learn_variance(
    arrays: SeriesArrays, squared: Floats, known: NDArray[np.bool_], noise: Noise
) -> None:
    """Take the squared contrasts of a row; one row in `CELL` teaches for all."""
    is_old = arrays.seen >= _TEACHING_ROWS
    rows = arrays.taught + CELL - 2.0 * AGES[:, np.newaxis]
    rows = np.clip(rows, _TEACHING_ROWS, CONSTANTS.noise_rows)
    is_first = is_old & (arrays.taught == 0)
    arrays.variance[:] = np.where(is_first, noise.expected, arrays.variance)
    bounded = np.minimum(
        squared, CONSTANTS.contrast_sd**2 * np.maximum(noise.expected, arrays.variance)
    )
    weight = np.where(known & is_old, CELL / rows, 0.0)
    arrays.variance += weight * (bounded / _kept(CONSTANTS.contrast_sd) - arrays.variance)
    arrays.taught += CELL * is_old


def learn_outliers(arrays: SeriesArrays, unit: Floats) -> None:
    """Take the differences of the newest `CELL` rows."""
    apart = _successive(arrays.y)[ROWS - 1 :]
    known = np.isfinite(apart) & (arrays.seen > 0)
    far = known & (apart > CONSTANTS.outlier_sd * sqrt(2.0) * unit)
    number = known.sum(axis=0)
    arrays.outlier_rows[:] = np.minimum(arrays.outlier_rows + number, CONSTANTS.noise_rows)
    arrays.outliers += (far.sum(axis=0) - number * arrays.outliers) / arrays.outlier_rows


def learn_scale(arrays: SeriesArrays) -> None:
    """Take level, scale and resolution of the newest `ROWS` rows, `CELL` of which are new."""
    y = np.sort(arrays.y[:ROWS], axis=0)  # NaN last
    level, number = _medians(y)
    apart = _midmean(_successive(arrays.y[:ROWS])) / _MIDMEAN
    enough, seen = number >= _LEAST_ROWS, arrays.seen
    arrays.center[:] = np.where(enough, level, arrays.center)
    weight = np.maximum(CELL / CONSTANTS.scale_rows, np.minimum(1.0, CELL / np.maximum(seen, 1.0)))
    weight = np.where(seen == 0, 1.0, weight)
    arrays.scale += np.where(enough, weight * (apart - arrays.scale), 0.0).astype(np.float32)
    arrays.seen += np.where(enough, np.where(seen == 0, number, CELL), 0)
    gaps = np.diff(y, axis=0)
    is_gap = gaps > 0  # False for NaN
    is_grid = is_gap.sum(axis=0) >= _LEAST_VALUES - 1
    smallest = np.where(is_gap, gaps, np.inf).min(axis=0)
    arrays.grid[:] = np.where(is_grid, smallest, arrays.grid)


def learn_clip(arrays: SeriesArrays, noise: Noise) -> None:
    """Set the bound of scores from the share of outliers; noise below the unit may burst unseen."""
    clip = np.maximum(np.interp(arrays.outliers, _SHARES, _CLIPS), CONSTANTS.least_clip)
    clip = np.where(arrays.scale < noise.unit, CONSTANTS.least_clip, clip)
    arrays.clip[:] = clip * np.sqrt(noise.variance[_TYPICAL])


def _successive(y: Floats) -> Floats:
    """Return how far each value is from the one before it, whatever rows without one lie between; else NaN.

    Shape (rows - 1, n). A series that has a value in every third second has noise all the same.
    """
    is_known = np.isfinite(y)
    before = y[:-1]
    if not is_known.all():
        rows = np.arange(y.shape[0])[:, np.newaxis]
        newest = np.maximum.accumulate(np.where(is_known, rows, 0), axis=0)
        before = np.take_along_axis(y, newest[:-1], axis=0)
    apart: Floats = np.abs(y[1:] - before)
    return apart


def _medians(y: Floats) -> tuple[Floats, NDArray[np.int64]]:
    """Return the median of each sorted column, NaN where it is empty, and the number of values."""
    number = np.isfinite(y).sum(axis=0)
    last, column = np.maximum(number - 1, 0), np.arange(y.shape[1])
    return 0.5 * (y[last // 2, column] + y[(last + 1) // 2, column]), number


def _midmean(v: Floats) -> NDArray[np.float64]:
    """Return the mean of the middle half of each column: robust, and smooth where values are few."""
    v = np.sort(v, axis=0)
    number = np.isfinite(v).sum(axis=0)
    low, column = number // 4, np.arange(v.shape[1])
    sums = np.zeros((v.shape[0] + 1, v.shape[1]))
    np.cumsum(np.where(np.isnan(v), 0, v), axis=0, out=sums[1:])
    middle = sums[number - low, column] - sums[low, column]
    found: NDArray[np.float64] = middle / np.maximum(number - 2 * low, 1)
    return found
