"""Takes counts, quantiles and histograms out of journal records, whatever labels they were split by."""

from __future__ import annotations

import math
from dataclasses import dataclass

from soak.core.model import Column, Record

_Places = dict[tuple[str, str], list[int]]


@dataclass(frozen=True, slots=True)
class Told:
    """A source's record of one second, and what its values mean."""

    source: str
    record: Record
    columns: tuple[Column, ...]


class Amounts:
    """Reads values by metric; remembers where they stand, one entry a columns line."""

    def __init__(self) -> None:
        self._places: dict[str, _Places] = {}

    def count(self, told: Told, metric: str) -> float:
        """Return a count, the sum of its parts where it is kept in parts; NaN for none."""
        found = self._values(told, metric, "")
        return math.fsum(found) if found else math.nan

    def quantile(self, told: Told, metric: str, name: str) -> float:
        """Return the greatest value of a quantile such as `0.99` or `max`; NaN for none."""
        return max(self._values(told, metric, name), default=math.nan)

    def _values(self, told: Told, metric: str, quantile: str) -> list[float]:
        record = told.record
        if record.columns_id not in self._places:
            self._places[record.columns_id] = _places(told.columns)
        places = self._places[record.columns_id].get((metric, quantile), ())
        return [record.values[at] for at in places if not math.isnan(record.values[at])]


def histograms(record: Record, metric: str) -> list[str]:
    """Return the encoded histograms of a metric: the one of all where there is one, else its parts."""
    if metric in record.histograms:
        return [record.histograms[metric]]
    return [text for name, text in record.histograms.items() if name.startswith(f"{metric}{{")]


def _places(columns: tuple[Column, ...]) -> _Places:
    """Return the places by metric and quantile: of the whole where it is kept, else of its parts."""
    whole: _Places = {}
    parts: _Places = {}
    for at, column in enumerate(columns):
        labels = dict(column.labels)
        key = (column.metric, labels.pop("quantile", ""))
        (parts if labels else whole).setdefault(key, []).append(at)
    return parts | whole
