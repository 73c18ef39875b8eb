"""Which starts of a new level are looked at, and against how many rows before each.

A start is compared with ten times as many rows before it as after it, at least with all of the ring: a
short burst is judged by its neighbourhood, so that a drift or a day's wave is followed, and a small step,
which takes minutes to show, by half an hour.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from detectors._cells import CELL, CELLS

ROWS = 128
"""Rows kept as they were."""
WINDOWS = np.array(
    [4, 5, 6, 7, 8, 10, 12, 14, 17, 20, 24, 28, 33, 40, 48, 57, 68, 80, 96, 112, 128]
)
"""Rows after a start in the ring. Three rows are an outlier, not a level."""
_EDGES = np.arange(
    5
)  # and the older edges of the cells that follow: the unfinished one, and four whole
_TIMES_BEFORE = 10

FINE = WINDOWS.size - 1  # the whole ring is the newest of the edges
AFTER = np.concatenate([WINDOWS[:-1], ROWS + CELL // 2 + CELL * _EDGES]).astype(np.float64)
"""Rows after each start, those at edges of cells on average."""


def rows_compared(after: NDArray[np.float64] | NDArray[np.int64]) -> NDArray[np.float64]:
    """Return how many rows are looked at for a start this many rows ago: from it on, and before."""
    return np.maximum((1.0 + _TIMES_BEFORE) * after, ROWS)


BEFORE_CELLS = np.clip(np.ceil((rows_compared(AFTER) - ROWS) / CELL), 0, CELLS).astype(np.int64)
"""How many whole cells reach as far back as a start's comparison."""
BEFORE = ROWS + CELL // 2 + CELL * BEFORE_CELLS - AFTER
"""Rows before each start that it is compared with, on average."""
