"""What a step is worth: values as soft thresholds, scaled so that the price of one step is 1.

Between thresholds the squared distance of two rows is the Gini (CRPS) distance of two distributions, so least
squares over these features sees level and spread, and a step earns its area: rows times height.
"""

from __future__ import annotations

from math import sqrt

import numpy as np
from numpy.typing import NDArray

THRESHOLDS = 24
QUIET = 0.0005  # log10; added to the change from row to row, so that a rounded series has a price
_SOFTNESS = 0.001  # width of a threshold, log10
_TYPICAL_RANGE = 0.08  # log10, where the weight of a series' range is one


def features(
    y: NDArray[np.float64], penalty: float, rows: slice = slice(None)
) -> NDArray[np.float32]:
    """Return the features of some rows of a series on log10, (n, THRESHOLDS); zero where nothing varies."""
    part = y[rows]
    lowest, highest = np.quantile(y, [0.002, 0.99])
    width = float(highest - lowest)
    if width <= 0.0:  # nearly all values are equal
        lowest, highest = y.min(), y.max()
        width = float(highest - lowest)
    if width <= 0.0:
        return np.zeros((part.size, THRESHOLDS), np.float32)
    thresholds = np.linspace(lowest, highest, THRESHOLDS)
    weight = width / THRESHOLDS / sqrt(width / _TYPICAL_RANGE) / _price(y, penalty)
    # rounding to 32 bits is far below the width of a threshold, once the values are near zero
    near, edges = ((x - lowest) / _SOFTNESS for x in (part, thresholds))
    below: NDArray[np.float32] = edges.astype(np.float32) - near.astype(np.float32)[:, np.newaxis]
    np.clip(below, -50.0, 50.0, out=below)
    np.exp(below, out=below)
    below += np.float32(1.0)
    np.divide(np.float32(sqrt(weight)), below, out=below)
    return below


def _price(y: NDArray[np.float64], penalty: float) -> float:
    typical = float(np.median(np.abs(np.diff(y))))
    return penalty * sqrt((typical + QUIET) / _SOFTNESS)
