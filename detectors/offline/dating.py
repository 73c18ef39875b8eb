"""When a step began: its likeliest row, and the rows that hold its onset with 95 % probability.

Method:  Every row near a cut has a normal log-likelihood ratio of the level after over the level before. An
         onset is as likely as the sum of the ratios from it on; the interval takes the likeliest rows first.
         Correlated rows are counted as fewer independent ones, in proportion to the variance of block means.
         A row far beyond both levels counts as two standard deviations beyond.
Assumes: one step between the given rows, and equal noise on both sides of it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from detectors.offline.constants import CONSTANTS as C
from detectors.offline.noise import MAD_TO_SD
from detectors.onset_interval import most_probable

Floats = NDArray[np.float64]

_FAR_SD = 2.0  # beyond the levels; a normal row is there once in twenty
_CLEAR_SD = 10.0  # a step of so many standard deviations is dated exactly
_GUARDED_BLOCKS = 3  # on both sides, so that one may be left out of the levels
_MAX_LOG = 700.0


@dataclass(frozen=True, slots=True)
class Onset:
    """The likeliest first row of a new level, and the first and last row of its interval."""

    at: int
    first: int
    last: int


def dated(y: Floats, low: int, at: int, high: int, rows: int, block_sd: float) -> Onset:
    """Return the onset of the step near row `at`, the only one in rows `low` to `high` of a series.

    `block_sd` is the standard deviation of the mean of `rows` rows, in the unit of `y`.
    """
    start, stop = max(low, at - C.local_blocks * rows), min(high, at + C.local_blocks * rows)
    before, after, sd = _levels(y, start, at, stop, rows)
    # rows for which one independent row would stand
    alike = max(1.0, rows * (block_sd / sd) ** 2)
    least, most = min(before, after) - _FAR_SD * sd, max(before, after) + _FAR_SD * sd
    near = np.clip(y[start:stop], least, most) - (before + after) / 2.0
    ratios = (after - before) * near / sd**2 / alike
    likelihoods = -np.cumsum(ratios)[:-1]  # of an onset in row start + 1, start + 2, ...
    weights = np.exp(np.maximum(likelihoods - likelihoods.max(), -_MAX_LOG))
    first, last = most_probable(weights)
    row = start + 1
    return Onset(row + int(np.argmax(weights)), row + first, row + last)


def _levels(y: Floats, start: int, at: int, stop: int, rows: int) -> tuple[float, float, float]:
    """Return the levels before and after row `at`, and the standard deviation of a row around them."""
    is_long = min(at - start, stop - at) > _GUARDED_BLOCKS * rows
    guard = rows if is_long else 0  # rows of the block with the cut may be of either level
    left, right = y[start : at - guard], y[at + guard : stop]
    before, after = float(np.median(left)), float(np.median(right))
    if before == after:  # rounded: most rows are the same
        before, after = float(left.mean()), float(right.mean())
    distances = np.abs(np.concatenate([left - before, right - after]))
    sd = MAD_TO_SD * float(np.median(distances))
    return before, after, max(sd, abs(after - before) / _CLEAR_SD)
