"""The threshold of each series, from how often and how far its own ratios exceed a lower level.

Exceedances of `level` come in clusters. The excess of the peak of a cluster is about exponential (Pickands
1975), so noise passes the threshold h at the set rate when

    h = level + mean excess * (ln clusters a row + ln rows between two false alarms) + a constant.

The rate starts at its value in independent noise, the mean excess at 1, as theory has it (Siegmund
and Venkatraman 1995). No noise of the bench brings it above 1.4 within hours. What would is short troubles,
which must not hide the next, so it is bounded. Clusters that raised an alarm do not count: they may be
a change.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from detectors.online.constants import CONSTANTS
from detectors.online.state import CELL, Floats, SeriesArrays

APART_ROWS = 60
"""Rows below the level that end a cluster: the typical age of an onset that exceeds it."""
LONGEST_ROWS = 360
"""Rows that a cluster lasts at most, as an onset is looked for: exceedances that never cease are many."""
PRIOR_ROWS = 3600
"""Rows that the rate of independent noise counts for."""


def learn(arrays: SeriesArrays, best: Floats, can_alarm: NDArray[np.bool_]) -> None:
    """Take the largest ratio of each series in a row; only series that could alarm count."""
    above = can_alarm & (best > CONSTANTS.level)
    is_any_above = above.any()
    if is_any_above:
        is_apart = (arrays.below >= APART_ROWS) | (arrays.cluster_rows >= LONGEST_ROWS)
        begun = above & (is_apart | (arrays.peak > 0))
        arrays.cluster_rows[begun & (arrays.peak == 0)] = 0
        np.copyto(arrays.peak, np.maximum(arrays.peak, best), where=begun)
    arrays.cluster_rows += can_alarm
    arrays.below += can_alarm
    if is_any_above:
        arrays.below[above] = 0
    over = (arrays.peak > 0) & (
        (arrays.below >= APART_ROWS) | (arrays.cluster_rows >= LONGEST_ROWS)
    )
    if over.any():
        arrays.excess += np.where(over, arrays.peak - np.float32(CONSTANTS.level), 0)
        arrays.clusters += over
        arrays.peak[over] = arrays.cluster_rows[over] = 0
        arrays.below[over] = APART_ROWS  # what goes on is the next one
    arrays.rows += can_alarm


def set_thresholds(arrays: SeriesArrays, log_rows: float) -> None:
    """Set the threshold of each series, and forget a little; once in `CELL` rows."""
    old = arrays.rows > CONSTANTS.noise_rows
    for counted in (arrays.clusters, arrays.excess, arrays.rows):
        counted[old] *= np.float32(1 - CELL / CONSTANTS.noise_rows)
    expected = CONSTANTS.clusters_an_hour * PRIOR_ROWS / 3600.0
    rate = (arrays.clusters + expected) / (arrays.rows + PRIOR_ROWS)
    beyond = np.maximum(np.log(rate) + log_rows, 1.0)
    arrays.threshold[:] = CONSTANTS.level + beyond * _slope(arrays) + CONSTANTS.offset


def _slope(arrays: SeriesArrays) -> Floats:
    """Return the mean excess of the clusters so far, at most that of any noise."""
    prior = np.float32(CONSTANTS.tail_samples)
    found: Floats = (arrays.excess + prior) / (arrays.clusters + prior)
    return np.minimum(found, np.float32(CONSTANTS.most_excess))
