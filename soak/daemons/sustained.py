"""Whether a cluster follows a rate, judged from the seconds in which it was held."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from statistics import median

from soak.core.units import SECOND_NS, format_duration
from soak.daemons.load_seconds import LoadSecond

LEAST_ACKED = 0.98
"""A rate is not sustained when less of what was due is acknowledged."""
MOST_BEHIND_SECONDS = 0.050
"""Nor when the median send of the last third is later than this."""
MOST_LAG_GROWTH = 0.02
"""Nor when consumers fall behind by more of what was due; half a second of load is no growth."""
LEAST_SEEN = 0.8
"""With records of fewer seconds nothing can be said."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """`is_sustained` is None where too little was recorded to tell; `why` is for people.

    A refusal is certain where the schedule could not be kept at all; anything less may have passed by now.
    """

    is_sustained: bool | None
    why: str
    is_certain: bool = False


def judged(
    seconds: Sequence[LoadSecond],
    rate: Fraction,
    publish_p99_ns: int,
    producers: int,
    consumers: int,
) -> Outcome:
    """Judge `seconds` at `rate` a second of all processes; one without all their records does not count."""
    whole = [one for one in seconds if one.producers >= producers and one.consumers >= consumers]
    missed = sum(one.missed for one in seconds)
    if not missed and len(whole) < max(1, LEAST_SEEN * len(seconds)):
        return Outcome(None, f"only {len(whole)} of {len(seconds)} s were recorded")
    why = f"{missed:.0f} sends were missed" if missed else _objection(whole, rate, publish_p99_ns)
    if not why:
        return Outcome(True, "sustained")
    ours = [one.untrusted for one in whole if one.untrusted]
    if ours:
        why += f"; this client was the bottleneck in {len(ours)} of {len(whole)} s ({ours[0]})"
    return Outcome(False, why, is_certain=bool(missed))


def _objection(seconds: Sequence[LoadSecond], rate: Fraction, publish_p99_ns: int) -> str:
    due, acked = float(rate) * len(seconds), sum(one.acked for one in seconds)
    if acked + 1 < LEAST_ACKED * due:
        return f"only {acked / due:.1%} of what was due was acknowledged"
    behind = median(one.schedule_lag for one in _thirds(seconds)[-1])
    if behind > MOST_BEHIND_SECONDS:
        return f"sends were {behind:.3g} s late in the end"
    slow = median(one.publish_p99 for one in seconds)
    if slow > publish_p99_ns / SECOND_NS:
        return f"publish p99 was {slow:.3g} s, above {format_duration(publish_p99_ns)}"
    growth = _lag_growth(seconds, float(rate))
    return f"consumer lag grew by {growth:.0f} messages a second" if growth else ""


def _thirds(seconds: Sequence[LoadSecond]) -> tuple[Sequence[LoadSecond], Sequence[LoadSecond]]:
    """Return the first and the last third, at least one second each."""
    size = max(1, len(seconds) // 3)
    return seconds[:size], seconds[-size:]


def _lag_growth(seconds: Sequence[LoadSecond], rate: float) -> float:
    """Return by how much the lag of the slowest subscription grew a second; 0 where that is not too much.

    Medians of the first and the last third are compared: one slow fetch is no growth.
    """
    first, last = _thirds(seconds)
    apart = len(seconds) - len(last)
    fastest = 0.0
    for subscription in first[0].lag:
        before, after = (_lags(third, subscription) for third in (first, last))
        grown = median(after) - median(before) if before and after else 0.0
        if grown > max(MOST_LAG_GROWTH * rate * apart, rate / 2):
            fastest = max(fastest, grown / max(1, apart))
    return fastest


def _lags(seconds: Sequence[LoadSecond], subscription: int) -> list[float]:
    found = (one.lag.get(subscription, math.nan) for one in seconds)
    return [lag for lag in found if not math.isnan(lag)]
