"""Counts, quantiles and histograms of journal records, and histograms of many intervals added up."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from hdrh.histogram import HdrHistogram

from soak.core.histogram import DIGITS, HIGHEST_US, LOWEST_US, decode
from soak.core.model import Column, Record
from soak.core.series import parse_series
from soak.omb.result import PERCENTILES, Distribution

_Indices = dict[tuple[str, str], list[int]]


@dataclass(frozen=True, slots=True)
class SourceRecord:
    """The record of one source for one second, with the columns of its values."""

    source: str
    record: Record
    columns: tuple[Column, ...]


class RecordReader:
    """Reads values by metric; caches their indices for each columns line."""

    def __init__(self) -> None:
        self._indices: dict[tuple[str, str], _Indices] = {}  # by source and id of the columns

    def count(self, source: SourceRecord, metric: str) -> float:
        """Return a count, or the sum of its parts; NaN for none."""
        found = self._values(source, metric, "")
        return math.fsum(found) if found else math.nan

    def quantile(self, source: SourceRecord, metric: str, name: str) -> float:
        """Return the greatest value of a quantile such as `0.99` or `max`; NaN for none."""
        return max(self._values(source, metric, name), default=math.nan)

    def _values(self, source: SourceRecord, metric: str, quantile: str) -> list[float]:
        record = source.record
        named = source.source, record.columns_id
        if named not in self._indices:
            self._indices[named] = _indices(source.columns)
        indices = self._indices[named].get((metric, quantile), ())
        return [record.values[at] for at in indices if not math.isnan(record.values[at])]


def histograms(record: Record, metric: str) -> list[str]:
    """Return the encoded histograms of a metric: the whole if there is one, else its parts."""
    if metric in record.histograms:
        return [record.histograms[metric]]
    return [
        text
        for name, text in record.histograms.items()
        if parse_series(name).metric == metric and "{" in name
    ]


def _indices(columns: tuple[Column, ...]) -> _Indices:
    """Return the indices by metric and quantile: of the whole if there is one, else of its parts."""
    whole: _Indices = {}
    parts: _Indices = {}
    for at, column in enumerate(columns):
        labels = dict(column.labels)
        key = (column.metric, labels.pop("quantile", ""))
        (parts if labels else whole).setdefault(key, []).append(at)
    return parts | whole


def empty_histogram() -> HdrHistogram:
    """Return a histogram like those in the journals."""
    return HdrHistogram(LOWEST_US, HIGHEST_US, DIGITS)


class HistogramCells:
    """The values of each cell of such a histogram, in us, looked up once because the library is slow."""

    def __init__(self) -> None:
        twin = empty_histogram()
        lows = np.array([twin.get_value_from_index(at) for at in range(twin.counts_len)])
        self.highs = np.array([twin.get_highest_equivalent_value(int(low)) for low in lows])
        self.lows = lows
        self.middles = lows + (self.highs + 1 - lows) // 2  # as getMean takes them


class MergedHistogram:
    """Adds encoded histograms; of values above 1 h only the number and the exact maximum are known."""

    def __init__(self, cells: HistogramCells) -> None:
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

    def absorb(self, other: MergedHistogram) -> None:
        """Add another one."""
        self._counts += other._counts
        self._overflow += other._overflow
        self.note_max(other._max_seconds)

    def add_overflow(self, count: int) -> None:
        self._overflow += count

    def note_max(self, seconds: float) -> None:
        """Add the exact maximum of a second; NaN for none."""
        self._max_seconds = float(np.fmax(self._max_seconds, seconds))

    def statistics(self) -> dict[str, float]:
        """Return min, mean, the percentiles and max in seconds; all NaN when nothing was counted.

        A value in the overflow counts as the maximum.
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
        """Return the exact maximum if the journals have it, else that of the histogram."""
        if not math.isnan(self._max_seconds):
            return round(self._max_seconds, 9)
        filled = np.flatnonzero(self._counts)
        return float(self._cells.highs[filled[-1]]) / 1e6 if filled.size else HIGHEST_US / 1e6

    def _value(self, at: int, maximum: float) -> float:
        if at >= self._cells.highs.size:
            return maximum
        return min(float(self._cells.highs[at]) / 1e6, maximum)
