"""How far the size of noise itself swings, and how much larger than usual it is in the last rows of a series.

Whatever a level does, neighbouring rows differ by the fast part of its noise, and a step counts as one pair
of them, bounded. Their squared differences in the ring, over those that the series usually has, are its
local variance. A hundred pairs scatter by themselves, so as much of it is believed as it has been seen to
swing beyond that: hardly anything where noise keeps its size, nearly all where it grows and falls back
within the hour.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from detectors._block import Block
from detectors._spread import Spread
from detectors._windows import ROWS

_MOST_OF_A_PAIR = 12.0  # times what is usual a squared difference counts at most
_CHANCE = 3.0  # over the number of pairs: variance of the local variance of independent normal rows
_LEAST_PAIRS = ROWS // 2
_MOST_SQUARED = 1.0  # distance of a local variance from 1 that teaches
_MEMORY_ROWS = 36_000.0
_FROM_ROWS = 3600.0  # believed from so many rows on, and wholly from twice as many


def local(block: Block) -> NDArray[np.float64]:
    """Return the variance of each series in the ring over the usual, (n,); 1 where too few rows tell."""
    usual = np.maximum(block.usual_pair, 1.0) * np.maximum(block.pairs, 1)
    return np.where(block.pairs >= _LEAST_PAIRS, block.rough / usual, 1.0)


def recount(
    block: Block, at: NDArray[np.int64], wide: NDArray[np.int32], here: NDArray[np.int32]
) -> None:
    """Pair all rows of these series, given in the order of the ring one way or the other, (ROWS, at)."""
    both = here[:-1] * here[1:]
    block.pairs[at] = both.sum(axis=0)
    block.rough[at] = (both * _squared(np.diff(wide, axis=0), block.usual_pair[at])).sum(axis=0)


def push(block: Block, wide: NDArray[np.int32], here: NDArray[np.int32]) -> None:
    """Pair the row that comes with the newest, and part the one that it replaces from its next."""
    newest, oldest, following = np.arange(block.rows - 1, block.rows + 2) % ROWS
    come, gone = here * block.here[newest], block.here[oldest] * block.here[following]
    block.pairs += come - gone
    block.rough += come * _squared(wide - block.wide[newest], block.usual_pair)
    block.rough -= gone * _squared(block.wide[oldest] - block.wide[following], block.usual_pair)


def _squared(apart: NDArray[np.int32], usual: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the squares of differences of scores, each bounded by what is usual of its series."""
    return np.minimum(np.square(apart, dtype=np.int64), (_MOST_OF_A_PAIR * usual).astype(np.int64))


def learn(block: Block, rows: int, known: NDArray[np.bool_]) -> None:
    """Take the local variance after so many more rows of each series that is `known`.

    Noise below the smallest step is judged as if it were as large, and teaches nothing.
    """
    spread = block.spread
    is_noise = 0.5 * (spread.down + spread.up) >= block.unit
    teaches = known & is_noise & (block.pairs >= _LEAST_PAIRS)
    beyond = np.minimum((local(block) - 1.0) ** 2, _MOST_SQUARED)
    beyond -= _CHANCE / np.maximum(block.pairs, 1)
    weight = np.where(teaches, rows / np.minimum(spread.seen[-1] + rows, _MEMORY_ROWS), 0.0)
    spread.swing += weight * (beyond - spread.swing)


def share(spread: Spread) -> NDArray[np.float64]:
    """Return how much of a local variance is to be believed, 0 to 1."""
    swing = np.maximum(spread.swing, 0.0)
    known = np.clip(spread.seen[-1] / _FROM_ROWS - 1.0, 0.0, 1.0)
    believed: NDArray[np.float64] = known * swing / (swing + _CHANCE / ROWS)
    return believed


def larger(block: Block) -> NDArray[np.float64]:
    """Return how many times the usual the variance of each series counts now, at least 1."""
    found: NDArray[np.float64] = np.maximum(1.0 + share(block.spread) * (local(block) - 1.0), 1.0)
    return found
