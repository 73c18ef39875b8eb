"""Seconds of clients in a cluster that acknowledges and delivers as a test wants it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from detectors.client_seconds import Second
from detectors.outage import Config, Outages
from soak.core.model import Change, Column

PRODUCER, CONSUMER = "produce.0@h", "consume.0@h"
STOPPED = f"{PRODUCER}|acknowledgement_outage_seconds"
SHORT = f"{PRODUCER}|acknowledgement_shortfall_seconds"
UNDELIVERED = f"{CONSUMER}|delivery_outage_seconds"
RATE = 100

_SENT = ("sent", "acked", "failed", "missed", "in_flight", "queue_full")
_OTHERS = ("publish_waiting_seconds", "callback_delay_seconds", "sender_busy_ratio")
LATE = "late"
"""Messages that were acknowledged, or received, after ten seconds."""

Values = Mapping[str, float]
Floats = NDArray[np.float64]


def leader_column(name: str) -> Column:
    return Column("publish_latency_seconds", (("leader", name), ("quantile", "0.5")), "seconds")


def producer_columns(leaders: Sequence[str] = ()) -> tuple[Column, ...]:
    counts = (Column(f"{name}_messages", (), "messages") for name in _SENT)
    others = (Column(name) for name in _OTHERS)
    above = (
        Column("publish_latency_above_messages", (("threshold", limit),), "messages")
        for limit in ("1", "10")
    )
    return (*counts, *others, *above, *map(leader_column, leaders))


CONSUMER_COLUMNS = (
    Column("received_messages", (), "messages"),
    Column("lag_messages", (), "messages"),
    Column("end_to_end_latency_above_messages", (("threshold", "10"),), "messages"),
)


def well(**changes: float) -> dict[str, float]:
    """Return a second of a producer whose messages are acknowledged at once."""
    return {"sent": RATE, "acked": RATE} | changes


def silent(**changes: float) -> dict[str, float]:
    return {"sent": RATE, "acked": 0, "in_flight": RATE} | changes


def producer_values(second: Values, leaders: Sequence[str] = ()) -> Floats:
    """Return the values of `producer_columns`; a leader that is not named acknowledged nothing."""
    row = [second.get(name, 0.0) for name in (*_SENT, *_OTHERS)]
    late = second.get(LATE, 0.0)
    return np.array([*row, late, late, *(second.get(name, math.nan) for name in leaders)])


def consumer_values(second: Values) -> Floats:
    names = ("received", "lag", LATE)
    return np.array([second.get(name, 0.0) for name in names])


def produced(
    seconds: Iterable[Values],
    *,
    config: Config | None = None,
    leaders: Sequence[str] = (),
    phases: Mapping[int, str] | None = None,
    invalid: Iterable[int] = (),
    ks: Sequence[int] | None = None,
) -> list[tuple[int, Change]]:
    """Feed the seconds of one producer; return each change with the second that brought it."""
    outages, found, phase, bad = Outages(config), [], "soak", set(invalid)
    columns = producer_columns(leaders)
    for row, second in enumerate(seconds):
        k = row if ks is None else ks[row]
        phase = (phases or {}).get(k, phase)
        values = producer_values(second, leaders)
        fed = Second(k, values, is_valid=k not in bad, phase=phase)
        found += [(k, change) for change in outages.update(PRODUCER, columns, fed)]
    return found


def consumed(
    seconds: Iterable[Values], phase: str = "soak", config: Config | None = None
) -> list[tuple[int, Change]]:
    outages, found = Outages(config), []
    for k, second in enumerate(seconds):
        fed = Second(k, consumer_values(second), phase=phase)
        found += [(k, change) for change in outages.update(CONSUMER, CONSUMER_COLUMNS, fed)]
    return found
