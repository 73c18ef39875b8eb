"""Extends false-alarm rates that can be counted to those that cannot: once a month over a panel.

Method:  counts are Poisson; the log of (alarms that came / alarms that were allowed) is a straight line in
         the log of the time allowed between two. Its height at the set rate is told with what the counts
         leave open.
Assumes: the line goes on as far as it is drawn. Where the threshold is right it is level; beforehand its
         slope is normal with sd `_SLOPE_SD`, so that few counts leave the far end wide open.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log

import numpy as np

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
