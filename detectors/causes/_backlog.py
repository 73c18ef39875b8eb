"""A backlog that begins to drain at the onset: its peak lies there, and it falls from then on.

Method:  the peak of a backlog is dated; from it the backlog must fall in four of five values, by a third at
         least, and be worth five seconds of the load where that is known.
Assumes: a backlog told in every value; one that is told late is looked for as late as its channel lags.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from detectors.causes._load import backlogs
from detectors.causes._moves import VALUES, end_of, near, spacing_of
from detectors.nearby import Nearby
from soak.core.model import Change

_LEAST_VALUES = 3
_FALLING = 0.8
_FALLEN = 1.0 / 3.0
_LEAST_SECONDS = 5.0
_EMPTY = 0.02  # of the peak: what follows is no drain any more


@dataclass(frozen=True, slots=True)
class Drain:
    """A backlog at its peak and at the end of what was seen, and the second in which it began to fall."""

    series: str
    peak: float
    end: float
    from_k: int
    seconds: int


def draining(change: Change, nearby: Nearby) -> Drain | None:
    """Return the largest backlog that began to drain at the onset, or None."""
    found = [one for name in backlogs(nearby) if (one := _drain(name, change, nearby))]
    return max(found, key=lambda one: one.peak, default=None)


def _drain(name: str, change: Change, nearby: Nearby) -> Drain | None:
    series = nearby.series[name]
    spacing = spacing_of(series)
    first, last = near(change, nearby.lag_seconds.get(name, 0.0), spacing)
    start = change.interval[0] - VALUES * spacing
    stop = min(nearby.k1, end_of(change, nearby) + VALUES * spacing)
    low, high = np.searchsorted(series.k, [start, stop])
    k, values = series.k[low:high], series.values[low:high]
    if values.size <= _LEAST_VALUES:
        return None
    at = values.size - 1 - int(np.argmax(values[::-1]))  # the last of several equal ones
    peak = float(values[at])
    emptied = np.flatnonzero(values[at:] <= _EMPTY * peak)
    falling = values[at : at + (int(emptied[0]) + 1 if emptied.size else values.size)]
    steps = np.diff(falling)
    is_falling = (
        falling.size >= _LEAST_VALUES
        and np.mean(steps < 0.0) >= _FALLING
        and falling[-1] <= (1.0 - _FALLEN) * peak
    )
    is_there = first - spacing <= int(k[at]) <= last
    if not (is_falling and is_there and peak >= _LEAST_SECONDS * _rate(name, nearby)):
        return None
    seconds = int(k[at + falling.size - 1] - k[at])
    return Drain(name, peak, float(falling[-1]), int(k[at]), seconds)


def _rate(name: str, nearby: Nearby) -> float:
    """Return the messages sent a second, all producers together; 0 where the backlog is in another unit."""
    if not name.endswith("_messages"):
        return 0.0
    return sum(
        float(np.median(one.values)) for one in nearby.named("sent_messages").values() if one.k.size
    )
