"""The size from which on a step is seen with a probability, from tries at several sizes.

Method:  logistic curve in the log of the size, most likely on a grid.
Assumes: larger steps are seen more often.
"""

from __future__ import annotations

from math import log

import numpy as np
from numpy.typing import NDArray

_WIDTHS = np.geomspace(0.01, 0.5, 12)  # of the curve, in the log of the size
_PLACES = 200


def size_seen(
    sizes: NDArray[np.float64], seen: NDArray[np.bool_], probability: float
) -> float | None:
    """Return the size; the smallest tried where that is enough, None where the largest is not.

    `seen` has the tries of each size in a row, shape (sizes, tries).
    """
    x = np.log(sizes)
    reach = x[-1] - x[0]
    middles = np.linspace(x[0] - reach, x[-1] + reach, _PLACES)[:, np.newaxis, np.newaxis]
    curve = (x - middles) / _WIDTHS[np.newaxis, :, np.newaxis]
    hits = seen.sum(axis=1)
    likely = -(
        hits * np.logaddexp(0.0, -curve) + (seen.shape[1] - hits) * np.logaddexp(0.0, curve)
    ).sum(axis=2)
    at, width = np.unravel_index(int(np.argmax(likely)), likely.shape)
    found = float(middles[at, 0, 0]) + float(_WIDTHS[width]) * log(probability / (1 - probability))
    return None if found > x[-1] else float(np.exp(max(found, x[0])))
