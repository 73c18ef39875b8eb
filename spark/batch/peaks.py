"""Peaks of latency that belong to no incident: when, how long, and how many messages were slow in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from detectors.minimum_effect import Config as MinimumEffect
from soak.core import wording
from soak.core.series import is_client
from spark.batch.coverage import merged_spans, runs
from spark.batch.outcomes import counts_above
from spark.batch.timeline import Floats, Timeline

AROUND_SECONDS = 30
"""A peak so near to an incident belongs to it."""
_JOINED_SECONDS = 10
"""Slow seconds so near to each other are one peak."""
_SLOW_SHARE = 0.01
MOST_PEAKS = 8
"""So many, those with most slow messages, are listed."""


@dataclass(frozen=True, slots=True)
class Peak:
    """A stretch in which p99 was above the limit, with pauses of a few seconds: seconds [from_k, to_k)."""

    from_k: int
    to_k: int
    slow_messages: int  # slower than the limit
    slowest: float  # seconds; the highest threshold that one of its messages exceeded


@dataclass(frozen=True, slots=True)
class Peaks:
    """The peaks of one latency, in order of time. `limit` in seconds; slow is above it."""

    latency: str  # `end_to_end` or `publish`; "" where none was counted
    limit: float
    found: Sequence[Peak]

    @property
    def worst_first(self) -> list[Peak]:
        """Return the peaks, those with most slow messages first."""
        return sorted(self.found, key=lambda one: (-one.slow_messages, one.from_k))

    def to_json(self, timeline: Timeline) -> dict[str, object]:
        """Return what `summary.json` says: how many there are, and the largest."""
        return {
            "latency": self.latency,
            "limit_seconds": self.limit,
            "count": len(self.found),
            "largest": [
                {
                    "at": wording.iso(timeline.wall_ns(one.from_k)),
                    "seconds": one.to_k - one.from_k,
                    "slow_messages": one.slow_messages,
                    "slowest_seconds": one.slowest,
                }
                for one in self.worst_first[:MOST_PEAKS]
            ],
        }


NO_PEAKS = Peaks("", 0.0, ())


def peaks_outside(
    timeline: Timeline, incidents: Sequence[tuple[int, int]], effect: MinimumEffect
) -> Peaks:
    """Return the peaks of the soak outside of incidents, [first second, first after it) each.

    The limit is the lowest threshold that lies above the usual p99 by the minimum effect. End to end where
    it was counted, else publish.
    """
    for latency in ("end_to_end", "publish"):
        counted = counts_above(timeline, f"{latency}_latency_above_messages")
        if counted is None:
            continue
        thresholds, above = counted
        k = np.arange(above.shape[1]) * timeline.step
        is_judged = timeline.is_soak(k) & (above[0] > 0) & ~_is_invalid(timeline, above.shape[1])
        for first, last in incidents:
            is_judged &= (k + timeline.step <= first - AROUND_SECONDS) | (
                k >= last + AROUND_SECONDS
            )
        if not is_judged.any():
            return NO_PEAKS
        row = _limit(thresholds, above[:, is_judged], effect)
        if row is None:
            return NO_PEAKS
        is_slow = is_judged & (above[row] > _SLOW_SHARE * above[0])
        slow = [(a, b + 1) for a, b in runs(np.flatnonzero(is_slow))]
        found = [
            Peak(
                first * timeline.step,
                last * timeline.step,
                int(above[row, first:last].sum()),
                thresholds[int(np.flatnonzero(above[:, first:last].any(axis=1))[-1])],
            )
            for first, last in merged_spans(slow, max(1, _JOINED_SECONDS // timeline.step))
        ]
        return Peaks(latency, thresholds[row], found)
    return NO_PEAKS


def _is_invalid(timeline: Timeline, steps: int) -> NDArray[np.bool_]:
    """Return in which steps a client itself, its host or its clock was at fault."""
    found = np.zeros(steps, dtype=np.bool_)
    for source in filter(is_client, timeline.invalid):
        at = np.array(list(timeline.invalid[source]), np.int64) // timeline.step
        found[at[(at >= 0) & (at < steps)]] = True
    return found


def _limit(thresholds: Sequence[float], above: Floats, effect: MinimumEffect) -> int | None:
    """Return the place of the limit among the thresholds; None: none lies so far above the usual p99."""
    # In each step p99 lies below the threshold of this place.
    slow = (above > _SLOW_SHARE * above[0]).sum(axis=0)
    usual = thresholds[min(int(np.median(slow)), len(thresholds) - 1)]
    return next(
        (
            place
            for place, one in enumerate(thresholds)
            if one > usual and effect.is_worth(usual, one)
        ),
        None,
    )
