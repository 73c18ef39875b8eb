"""What the cluster was given to do around a step: by us, and by all as far as its brokers tell."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from detectors.causes._moves import VALUES, Move, end_of, moves, near, spacing_of
from detectors.nearby import Nearby
from soak.core.model import Change

_TAKEN_IN = (
    "kafka_server_brokertopicmetrics_bytesin",
    "vectorized_storage_log_written_bytes",
    "bookie_journal_JOURNAL_WRITE_BYTES",
    "pulsar_in_bytes",
)
_GIVEN_OUT = (
    "kafka_server_brokertopicmetrics_bytesout",
    "vectorized_io_queue_total_read_bytes",
    "pulsar_out_messages",
)
_BACKLOGS = (
    "lag_messages",
    "backlog_messages",
    "pulsar_subscription_back_log",
    "pulsar_storage_backlog_size_bytes",
    "pulsar_ml_NumberOfMessagesInBacklog",
)
_MORE = 1.3


def sent(change: Change, nearby: Nearby) -> list[Move]:
    return moves("sent_messages", change, nearby)


def taken_in(change: Change, nearby: Nearby) -> list[Move]:
    """Return what the brokers say they wrote."""
    return [one for metric in _TAKEN_IN for one in moves(metric, change, nearby)]


def given_out(change: Change, nearby: Nearby) -> list[Move]:
    """Return what the brokers say they read for others."""
    return [one for metric in _GIVEN_OUT for one in moves(metric, change, nearby)]


def backlogs(nearby: Nearby) -> tuple[str, ...]:
    """Return the series of all backlogs, ours and those that a broker tells."""
    return tuple(name for metric in _BACKLOGS for name in nearby.named(metric))


def has_grown(found: list[Move]) -> bool:
    return any(not one.is_calm and one.ratio >= _MORE for one in found)


# --- A backlog that begins to drain at the onset: its peak lies there, and it falls from then on.
# Method:  the peak of a backlog is dated; of all its changes from there four fifths must be falls, by a
# third at least, and be worth five seconds of the load or, where that is not known, fall for as long.
# Assumes: a backlog told in every value; one that is told late is looked for as late as its channel lags.

_LEAST_VALUES = 3
_FALLING = 0.8
_PARTS = 10
_FALLEN = 1.0 / 3.0
_LEAST_SECONDS = 5.0
_FULL = 0.95  # of the peak: still the full level
_MOST_FULL = 0.25  # of the fall
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
    peak = float(values.max())
    if peak <= 0.0:  # old results of the benchmark hold negative ones
        return None
    for at, from_k in _begins(k, values):
        falling = _falling(values[at:], peak)
        if not falling.size or not first - spacing <= from_k <= last:
            continue
        seconds = int(k[at + falling.size - 1]) - from_k
        rate = _rate(name, nearby)
        if (peak / rate if rate > 0.0 else seconds) >= _LEAST_SECONDS:
            return Drain(name, peak, float(falling[-1]), from_k, seconds)
    return None


def _begins(k: NDArray[np.int64], values: NDArray[np.float64]) -> Iterator[tuple[int, int]]:
    """Give where the fall may begin, and its second: at the peak, or at the end of a plateau.

    A plateau's largest value lies anywhere, so the line of the fall is drawn back to its level.
    """
    peak = float(values.max())
    at = values.size - 1 - int(np.argmax(values[::-1]))  # the last of several equal ones
    yield at, int(k[at])
    end = int(np.flatnonzero(values >= _FULL * peak)[-1])
    falling = _falling(values[end:], peak)
    if falling.size:
        rate = (falling[0] - falling[-1]) / float(k[end + falling.size - 1] - k[end])
        full = values[: end + 1]
        level = float(np.median(full[full >= _FULL * peak]))
        yield end, round(float(k[end]) - max(0.0, level - falling[0]) / rate)


def _falling(values: NDArray[np.float64], peak: float) -> NDArray[np.float64]:
    """Return the fall that the values begin with, until nothing is left; empty when it is none."""
    emptied = np.flatnonzero(values <= _EMPTY * peak)
    falling = values[: int(emptied[0]) + 1] if emptied.size else values
    if falling.size < _LEAST_VALUES or falling[-1] > (1.0 - _FALLEN) * peak:
        return falling[:0]
    apart = max(1, falling.size // _PARTS)  # or noise would hide a slow drain
    falls = falling[:-apart] - falling[apart:]
    is_steady = falls[falls > 0.0].sum() >= _FALLING * np.abs(falls).sum()
    full = int(np.flatnonzero(falling >= _FULL * falling[0])[-1])
    is_begun = full <= _MOST_FULL * (falling.size - 1)  # a plateau lasts longer
    return falling if is_steady and is_begun else falling[:0]


def _rate(name: str, nearby: Nearby) -> float:
    """Return the messages sent a second by all producers; 0 where nobody knows, or the unit is another."""
    if not name.endswith("_messages"):
        return 0.0
    return sum(
        float(np.median(one.values)) for one in nearby.named("sent_messages").values() if one.k.size
    )
