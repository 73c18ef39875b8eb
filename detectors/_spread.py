"""Level, spread and correlation of many series at once, learnt from their last rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from detectors._memory import SCALES

_TAIL = 0.15  # spread is judged from the 15, 50 and 85 % quantiles, both sides apart
_GAUSS = 1.0364333894937898  # the 85 % quantile of a standard normal
NARROW = 2.0
"""Scores of short windows are clipped there, so that a burst has to last."""
WIDE = 2.45
"""And those of long ones there, times the root of how much more their means vary than independent ones."""
CALM = 3.4
"""And all there, times that root, where noise has shown that it hardly ever bursts."""
_FAR = 4.0  # sd; beyond it are 0.006 % of normal rows, and up to 3 % of those with bursts
_CALM_SHARE = 0.001  # of rows so far off, up to which noise is calm
_WILD_SHARE = 0.003  # and from which on it is not at all
_PRIOR_SHARE, _PRIOR_ROWS = 0.0067, 300.0  # as if so many rows had been seen before any are
_FAR_MEMORY_ROWS = 3600.0
EXPECTED = 4.3 / 3600.0
"""So often a row the ratio of independent noise passes the level of `_excursions`."""
_LEAST_PRESENT = 0.75  # of the rows of two neighbouring means
_MOST_SQUARED = 9.0  # a difference counts at most so many times what is expected


@dataclass(slots=True)
class Spread:
    """What was learnt of each series, arrays with the series last; `rows` is 0 where nothing was."""

    center: NDArray[np.float64]
    down: NDArray[np.float64]  # sd of the lower side
    up: NDArray[np.float64]  # sd of the upper side
    rows: NDArray[np.float64]  # how many have taught it
    span: NDArray[np.float64]  # rows of the present level when it was learnt last
    # half the mean squared difference of neighbouring means
    narrow: NDArray[np.float64]  # of the scores of short windows, (3, n)
    wide: NDArray[np.float64]  # of those of long ones, (4, n)
    seen: NDArray[np.float64]  # rows that have taught each of them, (4, n)
    far: NDArray[np.float64]  # share of rows beyond `_FAR`
    swing: NDArray[np.float64]  # of `_swing`: variance of the local variance beyond chance
    # of `_excursions`: how often a row, and rows that could alarm since then; inf before there was one
    passed: NDArray[np.float64]
    below: NDArray[np.float64]

    @classmethod
    def empty(cls, n: int) -> Spread:
        scales = np.repeat(1.0 / SCALES[:, np.newaxis], n, axis=1)
        return cls(
            center=np.zeros(n),
            down=np.ones(n),  # scores of an unlearnt series are never read
            up=np.ones(n),
            rows=np.zeros(n),
            span=np.zeros(n),
            narrow=scales[:3].copy(),
            wide=scales,
            seen=np.zeros_like(scales),
            far=np.full(n, _PRIOR_SHARE),
            swing=np.zeros(n),
            passed=np.full(n, EXPECTED),
            below=np.full(n, np.inf),
        )

    def take(self, at: NDArray[np.int64]) -> Spread:
        """Return the series at these positions."""
        return Spread(*(getattr(self, name)[..., at] for name in Spread.__slots__))

    def put(self, at: NDArray[np.int64], other: Spread) -> None:
        """Set the series at these positions."""
        for name in Spread.__slots__:
            getattr(self, name)[..., at] = getattr(other, name)


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
    """Return the distances from the level in units of the side's sd; NaN stays."""
    distance = y.astype(np.float64) - spread.center
    sd = np.maximum(np.where(distance > 0.0, spread.up, spread.down), floor)
    score: NDArray[np.float64] = distance / sd
    return score


def learn_far(spread: Spread, z: NDArray[np.float64]) -> None:
    """Learn from these rows how many lie far off; what has been `seen` before counts."""
    many = np.isfinite(z).sum(axis=0)
    share = (np.abs(z) > _FAR).sum(axis=0) / np.maximum(many, 1)
    rows = np.minimum(spread.seen[0] + many + _PRIOR_ROWS, _FAR_MEMORY_ROWS)
    spread.far += many / rows * (share - spread.far)


def calm(spread: Spread, floor: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return how far noise is known not to burst, 0 to 1; nothing is known of noise below the floor."""
    is_noise = 0.5 * (spread.down + spread.up) > floor
    share = (_WILD_SHARE - spread.far) / (_WILD_SHARE - _CALM_SHARE)
    return np.where(is_noise, np.clip(share, 0.0, 1.0), 0.0)


def neighbours(
    z: NDArray[np.float64], fresh: int, expected: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return half the mean squared difference of neighbouring means that end in the newest `fresh` rows.

    For the first three scales, shape (3, n), and of how many pairs; NaN left out.
    """
    n = z.shape[1]
    here = np.isfinite(z)
    sums = np.concatenate([np.zeros((1, n)), np.cumsum(np.where(here, z, 0.0), axis=0)])
    counts = np.concatenate([np.zeros((1, n)), np.cumsum(here, axis=0)])
    found, many = np.zeros((3, n)), np.zeros((3, n))
    for at in range(3):
        m = int(SCALES[at])
        ends = np.arange(max(2 * m, z.shape[0] - fresh + 1), z.shape[0] + 1)
        newer, older = counts[ends] - counts[ends - m], counts[ends - m] - counts[ends - 2 * m]
        enough = np.minimum(newer, older) >= _LEAST_PRESENT * m
        apart = (sums[ends] - sums[ends - m]) / np.maximum(newer, 1.0)
        apart -= (sums[ends - m] - sums[ends - 2 * m]) / np.maximum(older, 1.0)
        half = 0.5 * apart**2 * (newer + older) / (2.0 * m)
        # of what was never seen, as much is expected as the means before tell, were they independent
        below = found[at - 1] * SCALES[at - 1] / SCALES[at] if at else np.inf
        most = _MOST_SQUARED * np.where(np.isfinite(expected[at]), expected[at], below)
        half = np.where(enough, np.minimum(half, most), 0.0)
        many[at] = enough.sum(axis=0)
        found[at] = half.sum(axis=0) / np.maximum(many[at], 1.0)
    return found, many
