"""What each series did since the last look: its newest value, and by how much it grew in which time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from soak.core.model import Labels
from soak.core.units import SECOND_NS

MOST_SERIES = 100_000  # remembered; twice what a page may have unless told otherwise


@dataclass(frozen=True, slots=True)
class Point:
    """A value at a time; only points of one source are compared, so any clock will do."""

    value: float
    at_ns: int


Points = Mapping[str, Mapping[Labels, Sequence[Point]]]
"""By name and labels, points in order of time."""


@dataclass(frozen=True, slots=True)
class Step:
    """`growth` is None where it is not known: nothing to compare with, NaN, or a counter began anew."""

    value: float
    growth: float | None
    seconds: float


Steps = Mapping[str, Mapping[Labels, Step]]


class Walk:
    """Remembers the newest point of each series: one may be scraped less often than we look."""

    def __init__(self, most: int = MOST_SERIES) -> None:
        self._most = most
        self._last: dict[tuple[str, Labels], Point] = {}

    def take(self, points: Points) -> Steps:
        """Return the steps of the series that have a point newer than the last."""
        steps: dict[str, dict[Labels, Step]] = {}
        for name, series in points.items():
            for labels, seen in series.items():
                before = self._last.get((name, labels))
                new = [point for point in seen if before is None or point.at_ns > before.at_ns]
                if new:
                    steps.setdefault(name, {})[labels] = _step(before, new)
                    self._last[name, labels] = new[-1]
        if len(self._last) > self._most:  # series that come and go
            there = {(name, labels) for name, series in points.items() for labels in series}
            self._last = {key: point for key, point in self._last.items() if key in there}
        return steps


def _step(before: Point | None, new: Sequence[Point]) -> Step:
    path = new if before is None else [before, *new]
    rises = [later.value - earlier.value for earlier, later in pairwise(path)]
    growth = sum(rises) if rises and all(rise >= 0 for rise in rises) else None
    return Step(new[-1].value, growth, (path[-1].at_ns - path[0].at_ns) / SECOND_NS)
