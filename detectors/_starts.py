"""The likelihood ratio of every start of a new level in one series, each against the rows that it is due."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from detectors import _memory
from detectors._memory import Memory


def scan(
    sums: NDArray[np.float64],
    counts: NDArray[np.float64],
    first: NDArray[np.int64],
    memory: Memory,
    least_before: int,
    least_after: int,
) -> NDArray[np.float64]:
    """Return the log likelihood ratio of a change at the beginning of each item, shape (n,).

    An item is the sum of some scores and their number; `first` is the oldest item that a start is
    compared with. Starts with fewer than `least_before` scores between or `least_after` from them on get 0.
    """
    ratio = np.zeros(counts.size)
    whole = np.concatenate([[0.0], np.cumsum(sums)])
    known = np.concatenate([[0.0], np.cumsum(counts)])
    before, after = known[:-1] - known[first], known[-1] - known[:-1]
    starts = np.flatnonzero((before >= least_before) & (after >= least_after))
    if starts.size == 0:
        return ratio
    m, n = after[starts], before[starts]
    newer, older = whole[-1] - whole[starts], whole[starts] - whole[first[starts]]
    noise = (1.0 / m + 1.0 / n) * _memory.of_contrast(memory, m, n)
    ratio[starts] = (newer / m - older / n) ** 2 / (2.0 * noise)
    return ratio


def interval(ratio: NDArray[np.float64], share: float = 0.95) -> tuple[int, int]:
    """Return the first and last row of the most probable starts that hold `share` together.

    Every start is as probable beforehand, so the odds between two are the ratio of likelihoods.
    """
    weight = np.where(ratio > 0.0, np.exp(ratio - ratio.max()), 0.0)
    order = np.argsort(-weight, kind="stable")
    held = np.cumsum(weight[order]) / weight.sum()
    kept = order[: int(np.searchsorted(held, share)) + 1]
    return int(kept.min()), int(kept.max())
