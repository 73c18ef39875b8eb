"""What a cause may look at: values, changes and events around one change, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from soak.core import wording
from soak.core.model import Change, Event, Series
from soak.core.series import parse_series


@dataclass(frozen=True, slots=True)
class TimedEvent:
    """An event and the second k of the record that reports it: it happened in that second or just before.

    `source`: whose record that is, "" where it is not known.
    """

    k: int
    event: Event
    source: str = ""


@dataclass(frozen=True, slots=True)
class Nearby:
    """The seconds `k0` to `k1`, the latter excluded, of one run. Series are named `source|column`."""

    k0: int
    k1: int
    series: Mapping[str, Series] = field(default_factory=dict)
    changes: tuple[Change, ...] = ()  # of all series, in any state
    events: tuple[TimedEvent, ...] = ()
    earlier_events: Mapping[str, int] = field(default_factory=dict)  # by kind, in the run before k0
    invalid_k: Mapping[str, NDArray[np.int64]] = field(default_factory=dict)  # by source
    phases: tuple[tuple[int, str], ...] = ()  # (from_k, name), in order
    lag_seconds: Mapping[str, float] = field(default_factory=dict)  # by series, 0 where missing
    topics: frozenset[str] = frozenset()  # of this run, empty where they are not known

    def event_ks(self, kind: str) -> NDArray[np.int64]:
        """Return the seconds with an event of this kind, ascending, each once."""
        return np.unique(np.array([e.k for e in self.events if e.event.kind == kind], np.int64))

    def named(self, metric: str) -> dict[str, Series]:
        """Return all series of one metric by their names."""
        return {
            name: series
            for name, series in self.series.items()
            if parse_series(name).metric == metric
        }

    def soak_start(self, k: int) -> int:
        """Return the start of the phase that holds second k, at least `k0`."""
        return max([start for start, _ in self.phases if start <= k] + [self.k0])

    def soak_end(self, k: int) -> int:
        """Return the end of the phase that holds second k, at most `k1`."""
        return min([start for start, _ in self.phases if start > k] + [self.k1])


def when(seconds: int) -> str:
    """Return where an instant lies relative to the onset, in words."""
    if seconds == 0:
        return "at the onset"
    return f"{wording.span(abs(seconds))} {'before' if seconds < 0 else 'after'} the onset"


def between(series: Series, first: int, stop: int) -> NDArray[np.float64]:
    """Return the values of seconds `first` to `stop`, the latter excluded."""
    low, high = np.searchsorted(series.k, [first, stop])
    return series.values[low:high]
