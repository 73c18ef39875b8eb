"""How the scores of a series hang together: independent noise, an AR(1), and a slow wandering.

Learnt from the variances of neighbouring means (Allan 1966, doi:10.1109/PROC.1966.4634), which neither a
drift nor the unknown level biases, and for which a step counts only while it passes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

SCALES = np.array([1.0, 4.0, 16.0, 80.0])
"""Rows of a mean."""
_PHI = np.array([0.2, 0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.88, 0.9, 0.92, 0.94, 0.95, 0.96, 0.97])
_WANDER = np.array(0.995)
_PRIOR_ROWS = 30.0  # as many count for each scale being independent means of the one below
_FEW_ROWS = 120.0  # of which the AR(1) part is half believed
_TINY = 1e-12


@dataclass(frozen=True, slots=True)
class Memory:
    """Variances of three parts, and the correlation at lag h of the second, phi^h; shape (n,)."""

    white: NDArray[np.float64]
    slow: NDArray[np.float64]
    phi: NDArray[np.float64]
    wander: NDArray[np.float64]

    @classmethod
    def independent(cls, variance: float) -> Memory:
        """Return the memory of scores that tell nothing about each other."""
        none = np.zeros(())
        return cls(np.array(variance), none, none, none)

    @property
    def variance(self) -> NDArray[np.float64]:
        """Return the variance of one score."""
        whole: NDArray[np.float64] = self.white + self.slow + self.wander
        return whole

    def take(self, i: int | NDArray[np.int64]) -> Memory:
        """Return the memory of these series; that of one broadcasts over any rows."""
        return Memory(self.white[i], self.slow[i], self.phi[i], self.wander[i])


def of_mean(memory: Memory, rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the variance of a mean of `rows` scores, times `rows`."""
    whole: NDArray[np.float64] = (
        memory.white
        + memory.slow * _factor(memory.phi, rows)
        + memory.wander * _factor(_WANDER, rows)
    )
    return whole


def of_contrast(
    memory: Memory, after: NDArray[np.float64], before: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the variance of the difference of two means that follow each other, over 1/after + 1/before."""
    apart = of_mean(memory, after) + of_mean(memory, before) - of_mean(memory, after + before)
    return np.maximum(apart, _TINY)


def fit(
    variances: NDArray[np.float64],
    rows: NDArray[np.float64],
    least: NDArray[np.float64],
    doubt_rows: float = 0.0,
) -> Memory:
    """Return the memory whose neighbouring means vary most like this, shape (4, n), learnt from `rows`.

    `least` is the smallest variance of one score. As many as `doubt_rows` count for the longest means
    varying less with the root of their rows only, as those of noise that wanders.
    """
    seen, prior = np.empty_like(variances), np.ones(variances.shape[1])
    for at, longer in enumerate([*SCALES[1:], SCALES[-1]]):
        seen[at] = (rows[at] * variances[at] + _PRIOR_ROWS * prior) / (rows[at] + _PRIOR_ROWS)
        prior = seen[at] * SCALES[at] / longer  # were these means independent
    scales = SCALES[:, np.newaxis]
    seen = np.maximum(seen, _TINY)
    weight = (rows + _PRIOR_ROWS) / scales
    weight = np.where((scales < SCALES[-1]) | (rows > 0.0), weight, 0.0)  # nothing is known yet
    # least squares of the parts relative to what was seen, for every phi at once, (phi, n)
    once, twice = weight / seen, weight / seen / seen
    ww, ws, ss = (_added(parts, twice) for parts in (_WHITE**2, _WHITE * _SLOW, _SLOW**2))
    w1, s1 = _added(_WHITE, once), _added(_SLOW, once)
    both = ww * ss - ws * ws
    a, b = (w1 * ss - s1 * ws) / both, (s1 * ww - w1 * ws) / both
    a, b = np.where(b < 0.0, w1 / ww, a), np.maximum(b, 0.0)
    a, b = np.maximum(a, 0.0), np.where(a < 0.0, s1 / ss, b)
    costs = a * (a * ww + 2.0 * b * ws - 2.0 * w1) + b * (b * ss - 2.0 * s1)
    best = np.argmin(costs, axis=0)[np.newaxis]
    a, b = (np.take_along_axis(part, best, axis=0)[0] for part in (a, b))
    phi = _PHI[best[0]]
    error = np.sqrt(1.5 * scales / (rows + _PRIOR_ROWS))
    # as large as it may be, for what is missed here raises false alarms; but not made of a few rows
    b = b * (1.0 + error[2]) * rows[2] ** 2 / (rows[2] ** 2 + _FEW_ROWS**2)
    far = a / SCALES[-1] + b * _neighbours(phi, SCALES[-1])
    doubted = doubt_rows * seen[2] * np.sqrt(SCALES[2] / SCALES[3])
    longest = rows[-1] * variances[-1] / (1.0 + error[-1]) + doubted
    longest = longest / np.maximum(rows[-1] + doubt_rows, 1.0)
    wander = np.maximum(longest - far, 0.0) / _neighbours(_WANDER, SCALES[-1])
    return Memory(np.maximum(a, least - b - wander), b, phi, wander)


def _added(parts: NDArray[np.float64], weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return parts (phi, 4) times weights (4, n), added up over the scales: (phi, n).

    A product of matrices may round a series by its place among the others.
    """
    whole: NDArray[np.float64] = parts[:, :1] * weights[0]
    for at in range(1, SCALES.size):
        whole += parts[:, at : at + 1] * weights[at]
    return whole


def _factor(phi: NDArray[np.float64], rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the variance of a mean of an AR(1) over that of as many independent rows."""
    gap = 1.0 - phi
    whole: NDArray[np.float64] = (1.0 + phi) / gap - 2.0 * phi * (1.0 - phi**rows) / (
        rows * gap * gap
    )
    return whole


def _neighbours(phi: NDArray[np.float64], rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return half the mean squared difference of neighbouring means of an AR(1) of unit variance."""
    half: NDArray[np.float64] = (2.0 * _factor(phi, rows) - _factor(phi, 2.0 * rows)) / rows
    return half


_WHITE = np.array([1.0 / SCALES])  # what each part adds at each scale, (1, 4) and (phi, 4)
_SLOW = np.array([_neighbours(phi, SCALES) for phi in _PHI])
