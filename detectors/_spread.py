"""Level, spread and correlation of many series at once, learnt from their last rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from detectors._glr import BLOCK, Memory, fit

_TAIL = 0.15  # spread is judged from the 15, 50 and 85 % quantiles, both sides apart
_GAUSS = 1.0364333894937898  # the 85 % quantile of a standard normal
_PRIOR_ROWS = 30  # unit variance of the scores counts as much as that many rows
_LEAST_BLOCKS = 6
CLIP = 3.0


@dataclass(slots=True)
class Spread:
    """One value a series, arrays of shape (n,); `rows` is 0 where nothing was learnt yet."""

    center: NDArray[np.float64]
    down: NDArray[np.float64]  # sd of the lower side
    up: NDArray[np.float64]  # sd of the upper side
    variance: NDArray[np.float64]  # of the clipped scores
    neighbour: NDArray[np.float64]  # correlation of neighbouring scores
    blocks: NDArray[np.float64]  # variance of means of BLOCK scores, over that of independent ones
    rows: NDArray[np.float64]  # how many have taught it

    @classmethod
    def empty(cls, n: int) -> Spread:
        return cls(
            center=np.zeros(n),
            down=np.ones(n),  # scores of an unlearnt series are never read
            up=np.ones(n),
            variance=np.ones(n),
            neighbour=np.zeros(n),
            blocks=np.ones(n),
            rows=np.zeros(n),
        )

    def take(self, at: NDArray[np.int64]) -> Spread:
        """Return the series at these positions."""
        return Spread(*(getattr(self, name)[at] for name in Spread.__slots__))

    def memory(self) -> Memory:
        """Return how the scores are correlated, not counting what their estimate's own error explains."""
        error = np.sqrt(2.0 * BLOCK / np.maximum(self.rows, 2.0 * BLOCK))
        return fit(self.neighbour, self.blocks / (1.0 + error))

    def put(self, at: NDArray[np.int64], other: Spread) -> None:
        """Set the series at these positions."""
        for name in Spread.__slots__:
            getattr(self, name)[at] = getattr(other, name)


def levels(
    y: NDArray[np.float32],
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]]:
    """Return median, lower and upper sd and count of each column; NaN rows do not count."""
    ordered = np.sort(y, axis=0)  # NaN last
    count = np.count_nonzero(np.isfinite(y), axis=0)
    last = np.maximum(count - 1, 0)
    series = np.arange(y.shape[1])

    def at(share: float) -> NDArray[np.float64]:
        place = share * last
        low = np.floor(place).astype(np.int64)
        high = np.minimum(low + 1, last)
        left = ordered[low, series].astype(np.float64)
        right = ordered[high, series].astype(np.float64)
        return np.asarray(left + (place - low) * (right - left))

    center = at(0.5)
    return center, (center - at(_TAIL)) / _GAUSS, (at(1.0 - _TAIL) - center) / _GAUSS, count


def scores(
    y: NDArray[np.float32], spread: Spread, floor: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the clipped distances from the level in units of the side's sd; NaN stays."""
    # an sd learnt from few rows may be too small by about its own error
    trust = 1.0 + 1.0 / np.sqrt(np.maximum(spread.rows, 1.0))
    distance = y.astype(np.float64) - spread.center
    sd = np.maximum(np.where(distance > 0.0, spread.up, spread.down) * trust, floor)
    clipped: NDArray[np.float64] = np.clip(distance / sd, -CLIP, CLIP)
    return clipped


def moments(
    z: NDArray[np.float64],
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Return variance, lag-1 correlation and block factor of each column of scores; NaN left out."""
    here = np.isfinite(z)
    count = np.maximum(here.sum(axis=0), 1)
    mean = np.where(here, z, 0.0).sum(axis=0) / count
    rest = np.where(here, z - mean, 0.0)
    squares = (rest**2).sum(axis=0)
    pairs = np.maximum((here[1:] & here[:-1]).sum(axis=0), 1)
    products = (rest[1:] * rest[:-1]).sum(axis=0)
    # never below one, or the floor under the sd of a quiet series would count for nothing
    variance = np.maximum((squares + _PRIOR_ROWS) / (count + _PRIOR_ROWS), 1.0)
    power = np.where(squares > 0.0, squares / count, 1.0)
    raw = products / pairs / power
    neighbour = np.clip(raw, 0.0, 1.0)
    return variance, neighbour, _block_factor(rest, here, power)


def _block_factor(
    rest: NDArray[np.float64], here: NDArray[np.bool_], power: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return 1 where fewer than six blocks are there to judge."""
    sums = np.cumsum(np.vstack([np.zeros(rest.shape[1]), rest]), axis=0)
    counts = np.cumsum(np.vstack([np.zeros(rest.shape[1]), here]), axis=0)
    if rest.shape[0] < BLOCK:
        return np.ones(rest.shape[1])
    full = counts[BLOCK:] - counts[:-BLOCK] == BLOCK
    squares = np.where(full, (sums[BLOCK:] - sums[:-BLOCK]) ** 2, 0.0).sum(axis=0)
    raw = squares / np.maximum(full.sum(axis=0), 1) / (BLOCK * power)
    count = here.sum(axis=0)
    # means of blocks vary about the mean of all, which takes its share away
    factor = raw * count / np.maximum(count - BLOCK * np.maximum(raw, 1.0), BLOCK)
    return np.where(count >= _LEAST_BLOCKS * BLOCK, factor, 1.0)
