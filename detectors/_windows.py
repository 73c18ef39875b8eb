"""Which starts of a new level are looked at, and against how many rows before each.

Up to half a minute ago a start is compared with the rest of the ring: a burst is judged by its
neighbourhood, so that a drift or a day's wave is followed. Earlier ones are compared with ten times as many
rows before them as after them, at most with half an hour: a small step takes minutes to show.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from detectors._cells import CELL, CELLS

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
