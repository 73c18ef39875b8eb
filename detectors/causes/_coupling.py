"""Does latency follow a channel second by second, and what of the step goes away when it is regressed on it?

Method:  Spearman's correlation of the seconds of the new level alone, so that two steps at one time are no
         evidence; then the slope of these seconds, times the channel's own step, as a share of latency's.
Assumes: what the channel does is felt within the second, and alike before and after the onset.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import atanh, sqrt

import numpy as np
from numpy.typing import NDArray

from detectors.causes._moves import end_of, mid_ranks, start_of
from detectors.nearby import Nearby
from soak.core.model import Change, Series

LEAST_SECONDS = 20
_LEAST_RHO = 0.3
_LEAST_SIGMAS = 3.0
_FLOOR = 1e-6


@dataclass(frozen=True, slots=True)
class Coupling:
    """How closely latency follows a channel after the onset, and the share of the step that this makes."""

    rho: float
    explained: float
    seconds: int

    @property
    def is_following(self) -> bool:
        """True for a correlation that is not small and, by Fisher's transformation, no accident."""
        sigmas = atanh(min(self.rho, 0.999)) * sqrt(max(1, self.seconds - 3))
        return self.rho >= _LEAST_RHO and sigmas >= _LEAST_SIGMAS


def coupling(channel: Series, change: Change, nearby: Nearby) -> Coupling | None:
    """Return how latency follows a channel; None when too few seconds have both."""
    latency = nearby.series.get(change.series)
    if latency is None:
        return None
    k, at, of = np.intersect1d(latency.k, channel.k, return_indices=True)
    y, x = (np.log10(np.maximum(v, _FLOOR)) for v in (latency.values[at], channel.values[of]))
    low, high = change.interval
    before = (k >= start_of(change, nearby)) & (k < low)
    after = (k >= high) & (k < end_of(change, nearby))
    if np.count_nonzero(after) < LEAST_SECONDS or np.count_nonzero(before) < LEAST_SECONDS:
        return None
    rho = _correlation(mid_ranks(x[after]), mid_ranks(y[after]))
    spread = float(np.var(x[after]))
    slope = float(np.cov(x[after], y[after], bias=True)[0, 1]) / spread if spread > 0.0 else 0.0
    steps = [float(np.median(v[after]) - np.median(v[before])) for v in (x, y)]
    explained = slope * steps[0] / steps[1] if steps[1] > 0.0 else 0.0
    return Coupling(rho, max(0.0, min(1.0, explained)), int(np.count_nonzero(after)))


def _correlation(x: NDArray[np.float64], y: NDArray[np.float64]) -> float:
    spread = float(np.std(x) * np.std(y))
    return float(np.mean((x - x.mean()) * (y - y.mean()))) / spread if spread > 0.0 else 0.0
