"""When a step began: the interval that holds its onset, whatever the noise is like.

Each row votes for "before" or "after" by its Student t likelihood under the levels and spreads of both
sides, so one far value votes little. The sum of votes is no likelihood where rows are correlated or their
spread is misjudged; it becomes one by the ratio of twice their mean to their long-run variance, which is
1 for independent rows of the right likelihood.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# --- The median of few values without numpy's checks, which take five times as long as the sorting.


def middle(values: NDArray[np.float64]) -> float:
    """Return the median of finite values, at least one; the same float as `np.median`."""
    half = values.size // 2
    ordered = values.copy()
    if values.size % 2:
        ordered.partition(half)
        return float(ordered[half])
    ordered.partition((half - 1, half))
    return float((ordered[half - 1] + ordered[half]) / 2.0)


_FREEDOM = 4.0  # of the t distribution
_SHARE = 0.87  # of the likelihood; rows are whole, so such intervals hold 95 to 96 % of onsets
_MAD_TO_SD = 1.4826
_POOLED_ROWS = 30  # that the spread of both sides together counts as
_BLOCK = 15  # rows
_LEAST_BLOCKS = 20  # so that few steps are in few of them
_DIFFERENCE = 0.954  # median of |a - b| of two standard normal numbers
_LAGS = 11  # rows, within which what an AR(1) leaves over is correlated
_MOST_CORRELATION = 0.97
_MOST_LOG = 700.0


@dataclass(frozen=True, slots=True)
class Dated:
    """Rows of a window: `first` to `last` hold the onset, `at` is its likeliest.

    `ratio` is the log likelihood ratio of a step.
    """

    at: int
    first: int
    last: int
    ratio: float


def dated(y: NDArray[np.float64], at: int, least_rows: int, least_spread: float) -> Dated:
    """Return the onset of the step near row `at` of `y`, which holds no other step.

    `least_spread` is the least that is taken for the spread of either side, in the unit of `y`.
    """
    votes = _votes(y, at, least_spread)
    scale_before, scale_after = _scale(-votes[:at]), _scale(votes[at:])
    sums = np.concatenate([[0.0], np.cumsum(votes)]) - votes[:at].sum()
    # an onset at row s counts the votes from `at` to s, or from s to `at`, the other way
    rows = np.arange(least_rows, y.size - least_rows + 1)
    weighed = -sums[rows] * np.where(rows < at, scale_before, scale_after)
    best = int(np.argmax(weighed))
    first, last = _held(np.exp(np.maximum(weighed - weighed[best], -_MOST_LOG)))
    ratio = -scale_before * float(votes[:at].sum()) + scale_after * float(votes[at:].sum())
    return Dated(int(rows[best]), int(rows[first]), int(rows[last]), max(0.0, ratio))


def wandering(y: NDArray[np.float64]) -> float:
    """Return the long-run sd of the noise of a series, as the means of blocks of rows tell it.

    Medians of what neighbours differ by hardly see steps, nor that the noise is larger at some times.
    """
    found = []
    for block in (1, max(1, min(_BLOCK, y.size // _LEAST_BLOCKS))):
        means = y[: y.size // block * block].reshape(-1, block).mean(axis=1)
        if means.size > 1:
            found.append(float(np.median(np.abs(np.diff(means)))) * block**0.5 / _DIFFERENCE)
    return max(found, default=0.0)


def _votes(y: NDArray[np.float64], at: int, least_spread: float) -> NDArray[np.float64]:
    """Return the log likelihood of each row under the level after over that under the level before."""
    sides = (y[:at], y[at:])
    levels = [middle(side) for side in sides]
    rest = [np.abs(side - level) for side, level in zip(sides, levels, strict=True)]
    pooled = _spread(np.concatenate(rest))
    found = []
    for level, side in zip(levels, rest, strict=True):
        own = (side.size * _spread(side) + _POOLED_ROWS * pooled) / (side.size + _POOLED_ROWS)
        spread = max(own, least_spread)
        distance = (y - level) / spread
        found.append(-np.log(spread) - (_FREEDOM + 1.0) / 2.0 * np.log1p(distance**2 / _FREEDOM))
    return np.asarray(found[1] - found[0])


def _spread(distances: NDArray[np.float64]) -> float:
    return _MAD_TO_SD * middle(distances) or float(np.mean(distances))


def _scale(votes: NDArray[np.float64]) -> float:
    """Return what makes the sum of one side's votes, in its own favour, a log likelihood."""
    mean = float(votes.mean())
    variance = _long_run_variance(votes - mean)
    if mean <= 0.0:
        return 0.0
    return 1.0 if variance <= 0.0 else min(1.0, 2.0 * mean / variance)


def _long_run_variance(rest: NDArray[np.float64]) -> float:
    """Return the variance of a long mean of `rest`, whose mean is 0, times its number of rows.

    An AR(1) is taken out before autocovariances are summed, and put back (Andrews and Monahan 1992,
    doi:10.2307/2951574).
    """
    n, power = rest.size, float(rest @ rest)
    if n < 3 or power <= 0.0:  # noqa: PLR2004  # what a correlation needs
        return power / max(n, 1)
    raw = float(rest[1:] @ rest[:-1]) / power
    correlation = min(max(raw + (1.0 + 3.0 * raw) / n, 0.0), _MOST_CORRELATION)
    left = rest[1:] - correlation * rest[:-1]
    own = float(left @ left)
    # autocovariances weighed by 1 - lag / _LAGS add up to the squares of all sums of `_LAGS` rows
    sums = np.convolve(left, np.ones(_LAGS))
    return max(float(sums @ sums) / _LAGS, own / 2.0) / left.size / (1.0 - correlation) ** 2


def _held(weight: NDArray[np.float64]) -> tuple[int, int]:
    """Return the first and last place of the heaviest, so many that together they hold nearest to the share.

    Rows are whole: with always so many that they hold more, the intervals of clear steps would be too wide.
    """
    order = np.argsort(-weight, kind="stable")
    held = np.cumsum(weight[order]) / weight.sum()
    kept = order[: int(np.argmin(np.abs(held - _SHARE))) + 1]
    return int(kept.min()), int(kept.max())
