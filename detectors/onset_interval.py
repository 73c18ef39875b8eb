"""The interval of an onset: the most probable places that together hold a given probability."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

PROBABILITY = 0.95
"""That the interval holds the onset, as `Change.interval` says."""


def most_probable(weights: NDArray[np.floating]) -> tuple[int, int]:
    """Return the first and last of the heaviest places that hold `PROBABILITY`.

    `weights`, shape (n,), are in proportion to the probability of each place and not all 0. Every place is as
    probable beforehand, so the odds of two are the ratio of their likelihoods.
    """
    order = np.argsort(-weights, kind="stable")
    held = np.cumsum(weights[order]) / weights.sum()
    kept = order[: int(np.searchsorted(held, PROBABILITY)) + 1]
    return int(kept.min()), int(kept.max())
