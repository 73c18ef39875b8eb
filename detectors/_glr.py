"""The likelihood ratio of "the level changed at row s" against "it did not", both levels unknown.

Scores are an AR(1) process seen through independent noise, so the mean of n of them has the variance
v f(n) / n; the squared contrast of two means in units of its variance, halved, is the log likelihood
ratio of Gaussian scores.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

WINDOWS = np.array([4, 5, 6, 8, 10, 12, 16, 24, 32, 48, 64, 96, 128, 192])
"""Rows after a candidate start. Three rows are an outlier, not a level."""


BLOCK = 16
_PHI = np.linspace(0.0, 0.97, 98)
_LEAST_CORRELATION = 0.02  # below that a slow part is judged from the block means alone


@dataclass(frozen=True, slots=True)
class Memory:
    """Correlation at lag h = share x phi^h: an AR(1) seen through independent noise; shape (n,)."""

    share: NDArray[np.float64]
    phi: NDArray[np.float64]


def mean_factor(memory: Memory, rows: NDArray[np.int64] | float) -> NDArray[np.float64]:
    """Return f: the variance of a mean of `rows` scores over that of independent ones."""
    phi = memory.phi
    n = np.maximum(np.asarray(rows, dtype=np.float64), 1.0)
    gap = 1.0 - phi
    whole = (1.0 + phi) / gap - 2.0 * phi * (1.0 - phi**n) / (n * gap * gap)
    factor: NDArray[np.float64] = 1.0 + memory.share * (whole - 1.0)
    return factor


def fit(neighbour: NDArray[np.float64], blocks: NDArray[np.float64]) -> Memory:
    """Return the memory of series with this lag-1 correlation and this variance factor of block means.

    The factor of `BLOCK` rows only ever adds to what an AR(1) of the same lag-1 correlation has.
    """
    lag1 = np.clip(neighbour, _LEAST_CORRELATION, _PHI[-1])
    phi = np.maximum(_PHI[:, np.newaxis], lag1)
    found = mean_factor(Memory(lag1 / phi, phi), BLOCK) >= blocks
    first = np.where(found.any(axis=0), found.argmax(axis=0), _PHI.size - 1)
    chosen = np.maximum(_PHI[first], lag1)
    most = mean_factor(Memory(np.ones_like(chosen), chosen), BLOCK)
    needed = np.minimum((blocks - 1.0) / (most - 1.0), 1.0)
    return Memory(np.maximum(lag1 / chosen, np.where(found.any(axis=0), 0.0, needed)), chosen)


def scan(
    scores: NDArray[np.float64],
    variance: float,
    memory: Memory,
    least_before: int,
    least_after: int,
) -> NDArray[np.float64]:
    """Return the log likelihood ratio of a change at each row of one series, shape (n,).

    Rows with fewer than `least_before` rows before them or `least_after` from them on get 0.
    """
    n = scores.size
    ratio = np.zeros(n)
    starts = np.arange(least_before, n - least_after + 1)
    if starts.size == 0:
        return ratio
    sums = np.concatenate([[0.0], np.cumsum(scores)])
    after = n - starts
    contrast = (sums[n] - sums[starts]) / after - sums[starts] / starts
    noise = mean_factor(memory, after) / after + mean_factor(memory, starts) / starts
    ratio[starts] = contrast**2 / (2.0 * variance * noise)
    return ratio


def interval(ratio: NDArray[np.float64], share: float = 0.95) -> tuple[int, int]:
    """Return the first and last row of the most probable starts that hold `share` together.

    Every start is as probable beforehand, so the odds between two are the ratio of likelihoods.
    """
    weight = np.where(ratio > 0.0, np.exp(ratio - ratio.max()), 0.0)
    order = np.argsort(-weight, kind="stable")
    held = np.cumsum(weight[order]) / weight.sum()
    kept = order[: int(np.searchsorted(held, share)) + 1]
    return int(kept.min()), int(kept.max())
