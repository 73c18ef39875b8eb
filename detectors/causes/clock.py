"""A clock was set: between hosts end-to-end latency is told by wall clocks, and these moved.

Method:  at the onset the clock of the consumer's host is set forward, or that of a producer's host back, by
         about as much as end-to-end latency rises, and the latency of publishing, which one clock measures,
         stays. On one host latency is told by a clock that nobody sets.
Assumes: what is set is told by a daemon or a probe of that host; of a source that is not known either counts.
         All producers are known: one whose records stay on another host is taken for none.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from detectors import cause_scores
from detectors.causes._moves import are_calm, moves, near
from detectors.nearby import Nearby, TimedEvent, when
from soak.core import wording
from soak.core.model import Change, Evidence, Explanation
from soak.core.series import host_of, parse_series, source_of

NEXT = "find out which host's clock was set: chronyc tracking, timedatectl"

KIND = "clock_step"
_END_TO_END, _PUBLISH = "end_to_end_latency_seconds", "publish_latency_seconds"
_PRODUCER = "produce."
_LEAST_RATIO, _MOST_RATIO = 0.5, 2.0


def explain(change: Change, nearby: Nearby) -> Explanation | None:
    """Return the clock step at the onset that is as large as the step of latency, or None."""
    column = parse_series(change.series)
    if column.metric != _END_TO_END:
        return None
    first, last = near(change)
    here, senders = host_of(source_of(change.series)), _senders(nearby)
    if senders == {here}:
        return None
    steps = [
        one
        for one in nearby.events
        if one.event.kind == KIND and first <= one.k <= last and _raises(one, here, senders)
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
    band = cause_scores.CERTAIN if published else cause_scores.LIKELY
    return Explanation(
        "clock", cause_scores.graded(band, min(part, 1.0 / part)), (_stepped(largest, change),)
    )


def _senders(nearby: Nearby) -> set[str]:
    """Return the hosts of the producers."""
    return {
        host_of(source) for source in map(source_of, nearby.series) if source.startswith(_PRODUCER)
    }


def _raises(step: TimedEvent, here: str, senders: AbstractSet[str]) -> bool:
    """True for a clock set forward where is received, or back where is sent, or nobody knows where."""
    host, forward = host_of(step.source), _forward(step)
    is_ours = forward > 0.0 if host == here else forward < 0.0 and host in senders
    return is_ours or not step.source


def _forward(step: TimedEvent) -> float:
    """Return the seconds that a clock was set forward by, below 0 where it was set back."""
    return float(step.event.fields.get("seconds", 0.0))


def _size(step: TimedEvent) -> float:
    return abs(_forward(step))


def _stepped(step: TimedEvent, change: Change) -> Evidence:
    return Evidence(
        f"A clock was set by {wording.amount(_size(step), 'seconds')} {when(step.k - change.onset_k)} of the "
        f"step, which is {wording.amount(change.after - change.before, 'seconds')}: end-to-end latency "
        f"between hosts is a difference of their clocks.",
        {"clock_step_seconds": _forward(step)},
    )
