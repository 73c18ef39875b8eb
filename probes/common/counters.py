"""Growth of counters between two readings; a counter that fell has no growth, never a negative rate."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

from soak.core.series import Labels
from soak.core.units import SECOND_NS

Key = TypeVar("Key", bound=Hashable)

MAX_TRACKED_SERIES = 100_000  # twice the default limit on the series of a page


@dataclass(frozen=True, slots=True)
class Growth(Generic[Key]):
    """The growth of counters in `seconds`; empty at the first reading."""

    seconds: float = 0.0
    by: Mapping[Key, float] = field(default_factory=dict)

    def per_second(self, key: Key, scale: float = 1.0) -> float | None:
        """Return the growth a second, divided by `scale`; None if it is unknown."""
        grown = self.by.get(key)
        return None if grown is None else grown / scale / self.seconds

    def ratio(self, over: Key, under: Key, scale: float = 1.0) -> float | None:
        """Return one growth divided by another and by `scale`; None if `under` did not grow."""
        above, below = self.by.get(over), self.by.get(under)
        return None if above is None or not below else above / scale / below


class Deltas(Generic[Key]):
    """Compares counters with the previous reading; one that fell (a wrap, a reset) has no growth."""

    def __init__(self) -> None:
        self._last: Mapping[Key, float] = {}
        self._last_ns = 0

    def take(self, counters: Mapping[Key, float], at_ns: int) -> Growth[Key]:
        last, self._last = self._last, dict(counters)
        seconds = (at_ns - self._last_ns) / SECOND_NS
        self._last_ns = at_ns
        if not last or seconds <= 0:
            return Growth()
        grown = {key: value - last[key] for key, value in counters.items() if key in last}
        return Growth(seconds, {key: value for key, value in grown.items() if value >= 0})


class SummedDeltas(Generic[Key]):
    """Adds up the growth of several parts of a whole, such as interfaces or paths, which come and go.

    A sum of counters would grow by all that a new part has counted before, so a part counts from its second
    reading on.
    """

    def __init__(self) -> None:
        self._deltas: Deltas[tuple[str, Key]] = Deltas()
        self._known: AbstractSet[str] = frozenset()

    def take(self, parts: Mapping[str, Mapping[Key, float]], at_ns: int) -> Growth[Key]:
        """Return the growth of each counter over the parts of the previous reading.

        A counter that fell in one of them (a wrap, a reset) is missing: the sum would be wrong.
        """
        flat = {(part, key): value for part, by in parts.items() for key, value in by.items()}
        grown = self._deltas.take(flat, at_ns)
        stayed = [part for part in parts if part in self._known]
        self._known = frozenset(parts)
        if not grown.seconds:
            return Growth()
        sums = {
            key: sum(grown.by[part, key] for part in stayed)
            for key in {key for part in stayed for key in parts[part]}
            if all((part, key) in grown.by for part in stayed)
        }
        return Growth(grown.seconds, sums)


class Point(NamedTuple):
    """A value at a time, on any clock: only points of one source are compared."""

    value: float
    at_ns: int


Points = Mapping[str, Mapping[Labels, Sequence[Point]]]
"""Points in order of time, by name and labels."""


class Step(NamedTuple):
    """The newest value of a series and its growth in `seconds`.

    `growth` is None if it is unknown: the first point, a NaN, or a counter that was reset.
    """

    value: float
    growth: float | None
    seconds: float


Steps = Mapping[str, Mapping[Labels, Step]]


class SeriesTracker:
    """Follows series from one reading to the next; a series may be scraped less often than it is read."""

    def __init__(self, max_series: int = MAX_TRACKED_SERIES) -> None:
        self._max_series = max_series
        self._last: dict[tuple[str, Labels], Point] = {}

    def take(self, points: Points) -> Steps:
        """Return the steps of the series that have a newer point than at the last call."""
        steps: dict[str, dict[Labels, Step]] = {}
        for name, series in points.items():
            for labels, seen in series.items():
                key = name, labels
                before = self._last.get(key)
                new = [point for point in seen if before is None or point.at_ns > before.at_ns]
                if new:
                    steps.setdefault(name, {})[labels] = _step(before, new)
                    self._last[key] = new[-1]
        if len(self._last) > self._max_series:  # series that come and go
            there = {(name, labels) for name, series in points.items() for labels in series}
            self._last = {key: point for key, point in self._last.items() if key in there}
        return steps


def _step(before: Point | None, new: Sequence[Point]) -> Step:
    first = last = new[0] if before is None else before
    growth = None if before is None and len(new) == 1 else 0.0
    for point in new:
        rise = point.value - last.value
        growth = growth + rise if growth is not None and rise >= 0 else None
        last = point
    return Step(last.value, growth, (last.at_ns - first.at_ns) / SECOND_NS)
