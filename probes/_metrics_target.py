"""One page or server of the probe `prometheus`: fetched before each reading, kept until it is taken."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from probes._folds import Folds, Samples
from probes._metrics_page import Source
from probes._name_map import Entry, missing
from probes._paced import Paced
from probes._steps import Point, Walk
from soak.core.errors import ProbeError
from soak.core.model import Column, Event, Labels
from soak.core.ports import Clock
from soak.core.units import SECOND_NS

_MOST_NAMED = 20  # metrics in one event


@dataclass(slots=True)
class _Box:
    """What the thread hands over."""

    samples: Samples = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    cost_ns: int = 0


class MetricsTarget:
    """`fetch` is one round of the thread; tests call it themselves."""

    def __init__(
        self,
        name: str,
        entries: Sequence[Entry],
        clock: Clock,
        *,
        open_source: Callable[[], Source],
        patience_seconds: float,
    ) -> None:
        self.name = name
        self._entries = entries
        self._clock = clock
        self._open_source = open_source
        self._patience_seconds = patience_seconds
        self._own = (("target", name),)
        self._paced = Paced(f"prometheus-{name}", self.fetch, clock, self.leave)
        self._lock = threading.Lock()
        self._box = _Box()
        # of the thread alone
        self._source: Source | None = None
        self._walk = Walk()
        self._folds: Folds | None = None
        self._is_first = True

    def check(self) -> None:
        """Raise `ProbeError` when the last fetch failed, or one has run for too long."""
        self._paced.check()
        busy = self._paced.busy_seconds()
        if busy > self._patience_seconds:
            raise ProbeError(f"{self.name} has not answered for {busy:.0f} s")

    def take(self) -> tuple[Samples, list[Event], int]:
        """Return what was fetched since the last call, and the time that it took in ns."""
        with self._lock:
            box, self._box = self._box, _Box()
        return box.samples, box.events, box.cost_ns

    def fetch(self) -> None:
        """Fetch once.

        Raises:
            ProbeError: there was no answer, or not the right one.
        """
        begin_ns, since_ns = self._clock.mono_ns(), self._clock.wall_ns()
        with self._lock:
            self._box.samples = []  # an old answer is none for a reading after this
        source, folds = self._opened()
        fetched = source.fetch()
        samples = folds.samples(self._walk.take(fetched.points), fetched.damaged)
        seconds = (self._clock.mono_ns() - begin_ns) / SECOND_NS
        samples.append((Column("scrape_duration_seconds", self._own, "seconds"), seconds))
        events = []
        if self._is_first:
            self._is_first = False
            lacking = missing(self._entries, {*fetched.points, *fetched.damaged})
            if lacking:
                events.append(self._missing(lacking, since_ns))
        with self._lock:
            self._box.samples = samples
            self._box.events += events
            self._box.cost_ns += self._clock.mono_ns() - begin_ns

    def earlier(self, end_ns: int, seconds: float) -> dict[int, Samples]:
        """Return what the source remembers, by the instant of each scrape; before the first `check`.

        Raises:
            ProbeError: as `fetch`.
        """
        source, folds = self._opened()
        points = source.until(end_ns, seconds).points
        scrapes: dict[int, dict[str, dict[Labels, list[Point]]]] = {}
        for name, series in points.items():
            for labels, seen in series.items():
                for point in seen:
                    there = scrapes.setdefault(point.at_ns, {}).setdefault(name, {})
                    there[labels] = [point]
        return {
            at_ns: folds.samples(self._walk.take(scrapes[at_ns]), frozenset())
            for at_ns in sorted(scrapes)
        }

    def _opened(self) -> tuple[Source, Folds]:
        if self._source is None or self._folds is None:
            self._source = self._open_source()
            self._folds = Folds(self._entries, self._own, self._source.keep)
        return self._source, self._folds

    def leave(self) -> None:
        """Close the connection."""
        if self._source is not None:
            self._source.close()
            self._source = None

    def close(self) -> None:
        self._paced.close()

    def _missing(self, names: list[str], since_ns: int) -> Event:
        more = [f"and {len(names) - _MOST_NAMED} more"] if len(names) > _MOST_NAMED else []
        fields: dict[str, str | int] = {
            "target": self.name,
            "count": len(names),
            "missing": ", ".join([*names[:_MOST_NAMED], *more]),
        }
        return Event("metrics_missing", self._clock.wall_ns(), since_ns, dict(fields))
