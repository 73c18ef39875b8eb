"""How often the likelihood ratio of a series passes a level that nothing but noise passes some times an hour.

What is higher is rarer by about the same factor in most noise, so this tells by how much the threshold, which
theory sets for noise that is known, is too high or too low for that of the series.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from detectors import _memory
from detectors._memory import SCALES, Memory
from detectors._spread import EXPECTED, Spread

LEVEL = 6.0
APART_ROWS = 60.0
"""Below the level before it is passed again."""
_PRIOR_ROWS, _MEMORY_ROWS = 3600.0, 36_000.0
_RESERVE = 1.9  # of the threshold, for what may not be known: independent noise does without
_LEAST_SPARED, _MOST_SPARED = -1.0, 2.6
_TAIL = 2.5  # what passes the level more often than expected comes higher yet by this power
# the factor by which means of minutes vary more than independent ones: from which on the most is less,
_TIED = 20.0
# and rows until the measure counts: at least, and times its square
_LEAST_ROWS, _ROWS_EACH = 7200.0, 12.0
_NEVER = 1e-9


def learn(spread: Spread, best: NDArray[np.float64], counts: NDArray[np.bool_]) -> None:
    """Take the largest ratio of each series in a row; only those that could alarm in it count."""
    is_above = best > LEVEL
    passes = is_above & (spread.below >= APART_ROWS)
    rows = np.minimum(spread.seen[-1] + _PRIOR_ROWS, _MEMORY_ROWS)
    spread.passed += np.where(counts, (passes - spread.passed) / rows, 0.0)
    below = np.where(is_above, 0.0, spread.below + 1.0)
    spread.below = np.where(counts, below, spread.below)


def spared(spread: Spread, memory: Memory, calm: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return by how much the threshold of each series is lower than the one that holds for any noise.

    At first by what is known of bursts and of how rows hang together: the more they do, the longer it
    takes to know how often the level is passed.
    """
    factor = np.maximum(_memory.of_mean(memory, SCALES[-1]) / memory.variance, 1.0)
    first = calm * _RESERVE / factor
    often = np.log(np.maximum(spread.passed, _NEVER) / EXPECTED)
    most = _MOST_SPARED * np.minimum(1.0, _TIED / factor)
    measured = np.clip(_RESERVE - np.maximum(often, _TAIL * often), _LEAST_SPARED, most)
    known = spread.seen[-1] / np.maximum(_LEAST_ROWS, _ROWS_EACH * factor**2) - 1.0
    found: NDArray[np.float64] = first + np.clip(known, 0.0, 1.0) * (measured - first)
    return found
