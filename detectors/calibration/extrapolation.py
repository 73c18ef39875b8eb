"""Extrapolation of measured false-alarm rates and detection probabilities to rates that cannot be counted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log

import numpy as np
from numpy.typing import NDArray

_SLOPE_SD = 0.2
_HEIGHTS = np.linspace(-9.0, 6.0, 601)  # log of the ratio at the middle of what was counted
_SLOPES = np.linspace(-0.9, 0.9, 241)
_INTERVAL = (0.025, 0.5, 0.975)


@dataclass(frozen=True, slots=True)
class Rung:
    """What came in `seconds` of series without a change, when one in `allowed_seconds` was allowed."""

    allowed_seconds: float
    seconds: float
    warned: int
    confirmed: int

    @property
    def allowed(self) -> float:
        return self.seconds / self.allowed_seconds


@dataclass(frozen=True, slots=True)
class Ratio:
    """False alarms that come, over those that were allowed: the middle, and what holds 95 %."""

    low: float
    middle: float
    high: float

    def of(self, allowed: float) -> tuple[float, float, float]:
        """Return how many come where `allowed` were allowed."""
        return self.low * allowed, self.middle * allowed, self.high * allowed


def extended(rungs: Sequence[Rung], allowed_seconds: float) -> Ratio:
    """Return the ratio of confirmed alarms at a rate that may be far from all that were counted."""
    times = np.array([log(rung.allowed_seconds) for rung in rungs])
    allowed = np.array([rung.allowed for rung in rungs])
    counts = np.array([rung.confirmed for rung in rungs])
    middle = float(np.average(times, weights=allowed))
    heights, slopes = _HEIGHTS[:, np.newaxis], _SLOPES[np.newaxis, :]
    odds = heights / 2.0 - (slopes / _SLOPE_SD) ** 2 / 2.0  # half: Jeffreys' for a Poisson rate
    for time, share, count in zip(times, allowed, counts, strict=True):
        line = heights + slopes * (time - middle)
        odds = odds + count * line - share * np.exp(line)
    weights = np.exp(odds - odds.max()).ravel()
    there = (heights + slopes * (log(allowed_seconds) - middle)).ravel()
    order = np.argsort(there)
    held = np.cumsum(weights[order]) / weights.sum()
    low, half, high = (float(np.exp(there[order[np.searchsorted(held, p)]])) for p in _INTERVAL)
    return Ratio(low, half, high)


# --- The size from which on a step is seen with a probability, from tries at several sizes.
# Method:  logistic curve in the log of the size, most likely on a grid.
# Assumes: larger steps are seen more often.

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
