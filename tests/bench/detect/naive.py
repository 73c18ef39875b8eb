"""What a first attempt looks like: a GLR on values as they come, level and sd from the first two minutes.

Independent Gaussian noise is taken for granted, nothing is clipped, and a crossing is an alarm at once. After
an alarm level and sd are learnt anew. Its threshold is that of ours.
"""

from __future__ import annotations

from math import log

import numpy as np
from numpy.typing import NDArray

LEARN_ROWS = 120
_WINDOWS = np.unique(np.geomspace(1, 300, 40).round().astype(int))


def alarms(
    values: NDArray[np.float64], every_seconds: float, panel_size: int = 1
) -> list[tuple[int, int]]:
    """Return (row, series) of every alarm, `values` of shape (rows, series); NaN counts as no change."""
    rows, series = values.shape
    threshold = log(every_seconds) + log(panel_size)
    sums = np.zeros((rows + 1, series))
    begin = np.zeros(series, dtype=np.int64)  # first row after what was learnt
    center, sd = np.zeros(series), np.ones(series)
    said = []
    for row, now in enumerate(values):
        learnt = row - begin == LEARN_ROWS
        if learnt.any():
            taught = values[row - LEARN_ROWS : row, learnt]
            center[learnt], sd[learnt] = (
                np.nanmean(taught, axis=0),
                np.nanstd(taught, axis=0) + 1e-12,
            )
        score = np.nan_to_num((now - center) / sd)
        is_judged = row - begin >= LEARN_ROWS
        sums[row + 1] = sums[row] + np.where(is_judged, score, 0.0)
        windows = _WINDOWS[row + 1 >= _WINDOWS]
        fits = windows[:, np.newaxis] <= row + 1 - begin - LEARN_ROWS
        ratio = (sums[row + 1] - sums[row + 1 - windows]) ** 2 / (2.0 * windows[:, np.newaxis])
        crossed = is_judged & (np.where(fits, ratio, 0.0).max(axis=0, initial=0.0) > threshold)
        said += [(row, int(i)) for i in np.flatnonzero(crossed)]
        begin[crossed] = row + 1
    return said
