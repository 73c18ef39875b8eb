"""The best cut of many rows into segments, by least squares; a cut costs 1 and what chance gives for it.

Candidates come from windows of 3, 6, 12, ... rows: a cut that pays shows a quarter and what chance gives in
the window that fits the shorter of its two segments. Among them the best set is found exactly (optimal
partitioning with PELT's pruning: Killick et al. 2012, doi:10.1080/01621459.2012.737745); at last each cut is
moved to the best row near it. So the time hardly depends on how much happens.
"""

from __future__ import annotations

from math import ceil

import numpy as np
from numpy.typing import NDArray

_SHOWN = 0.25  # of the price, in the window that shows a cut best
_PLACES = 6  # looked at a window
_MOST_CANDIDATES = 3_000
_ROUNDS = 4  # of moving cuts
_REACH = 300  # rows that a cut moves at most in a round


def best(features: NDArray[np.float32], least_rows: int, by_chance: float = 0.0) -> list[int]:
    """Return the first row of each segment but the first; `features` has shape (n, d).

    So much a cut gives `by_chance`, wherever it is.
    """
    sums = np.zeros((features.shape[0] + 1, features.shape[1]))
    np.cumsum(features, axis=0, dtype=np.float64, out=sums[1:])
    candidates = _candidates(sums, least_rows, by_chance + _SHOWN)
    return _moved(sums, _chosen(sums, candidates, least_rows, 1.0 + by_chance), least_rows)


def gain(
    sums: NDArray[np.float64], low: int, at: NDArray[np.int64], high: int
) -> NDArray[np.float64]:
    """Return what cutting rows `low` to `high` at each row of `at` takes off the sum of squares."""
    before, after = (at - low)[:, np.newaxis], (high - at)[:, np.newaxis]
    there = sums[at]
    contrast = (sums[high] - there) / after
    there -= sums[low]
    there /= before
    contrast -= there
    found: NDArray[np.float64] = np.einsum("ij,ij->i", contrast, contrast)
    return found * (at - low) * (high - at) / (high - low)


def _candidates(sums: NDArray[np.float64], least_rows: int, shown: float) -> NDArray[np.int64]:
    """Return the rows at which windows of some length differ most, and by so much, one each half window."""
    n, window = sums.shape[0] - 1, least_rows
    worth = np.zeros(n + 1)
    while 2 * window <= n:
        apart = max(1, window // _PLACES)
        at = np.arange(window, n - window + 1, apart)
        middle = sums[window : n - window + 1 : apart]
        contrast = sums[2 * window :: apart] - middle
        contrast -= middle
        contrast += sums[: n - 2 * window + 1 : apart]
        found = np.einsum("ij,ij->i", contrast, contrast) / (2.0 * window)
        tops = _tops(found, ceil(window / 2 / apart))
        tops = tops[found[tops] > shown]
        worth[at[tops]] = np.maximum(worth[at[tops]], found[tops])
        window *= 2
    strongest = np.argsort(-worth, kind="stable")[:_MOST_CANDIDATES]
    return np.sort(strongest[worth[strongest] > 0.0])


def _tops(values: NDArray[np.float64], block: int) -> NDArray[np.int64]:
    """Return the place of the largest value in each block."""
    blocks = ceil(values.size / block)
    padded = np.full(blocks * block, -1.0)
    padded[: values.size] = values
    return np.asarray(padded.reshape(blocks, block).argmax(axis=1) + block * np.arange(blocks))


def _chosen(
    sums: NDArray[np.float64], candidates: NDArray[np.int64], least_rows: int, price: float
) -> list[int]:
    ends = np.concatenate([[0], candidates, [sums.shape[0] - 1]])
    at_ends = sums[ends]
    worth, previous = np.zeros(ends.size), np.zeros(ends.size, np.int64)
    open_starts = np.zeros(1, np.int64)
    for j in range(1, ends.size):
        change = at_ends[j] - at_ends[open_starts]
        rows = ends[j] - ends[open_starts]
        total = worth[open_starts] + np.einsum("ij,ij->i", change, change) / rows
        is_long = rows >= least_rows
        if is_long.any():
            top = int(np.argmax(np.where(is_long, total, -np.inf)))
            worth[j], previous[j] = total[top] - price, open_starts[top]
            open_starts = open_starts[(total >= worth[j]) | ~is_long]
            open_starts = np.append(open_starts, j)
    cuts, j = [], int(previous[-1])
    while j > 0:
        cuts.append(int(ends[j]))
        j = int(previous[j])
    return cuts[::-1]


def _moved(sums: NDArray[np.float64], cuts: list[int], least_rows: int) -> list[int]:
    bounds = [0, *cuts, sums.shape[0] - 1]
    best_there: set[tuple[int, int, int]] = set()  # cuts between neighbours, looked at before
    for _ in range(_ROUNDS):
        before = list(bounds)
        for i in range(1, len(bounds) - 1):
            low, at, high = bounds[i - 1 : i + 2]
            if (low, at, high) not in best_there:
                bounds[i] = _best_near(sums, low, at, high, least_rows)
            if bounds[i] == at:
                best_there.add((low, at, high))
        if bounds == before:
            break
    return bounds[1:-1]


def _best_near(sums: NDArray[np.float64], low: int, at: int, high: int, least_rows: int) -> int:
    first = max(low + least_rows, at - _REACH)
    rows = np.arange(first, min(high - least_rows, at + _REACH) + 1)
    return int(rows[np.argmax(gain(sums, low, rows, high))])
