"""One exposition page, asked for again and again: only the lines that a name map wants are read."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Protocol

from probes._exposition import MOST_SERIES, Exposition
from probes._http import Http
from probes._steps import Point, Points
from soak.core.ports import Clock


@dataclass(frozen=True, slots=True)
class Fetched:
    """What a source gave: points by the names that it has, and the names of which something was damaged."""

    points: Points
    damaged: AbstractSet[str] = frozenset()


class Source(Protocol):
    """Where numbers come from. `keep`: labels by which its series stay apart."""

    keep: tuple[str, ...]

    def fetch(self) -> Fetched:
        """Return what there is now.

        Raises:
            ProbeError: it did not answer, or with something else.
        """
        ...

    def until(self, end_ns: int, seconds: float) -> Fetched:
        """Return what it remembers of so many seconds before an instant of the wall clock; as `fetch`."""
        ...

    def close(self) -> None: ...


class MetricsPage:
    keep: tuple[str, ...] = ()

    def __init__(
        self,
        url: str,
        http: Http,
        names: AbstractSet[str],
        clock: Clock,
        most_series: int = MOST_SERIES,
    ) -> None:
        self._url = url
        self._http = http
        self._exposition = Exposition(names, most_series)
        self._clock = clock

    def fetch(self) -> Fetched:
        begin_ns = self._clock.mono_ns()
        text = self._http.get(self._url)
        at_ns = (begin_ns + self._clock.mono_ns()) // 2  # it was made between question and answer
        page = self._exposition.parse(text)
        points = {
            name: {labels: (Point(value, at_ns),) for labels, value in series.items()}
            for name, series in page.series.items()
        }
        return Fetched(points, page.damaged)

    def until(self, end_ns: int, seconds: float) -> Fetched:
        """A page knows only what is now."""
        del end_ns, seconds
        return Fetched({})

    def close(self) -> None:
        self._http.close()
