"""The median of few values without numpy's checks, which take five times as long as the sorting."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def middle(values: NDArray[np.float64]) -> float:
    """Return the median of finite values, at least one; the same float as `np.median`."""
    half = values.size // 2
    ordered = values.copy()
    if values.size % 2:
        ordered.partition(half)
        return float(ordered[half])
    ordered.partition((half - 1, half))
    return float((ordered[half - 1] + ordered[half]) / 2.0)
