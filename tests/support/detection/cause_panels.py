"""Two minutes and a half around a step, as little as one cause needs: steady channels, steps, events."""

from __future__ import annotations

import numpy as np

from detectors.nearby import Nearby, TimedEvent
from soak.core.model import Change, Event, Series

ONSET, END = 100, 180
K = np.arange(END, dtype=np.int64)
P99 = 'produce.0@h|publish_latency_seconds{quantile="0.99"}'
E2E = 'consume.0@h|end_to_end_latency_seconds{quantile="0.99"}'
STEP = Change(P99, 106, ONSET, (99, 101), 0.004, 0.06, "confirmed", 0.999)
OUTAGE = Change(
    "produce.0@h|acknowledgement_outage_seconds",
    ONSET + 5,
    ONSET,
    (ONSET - 1, ONSET),
    0.0,
    60.0,
    "confirmed",
    0.999,
    "outage",
)


def channel(name: str, before: float, after: float, at: int = ONSET, seed: int = 0) -> Series:
    """Return a channel of END seconds with 5 % of noise, which steps in second `at`."""
    rng = np.random.default_rng([seed, *map(ord, name)])
    k = np.arange(END, dtype=np.int64)
    level = np.where(k < at, before, after)
    return Series(name, k, level * rng.lognormal(0.0, 0.05, END))


def around(*series: Series, events: tuple[TimedEvent, ...] = (), lag: float = 0.0) -> Nearby:
    return Nearby(
        0,
        END,
        {one.name: one for one in series},
        events=events,
        lag_seconds={one.name: lag for one in series} if lag else {},
    )


def told(kind: str, *ks: int, **fields: str | float) -> tuple[TimedEvent, ...]:
    return tuple(TimedEvent(k, Event(kind, k * 10**9, (k - 1) * 10**9, fields)) for k in ks)
