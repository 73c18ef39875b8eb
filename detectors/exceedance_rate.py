"""The exceedance rate: how often the likelihood ratio of a series passes a level that noise rarely passes.

What is higher is rarer by about the same factor in most noise, so this tells by how much the threshold, which
theory sets for noise that is known, is too high or too low for that of the series.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from detectors import _memory, _swing
from detectors._memory import SCALES, Memory
from detectors._spread import EXPECTED, Spread

LEVEL = 6.0
APART_ROWS = 60.0
"""Below the level before it is passed again."""
_PRIOR_ROWS, _MEMORY_ROWS = 3600.0, 36_000.0
_RESERVE = 1.9  # of the threshold, for what may not be known: independent noise does without
_LEAST_SPARED, MOST_SPARED = -1.0, 3.0
_TAIL = 0.5  # of what passes more often, for each 1 up to the threshold of independent noise, is above it too
_TIED = 30.0  # from which on the most is less
# rows until the measure counts: at least, and times the square of how tied
LEAST_ROWS, _ROWS_EACH = 7200.0, 12.0
_NEVER = 1e-9


def learn(spread: Spread, best: NDArray[np.float64], counts: NDArray[np.bool_]) -> None:
    """Take the largest ratio of each series in a row; only those that could alarm in it count."""
    is_above = best > LEVEL
    passes = is_above & (spread.below >= APART_ROWS)
    below = np.where(is_above, 0.0, spread.below + 1.0)
    rows = np.minimum(spread.seen[-1] + _PRIOR_ROWS, _MEMORY_ROWS)
    spread.passed += np.where(counts, (passes - spread.passed) / rows, 0.0)
    spread.below = np.where(counts, below, spread.below)


def how_tied(memory: Memory) -> NDArray[np.float64]:
    """Return how many times the variance of means of 80 rows is that of independent ones, at least 1."""
    whole: NDArray[np.float64] = _memory.of_mean(memory, SCALES[-1]) / memory.variance
    return np.maximum(whole, 1.0)


def thresholds(
    whole: float,
    spread: Spread,
    tied: NDArray[np.float64],
    calm: NDArray[np.float64],
    at: NDArray[np.int64],
) -> NDArray[np.float64]:
    """Return the threshold of the series `at`, where `whole` is the one that holds for any noise.

    It is lower at first by what is known of bursts, `calm` from 0 to 1, and of how rows hang together: the
    more they do, the longer it takes to know how often the level is passed. What is measured lowers it to
    the level at most, as alarms would hide what passes that. All in all by `MOST_SPARED` at most.
    """
    passed, seen, tied, calm = spread.passed[at], spread.seen[-1, at], tied[at], calm[at]
    first = calm * _RESERVE / tied
    often = np.log(np.maximum(passed, _NEVER) / EXPECTED)
    # where noise swings, what passes the level rarely still comes high
    often = np.where(often < 0.0, often * (1.0 - _swing.share(spread)[at]), often)
    error = 1.0 / np.sqrt(EXPECTED * np.minimum(seen + _PRIOR_ROWS, _MEMORY_ROWS))
    higher = _TAIL * max(whole - _RESERVE - LEVEL, 0.0) * np.maximum(often - error, 0.0)
    most = MOST_SPARED * np.minimum(1.0, _TIED / tied)
    most = np.minimum(most, np.maximum(whole - LEVEL, first))
    measured = np.clip(_RESERVE - often - higher, _LEAST_SPARED, most)
    known = seen / np.maximum(LEAST_ROWS, _ROWS_EACH * tied**2) - 1.0
    found: NDArray[np.float64] = whole - first - np.clip(known, 0.0, 1.0) * (measured - first)
    return found
