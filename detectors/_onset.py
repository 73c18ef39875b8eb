"""The likelihood ratio of every start of a new level in one series, each against the rows that it is due."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from detectors import _block, _memory, _swing
from detectors._block import Block
from detectors._measure import unscaled
from detectors._memory import Memory
from detectors._scores import LEAST_BEFORE, PARTS
from detectors._windows import AFTER, CELL, CELLS, SHORT, rows_compared


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


# --- Where the level of one series changed, from what its block still knows.

_FEW = 8  # rows whose median is a level


@dataclass(frozen=True, slots=True)
class Onset:
    """The most probable start of a new level, and both levels in the series' own unit."""

    row: int  # counted from the source's first
    k: int
    span: tuple[int, int]  # seconds
    rows_after: int
    ratio: float
    before: float
    after: float


@dataclass(frozen=True, slots=True)
class _Items:
    """What is known of a series, oldest first: cells, then rows; those with a value."""

    sums: NDArray[np.float64]  # of scores
    counts: NDArray[np.float64]
    y: NDArray[np.float64]
    row: NDArray[np.int64]
    k: NDArray[np.int64]


def locate(block: Block, i: int, end_row: int) -> Onset | None:
    """Return the most probable start before `end_row`, or None when there is too little."""
    items = _items(block, i)
    if items.row.size == 0:
        return None
    age = block.rows - items.row
    first = np.searchsorted(items.row, block.rows - rows_compared(age))
    memory = block.wide_memory.take(i)
    ratio = scan(items.sums, items.counts, first, memory, LEAST_BEFORE, int(SHORT[0]))
    ratio /= _swing.larger(block)[i]
    ratio[(items.row >= end_row) | (age > AFTER[-1] + CELL // 2)] = 0.0
    start = int(np.argmax(ratio))
    if ratio[start] <= 0.0:
        return None
    low, high = interval(ratio)
    logarithmic = bool(block.logarithmic[i])
    before, after = _level(items, slice(None, start)), _level(items, slice(start, None))
    return Onset(
        row=int(items.row[start]),
        k=int(items.k[start]),
        span=(int(items.k[low]), int(items.k[high])),
        rows_after=int(items.counts[start:].sum()),
        ratio=float(ratio[start]),
        before=unscaled(before, logarithmic=logarithmic),
        after=unscaled(after, logarithmic=logarithmic),
    )


def _items(block: Block, i: int) -> _Items:
    cells, places = block.cells, _block.ordered(block)
    whole = np.arange(max(0, cells.whole - CELLS), cells.whole)
    slots = whole % CELLS
    level = np.concatenate([cells.level[slots, i], cells.mean()[i : i + 1]]).astype(np.float64)
    counts = np.concatenate([cells.counts[slots, i], cells.count[i : i + 1]]).astype(np.float64)
    score = (level - block.spread.center[i]) / block.unit[i]
    known, here = counts > 0, block.here[places, i] > 0
    rows = np.arange(block.rows - places.size, block.rows)
    return _Items(
        sums=np.concatenate([(score * counts)[known], block.wide[places, i][here] / PARTS]),
        counts=np.concatenate([counts[known], np.ones(np.count_nonzero(here))]),
        y=np.concatenate([level[known], block.y[places, i][here]]),
        row=np.concatenate([np.append(whole, cells.whole)[known] * CELL, rows[here]]),
        k=np.concatenate([np.append(cells.first_k[slots], cells.k)[known], block.k[places][here]]),
    )


def _level(items: _Items, part: slice) -> float:
    """Return the median of the rows, or of the cells as well where there are hardly any rows."""
    y, counts = items.y[part], items.counts[part]
    rows = y[counts == 1.0]
    return float(np.median(rows if rows.size >= min(_FEW, counts.sum()) else y))
