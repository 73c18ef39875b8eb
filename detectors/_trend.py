"""Whether levels in order rise or fall steadily, and not by one step.

Kendall's test (1945, doi:10.1093/biomet/33.3.239) with a variance enlarged for correlated residuals (after
Hamed and Rao 1998, doi:10.1016/S0022-1694(97)00125-X), the slope by Theil and Sen.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import erfc, log, sqrt

import numpy as np
from numpy.typing import NDArray

_LEAST = 12  # levels; with fewer not even a perfect order is rare enough
_MOST_LINE = 0.7  # squares about the line over those about the best single step
_FAR = 37.0  # standard deviations from which on erfc is 0


@dataclass(frozen=True, slots=True)
class Trend:
    """A line through levels, on their own scale, at the first and at the last of them."""

    before: float
    after: float
    surprise: float  # -ln of the chance that so clear an order comes without a trend
    clearness: float  # share of the squares about the best single step that the line does away with


def judged(at: NDArray[np.int64], y: NDArray[np.float64]) -> Trend | None:
    """Return the trend of levels `y` at places `at`, ascending; None when a step tells them as well."""
    n = y.size
    if n < _LEAST:
        return None
    first, second = np.triu_indices(n, 1)
    rises = y[second] - y[first]
    order = float(np.sign(rises).sum())
    slope = float(np.median(rises / (at[second] - at[first])))
    rest = y - slope * at
    level = float(np.median(rest))
    rest -= level
    ends = level + slope * float(at[0]), level + slope * float(at[-1])
    line, step = float((rest**2).sum()), _best_step(y)
    if line > _MOST_LINE * step:
        return None
    variance = n * (n - 1) * (2 * n + 5) / 18.0 * _memory(y, slope)
    z = max(0.0, abs(order) - 1.0) / sqrt(variance)
    surprise = -log(erfc(z / sqrt(2.0))) if z < _FAR else z * z / 2.0
    return Trend(*ends, surprise, 1.0 - line / step if step > 0.0 else 0.0)


def _squares(y: NDArray[np.float64]) -> float:
    return float(((y - y.mean()) ** 2).sum())


def _best_step(y: NDArray[np.float64]) -> float:
    """Return the least sum of squares about two means, the first up to some row, the second from there."""
    sums = np.cumsum(y - y.mean())[:-1]
    before = np.arange(1, y.size)
    gained = sums**2 * (1.0 / before + 1.0 / (y.size - before))
    return _squares(y) - float(gained.max())


def _memory(y: NDArray[np.float64], slope: float) -> float:
    """Return by how much correlation of neighbours enlarges the variance of sums, at least 1.

    From squared differences over one and two levels, which a bend of the trend hardly enters: of an AR(1) the
    second are 1 + correlation times the first. Half a standard error is added, for it is a few levels' word.
    """
    near, far = y[1:] - y[:-1] - slope, y[2:] - y[:-2] - 2.0 * slope
    power = float((near**2).mean())
    if power <= 0.0:
        return 1.0
    raw = float((far**2).mean()) / power - 1.0
    correlation = min(0.9, max(0.0, raw + 0.5 / sqrt(y.size)))
    return (1.0 + correlation) / (1.0 - correlation)
