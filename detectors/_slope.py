"""How fast a level moves over an hour, as a day's rhythm moves it: by so much minutes differ without a step.

Two means that forget, one twice as slowly as the other, lie apart by what the level moves in the rows that
the slower one is further behind. Nothing is a slope before the faster one has forgotten its first row.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

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
