"""Where the level of one series changed, from what its block still knows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from detectors import _block, _swing
from detectors._block import Block
from detectors._cells import CELL, CELLS
from detectors._measure import unscaled
from detectors._scores import LEAST_BEFORE, PARTS
from detectors._starts import interval, scan
from detectors._windows import AFTER, SHORT, rows_compared

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
