"""A clock was set: between hosts end-to-end latency is told by wall clocks, and these moved.

Method:  the clock of a producer's or the consumer's host steps at the onset by about as much as end-to-end
         latency does, and the latency of publishing, which one clock measures, stays.
Assumes: producers and consumers on different hosts; on one host no clock step is seen in latency at all.
"""

from __future__ import annotations

from detectors.causes import _scores
from detectors.causes._moves import are_calm, moves, near
from detectors.channels import column_of, host_of, source_of
from detectors.nearby import Nearby, TimedEvent, when
from soak.core import wording
from soak.core.model import Change, Evidence, Explanation

NEXT = "see who set a host's clock: chronyc tracking, timedatectl"

KIND = "clock_step"
_END_TO_END, _PUBLISH = "end_to_end_latency_seconds", "publish_latency_seconds"
_LEAST_RATIO, _MOST_RATIO = 0.5, 2.0


def explain(change: Change, nearby: Nearby) -> Explanation | None:
    """Return the clock step at the onset that is as large as the step of latency, or None."""
    column = column_of(change.series)
    if column.metric != _END_TO_END:
        return None
    first, last = near(change)
    hosts = {
        host_of(source) for source in map(source_of, nearby.series) if _takes_part(source, change)
    }
    steps = [
        one
        for one in nearby.events
        if one.event.kind == KIND
        and first <= one.k <= last
        and (not one.source or host_of(one.source) in hosts)
    ]
    if not steps:
        return None
    largest = max(steps, key=_size)
    part = _size(largest) / (change.after - change.before)
    if not _LEAST_RATIO <= part <= _MOST_RATIO:
        return None
    quantile = dict(column.labels).get("quantile", "0.99")
    published = moves(_PUBLISH, change, nearby, quantile=quantile)
    if published and not are_calm(published):
        return None
    band = _scores.CERTAIN if published else _scores.LIKELY
    return Explanation(
        "clock", _scores.graded(band, min(part, 1.0 / part)), (_stepped(largest, change),)
    )


def _takes_part(source: str, change: Change) -> bool:
    """True for the consumer whose latency this is, and for every producer."""
    return source == source_of(change.series) or source.startswith("produce.")


def _size(step: TimedEvent) -> float:
    return abs(float(step.event.fields.get("seconds", 0.0)))


def _stepped(step: TimedEvent, change: Change) -> Evidence:
    return Evidence(
        f"A clock was set by {wording.amount(_size(step), 'seconds')} {when(step.k - change.onset_k)} of the "
        f"step, which is {wording.amount(change.after - change.before, 'seconds')}: end-to-end latency "
        f"between hosts is a difference of their clocks.",
        {"clock_step_seconds": float(step.event.fields.get("seconds", 0.0))},
    )
