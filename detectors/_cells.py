"""Rows older than the ring, as means of a cell of rows each."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from detectors._slope import Slope

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
