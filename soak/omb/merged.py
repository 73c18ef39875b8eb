"""Histograms of many seconds added up, and read off as HdrHistogram itself would.

Quantiles of seconds cannot be merged, their histograms can, exactly. Latencies are in us in the journals.
"""

from __future__ import annotations

import math

import numpy as np
from hdrh.histogram import HdrHistogram

from soak.core.histogram import DIGITS, HIGHEST_US, LOWEST_US, decode
from soak.omb.profile import PERCENTILES
from soak.omb.result import Distribution


def empty() -> HdrHistogram:
    """Return a histogram like those in the journals."""
    return HdrHistogram(LOWEST_US, HIGHEST_US, DIGITS)


class Cells:
    """What each cell of such a histogram stands for, in us: looked up once, as the library is slow at it."""

    def __init__(self) -> None:
        twin = empty()
        lows = np.array([twin.get_value_from_index(at) for at in range(twin.counts_len)])
        self.highs = np.array([twin.get_highest_equivalent_value(int(low)) for low in lows])
        self.lows = lows
        self.middles = lows + (self.highs + 1 - lows) // 2  # as getMean takes them


class Merged:
    """Adds encoded histograms. Values above their range (1 h) are known by count and exact maximum alone."""

    def __init__(self, cells: Cells) -> None:
        self._cells = cells
        self._counts = np.zeros(cells.highs.size, dtype=np.int64)
        self.clear()

    def clear(self) -> None:
        self._counts[:] = 0
        self._overflow = 0
        self._max_seconds = math.nan

    def add(self, text: str) -> None:
        """Add one histogram in V2 base64."""
        self._counts += np.frombuffer(decode(text).counts, dtype=np.int64)

    def absorb(self, other: Merged) -> None:
        """Add what another one holds."""
        self._counts += other._counts
        self._overflow += other._overflow
        self.note_max(other._max_seconds)

    def add_overflow(self, count: int) -> None:
        self._overflow += count

    def note_max(self, seconds: float) -> None:
        """Take the exact maximum of a second; NaN is none."""
        self._max_seconds = float(np.fmax(self._max_seconds, seconds))

    def statistics(self) -> dict[str, float]:
        """Return min, mean, the percentiles and max in seconds; all NaN when nothing was counted.

        A value that lies in the overflow is given as the maximum.
        """
        counts, total = self._counts, int(self._counts.sum()) + self._overflow
        if not total:
            return dict.fromkeys(("min", "mean", *PERCENTILES, "max"), math.nan)
        maximum = self._maximum()
        sums = float(counts @ self._cells.middles) / 1e6 + self._overflow * maximum
        filled = np.flatnonzero(counts)
        lowest = float(self._cells.lows[filled[0]]) / 1e6 if filled.size else maximum
        found = {"min": lowest, "mean": round(sums / total, 9)}
        cumulated = np.cumsum(counts)
        for name in PERCENTILES:
            rank = max(1, int(float(name[1:]) / 100.0 * total + 0.5))
            at = int(np.searchsorted(cumulated, rank))
            found[name] = self._value(at, maximum)
        return {**found, "max": maximum}

    def distribution(self) -> Distribution | None:
        """Return the share at or below each filled cell, or None when nothing was counted."""
        counts, total = self._counts, int(self._counts.sum()) + self._overflow
        if not total:
            return None
        maximum = self._maximum()
        filled = np.flatnonzero(counts)
        percentiles = 100.0 * np.cumsum(counts)[filled] / total
        seconds = np.array([self._value(int(at), maximum) for at in filled])
        if self._overflow:
            percentiles, seconds = np.append(percentiles, 100.0), np.append(seconds, maximum)
        seconds[-1] = maximum
        return Distribution(percentiles, seconds)

    def _maximum(self) -> float:
        """Return the exact maximum where the journals have it, else that of the histogram."""
        if not math.isnan(self._max_seconds):
            return round(self._max_seconds, 9)
        filled = np.flatnonzero(self._counts)
        return float(self._cells.highs[filled[-1]]) / 1e6 if filled.size else HIGHEST_US / 1e6

    def _value(self, at: int, maximum: float) -> float:
        if at >= self._cells.highs.size:
            return maximum
        return min(float(self._cells.highs[at]) / 1e6, maximum)
