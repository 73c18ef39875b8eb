"""A broker stood still and went on: stopped by a signal or a hypervisor, it answers nobody meanwhile.

Method:  at the onset questions that need no drive are answered late (a metrics page, the offsets of a log),
         or not at all for less than half a minute; or, where leaders are watched, a quarter of the
         acknowledgements is missing as long. Flushes, CPU and network must be known and calm; pauses of the
         JVM, leaders, deletions and rolls must not explain it, and the median must wait less than the tail.
Assumes: a drive that hangs shows in the flush or the device, a longer way in every message alike.
"""

from __future__ import annotations

from detectors import cause_scores
from detectors.causes import (
    _background,
    _drives,
    _innocence,
    _stalls,
    broker_down,
    gc_pause,
    leader_move,
    network,
    retention_cliff,
    segment_roll,
)
from detectors.causes._moves import moves
from detectors.causes._stalls import Late, Silence
from detectors.nearby import Nearby, when
from soak.core import wording
from soak.core.model import Change, Evidence, Explanation
from soak.core.series import parse_series, source_of

NEXT = "check if the broker was stopped or swapped, or its host migrated"

_LONG_SECONDS = 30
_EVEN = 0.7
_SOONER = (broker_down, gc_pause, leader_move, retention_cliff, segment_roll)
"""Causes that explain by themselves why a broker stood still."""


def explain(change: Change, nearby: Nearby) -> Explanation | None:
    """Return what says that a broker stood still from the onset on; None when too little does."""
    late = _stalls.late_answers(change, nearby)
    pages = [one for one in _stalls.unreachable(change, nearby) if _is_short(one)]
    stopped = _stalls.unacknowledged(change, nearby)
    if stopped is not None and not _is_short(stopped):
        return None
    if (
        late is None
        and not pages
        and (stopped is None or not _background.are_leaders_known(nearby))
    ):
        return None
    if not _is_innocent(change, nearby) or not _is_uneven(change, nearby):
        return None
    if any(_is_told(cause.explain(change, nearby)) for cause in _SOONER):
        return None
    silences = [*pages, *([stopped] if stopped is not None else [])]
    evidence = [_answered(late, change)] if late is not None else []
    evidence += [_silent(one, change) for one in silences]
    part = 1.0 if len(evidence) > 1 else 0.0
    known = any(drive.is_known for drive in _drives.drives(change, nearby))
    said = Evidence(
        f"{'Device, flushes' if known else 'Flushes'}, CPU and network were measured, and none of them "
        "rose with the step."
    )
    return Explanation(
        "broker_pause", cause_scores.graded(cause_scores.LIKELY, part), (*evidence, said)
    )


def _is_told(found: Explanation | None) -> bool:
    return found is not None and found.score > cause_scores.WEAK


def _is_short(one: Silence) -> bool:
    return one.is_over and one.seconds < _LONG_SECONDS


def _is_innocent(change: Change, nearby: Nearby) -> bool:
    return (
        _innocence.is_flush_innocent(change, nearby)
        and _innocence.is_drive_innocent(change, nearby)
        and _innocence.is_cpu_innocent(change, nearby)
        and network.is_known_calm(change, nearby)
    )


def _is_uneven(change: Change, nearby: Nearby) -> bool:
    """True when the median waits less than the tail: a longer way would delay every message alike."""
    metric = parse_series(change.series).metric
    rises = {
        quantile: max(
            (one.after - one.before for one in moves(metric, change, nearby, quantile=quantile)),
            default=None,
        )
        for quantile in ("0.5", "0.99")
    }
    middle, tail = rises["0.5"], rises["0.99"]
    return middle is None or tail is None or middle <= _EVEN * tail


def _answered(late: Late, change: Change) -> Evidence:
    return Evidence(
        f"A broker answered a request late that needs no drive: {wording.title(late.series)} of "
        f"{source_of(late.series)} was {wording.amount(late.late, 'seconds')} in {late.ratio:.0%} of the "
        f"seconds, first {when(late.from_k - change.onset_k)} of the step, and at most "
        f"{wording.amount(late.usual, 'seconds')} before.",
        {"late_seconds": late.late, "usual_seconds": late.usual, "late_ratio": late.ratio},
    )


def _silent(one: Silence, change: Change) -> Evidence:
    if one.what == "acknowledgements":
        what, then = _stalls.told_missing(one).capitalize(), "they came again"
    else:
        what, then = f"The metrics page of {one.what} gave no answer", "it gave some again"
    return Evidence(
        f"{what} for {wording.span(one.seconds)}, beginning {when(one.from_k - change.onset_k)} of the step, "
        f"and then {then}.",
        {"from_k": one.from_k, "seconds": one.seconds, "missing_ratio": one.missing_ratio},
    )
