"""The best cut of many rows into segments, by least squares; a cut costs 1 and what chance gives for it.

Candidates come from windows of 3, 6, 12, ... rows: a cut that pays shows a quarter and what chance gives in
the window that fits the shorter of its two segments. Among them the best set is found exactly (optimal
partitioning with PELT's pruning: Killick et al. 2012, doi:10.1080/01621459.2012.737745); at last each cut is
moved to the best row near it. So the time hardly depends on how much happens.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

import numpy as np
from numpy.typing import NDArray

_SHOWN = 0.25  # of the price, in the window that shows a cut best
_PLACES = 6  # looked at a window
_AT_ONCE = 200_000  # numbers, of the features
_MOST_CANDIDATES = 3_000
_ROUNDS = 4  # of moving cuts
_REACH = 300  # rows that a cut moves at most in a round

Rows = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Sums:
    """Running sums of the features, shape (n + 1, k, d), and of the rows that each series has, (n + 1, k)."""

    features: NDArray[np.float64]
    rows: NDArray[np.float64]


def best(
    features: NDArray[np.float32],
    least_rows: int,
    by_chance: float = 0.0,
    is_there: NDArray[np.bool_] | None = None,
) -> list[int]:
    """Return the first row of each segment but the first, of k series with shape (n, k, d).

    Where `is_there`, shape (n, k), is not they are zero, and tell nothing of a series. So much a cut gives
    `by_chance`, wherever it is.
    """
    n, series = features.shape[:2]
    sums = _Sums(np.zeros((n + 1, *features.shape[1:])), np.zeros((n + 1, series)))
    np.cumsum(features, axis=0, dtype=np.float64, out=sums.features[1:])
    there = np.ones((n, series), np.bool_) if is_there is None else is_there
    np.cumsum(there, axis=0, out=sums.rows[1:])
    candidates = _candidates(sums, least_rows, by_chance + _SHOWN)
    return _moved(sums, _chosen(sums, candidates, least_rows, 1.0 + by_chance), least_rows)


def _gain(sums: _Sums, low: Rows | int, at: Rows, high: Rows | int) -> NDArray[np.float64]:
    """Return what cutting rows `low` to `high` at each row of `at` takes off the sum of squares."""
    before, after = sums.rows[at] - sums.rows[low], sums.rows[high] - sums.rows[at]
    there = sums.features[at]
    contrast = sums.features[high] - there
    contrast /= np.maximum(after, 1.0)[:, :, np.newaxis]
    there -= sums.features[low]
    there /= np.maximum(before, 1.0)[:, :, np.newaxis]
    contrast -= there
    found: NDArray[np.float64] = np.einsum("ijk,ijk->ij", contrast, contrast)
    found *= before * after / np.maximum(before + after, 1.0)
    whole: NDArray[np.float64] = found.sum(axis=1)
    return whole


def _candidates(sums: _Sums, least_rows: int, shown: float) -> Rows:
    """Return the rows at which windows of some length differ most, and by so much, one each half window."""
    n, window = sums.rows.shape[0] - 1, least_rows
    worth = np.zeros(n + 1)
    numbers = sums.features[0].size
    while 2 * window <= n:
        apart = max(1, window // _PLACES)
        at = np.arange(window, n - window + 1, apart)
        parts = np.array_split(at, ceil(at.size * numbers / _AT_ONCE))
        found = np.concatenate([_gain(sums, part - window, part, part + window) for part in parts])
        tops = _tops(found, ceil(window / 2 / apart))
        tops = tops[found[tops] > shown]
        worth[at[tops]] = np.maximum(worth[at[tops]], found[tops])
        window *= 2
    strongest = np.argsort(-worth, kind="stable")[:_MOST_CANDIDATES]
    return np.sort(strongest[worth[strongest] > 0.0])


def _tops(values: NDArray[np.float64], block: int) -> Rows:
    """Return the place of the largest value in each block."""
    blocks = ceil(values.size / block)
    padded = np.full(blocks * block, -1.0)
    padded[: values.size] = values
    return np.asarray(padded.reshape(blocks, block).argmax(axis=1) + block * np.arange(blocks))


def _chosen(sums: _Sums, candidates: Rows, least_rows: int, price: float) -> list[int]:
    ends = np.concatenate([[0], candidates, [sums.rows.shape[0] - 1]])
    at_ends, rows_at_ends = sums.features[ends], sums.rows[ends]
    worth, previous = np.zeros(ends.size), np.zeros(ends.size, np.int64)
    open_starts = np.zeros(1, np.int64)
    for j in range(1, ends.size):
        change = at_ends[j] - at_ends[open_starts]
        rows = rows_at_ends[j] - rows_at_ends[open_starts]
        squares = np.einsum("ijk,ijk->ij", change, change) / np.maximum(rows, 1.0)
        total = worth[open_starts] + squares.sum(axis=1)
        is_long = ends[j] - ends[open_starts] >= least_rows
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


def _moved(sums: _Sums, cuts: list[int], least_rows: int) -> list[int]:
    bounds = [0, *cuts, sums.rows.shape[0] - 1]
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


def _best_near(sums: _Sums, low: int, at: int, high: int, least_rows: int) -> int:
    first = max(low + least_rows, at - _REACH)
    rows = np.arange(first, min(high - least_rows, at + _REACH) + 1)
    return int(rows[np.argmax(_gain(sums, low, rows, high))])
