"""Which starts of a new level are looked at, and against how many rows before each.

Up to half a minute ago a start is compared with the rest of the ring: a burst is judged by its
neighbourhood, so that a drift or a day's wave is followed. Earlier ones are compared with ten times as many
rows before them as after them, at most with half an hour: a small step takes minutes to show.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# --- How fast a level moves over an hour, as a day's rhythm moves it: by so much minutes differ without
# a step.
# Two means that forget, one twice as slowly as the other, lie apart by what the level moves in the rows that
# the slower one is further behind. Nothing is a slope before the faster one has forgotten its first row.

_FAST, SLOW = 1500, 3000
"""Rows that a mean remembers."""


@dataclass(slots=True)
class Slope:
    """Of each series, (n,): both means on its scale, and how many rows taught them, at most `SLOW`."""

    fast: NDArray[np.float32]
    slow: NDArray[np.float32]
    rows: NDArray[np.uint16]

    @classmethod
    def empty(cls, n: int) -> Slope:
        return cls(np.zeros(n, np.float32), np.zeros(n, np.float32), np.zeros(n, np.uint16))

    def put(self, at: NDArray[np.int64], other: Slope, old: NDArray[np.int64]) -> None:
        """Take all of `other`, of which the series at `old` become those at `at`."""
        for name in Slope.__slots__:
            getattr(self, name)[at] = getattr(other, name)[old]

    def clear(self, at: NDArray[np.int64] | int) -> None:
        """Forget these series: what comes is another level."""
        self.fast[at], self.slow[at], self.rows[at] = 0.0, 0.0, 0

    def learn(self, level: NDArray[np.float64], rows: int, known: NDArray[np.bool_]) -> None:
        """Take the mean of the next so many rows of each series that is `known`."""
        self.rows[:] = np.minimum(self.rows + rows * known, SLOW)
        for mean, most in ((self.fast, _FAST), (self.slow, SLOW)):
            weight = np.where(known, rows / np.clip(self.rows, rows, most), 0.0)
            mean[:] += weight * (level - mean)

    def a_row(self) -> NDArray[np.float64]:
        """Return by how much the level moves in a row, on the scale of the series."""
        apart = self.fast.astype(np.float64) - self.slow
        return apart / (SLOW - _FAST)


# --- Rows older than the ring, as means of a cell of rows each.

CELL = 40
"""Rows in a cell."""
CELLS = 48
"""Whole cells that are kept: half an hour of seconds."""


@dataclass(slots=True)
class Cells:
    """A ring of whole cells, arrays (CELLS, n), and the unfinished one, (n,)."""

    level: NDArray[np.float32]  # mean of the rows, on the scale of the series
    counts: NDArray[np.uint8]  # rows in it; 0 where none are known
    first_k: NDArray[np.int64]  # second of its first row, (CELLS,)
    whole: int  # finished since the source's first row
    sum: NDArray[np.float64]
    count: NDArray[np.uint8]
    rows: int  # that went into the unfinished one, with or without a value
    k: int  # second of its first row
    slope: Slope  # of the whole ones

    @classmethod
    def empty(cls, n: int) -> Cells:
        return cls(
            level=np.zeros((CELLS, n), np.float32),
            counts=np.zeros((CELLS, n), np.uint8),
            first_k=np.zeros(CELLS, np.int64),
            whole=0,
            sum=np.zeros(n),
            count=np.zeros(n, np.uint8),
            rows=0,
            k=0,
            slope=Slope.empty(n),
        )

    def put(self, at: NDArray[np.int64], other: Cells, old: NDArray[np.int64]) -> None:
        """Take all of `other`, of which the series at `old` become those at `at`."""
        self.level[:, at], self.counts[:, at] = other.level[:, old], other.counts[:, old]
        self.sum[at], self.count[at] = other.sum[old], other.count[old]
        self.slope.put(at, other.slope, old)
        self.first_k[:] = other.first_k
        self.whole, self.rows, self.k = other.whole, other.rows, other.k

    def add(self, k: int, level: NDArray[np.float64], here: NDArray[np.int32]) -> bool:
        """Take one row; return whether it finished a cell."""
        if self.rows == 0:
            self.k = k
        self.sum += np.where(here > 0, level, 0.0)
        self.count += here.astype(np.uint8)
        self.rows += 1
        if self.rows < CELL:
            return False
        at, mean = self.whole % CELLS, self.mean()
        self.level[at], self.counts[at], self.first_k[at] = mean, self.count, self.k
        self.slope.learn(mean, CELL, self.count >= CELL // 2)
        self.whole += 1
        self.sum[:], self.count[:], self.rows = 0.0, 0, 0
        return True

    def mean(self) -> NDArray[np.float64]:
        """Return the mean of the unfinished cell, 0 where it is empty."""
        mean: NDArray[np.float64] = self.sum / np.maximum(self.count, 1)
        return mean

    def newest_first(self, at: NDArray[np.int64]) -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
        """Return level and count of the whole cells of these series."""
        order = (self.whole - 1 - np.arange(CELLS)) % CELLS
        return self.level[np.ix_(order, at)], self.counts[np.ix_(order, at)]

    def total(self, at: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return how many rows are known of these series."""
        known: NDArray[np.float64] = self.counts[:, at].sum(axis=0) + self.count[at].astype(float)
        return known

    def forget(self, series: int, first: int, stop: int) -> None:
        """Drop what began at row `first` or later and before `stop`, counted from the source's first."""
        if first == 0:  # up to now it was another level
            self.slope.clear(series)
        newest = np.arange(max(0, self.whole - CELLS), self.whole)
        lost = newest[(newest * CELL >= first) & (newest * CELL < stop)]
        self.counts[lost % CELLS, series] = 0
        if first <= self.whole * CELL < stop:
            self.sum[series], self.count[series] = 0.0, 0

    def clear(self, at: NDArray[np.int64]) -> None:
        """Forget all rows of these series."""
        self.counts[:, at], self.sum[at], self.count[at] = 0, 0.0, 0
        self.slope.clear(at)


ROWS = 128
"""Rows kept as they were."""
SHORT = np.array([4, 5, 6, 7, 8, 10, 12, 14, 17, 20, 24, 28])
"""Rows after a start that is compared with the ring alone. Three rows are an outlier, not a level."""
LONG = np.array([33, 40, 48, 57, 68, 80, 96, 112])
"""Rows after a start in the ring that is compared with cells, too."""
_EDGES = np.arange(5)  # of the cells that follow, older ones: the unfinished one, and four whole
_TIMES_BEFORE = 10

AFTER = np.concatenate([SHORT, LONG, ROWS + CELL // 2 + CELL * _EDGES]).astype(np.float64)
"""Rows after each start, those at edges of cells on average."""


def rows_compared(after: NDArray[np.float64] | NDArray[np.int64]) -> NDArray[np.float64]:
    """Return how many rows are looked at for a start this many rows ago: from it on, and before."""
    return np.maximum((1.0 + _TIMES_BEFORE) * after, ROWS)


_LATER = AFTER[SHORT.size :]
BEFORE_CELLS = np.clip(np.ceil((rows_compared(_LATER) - ROWS) / CELL), 0, CELLS).astype(np.int64)
"""How many whole cells reach as far back as the comparison of a start that is not short."""
BEFORE = np.concatenate([ROWS - SHORT, ROWS + CELL // 2 + CELL * BEFORE_CELLS - _LATER])
"""Rows before each start that it is compared with, on average."""
