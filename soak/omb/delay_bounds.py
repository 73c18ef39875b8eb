"""Upper bounds of the send delay over several seconds, where journals keep its quantiles and no histogram.

If at most 1 % of each second lies above that second's p99, at most 1 % of all lies above the greatest p99.
"""

from __future__ import annotations

import math

from soak.omb.fields import percentile
from soak.omb.profile import PERCENTILES

KEPT = {"0.5": 50.0, "0.99": 99.0, "max": 100.0}
"""Quantiles that a second keeps of its delays, ascending, and the per cent at or below each."""


class DelayBounds:
    """Keeps the greatest of each quantile, and a bound of the sum."""

    def __init__(self) -> None:
        self._greatest = dict.fromkeys(KEPT, math.nan)
        self._sum_seconds = 0.0
        self._count = 0.0

    def add(self, quantiles: dict[str, float], count: float) -> None:
        """Take one second in which `count` messages were sent; a quantile that is NaN is not bounded."""
        if not count > 0 or any(math.isnan(value) for value in quantiles.values()):
            return
        below = 0.0
        for name, share in KEPT.items():
            value = quantiles[name]
            if not self._greatest[name] >= value:
                self._greatest[name] = value
            self._sum_seconds += count * value * (share - below) / 100.0
            below = share
        self._count += count

    def absorb(self, other: DelayBounds) -> None:
        """Add what another one holds."""
        for name, value in other._greatest.items():
            if not self._greatest[name] >= value and not math.isnan(value):
                self._greatest[name] = value
        self._sum_seconds += other._sum_seconds
        self._count += other._count

    def statistics(self) -> dict[str, float]:
        """Return bounds of mean, the percentiles and max in seconds; NaN when nothing was counted."""
        mean = self._sum_seconds / self._count if self._count else math.nan
        found = {"mean": mean, "max": self._greatest["max"]}
        for statistic in PERCENTILES:
            name = next(name for name, share in KEPT.items() if share >= percentile(statistic))
            found[statistic] = self._greatest[name]
        return {name: round(value, 9) for name, value in found.items()}
