"""Consumers catch up: a backlog drains, old messages are read from the drive, and others wait meanwhile.

Method:  a backlog has its peak at the onset and falls steadily from then on. More read than sent since, and
         reads on the drive, make it stronger.
Assumes: the backlog is told: ours by the consumers, others' by the brokers.
"""

from __future__ import annotations

from detectors import cause_scores
from detectors.causes import _drives, _load
from detectors.causes._load import Drain
from detectors.causes._moves import moves, risen, told
from detectors.nearby import Nearby, when
from soak.core import wording
from soak.core.model import Change, Evidence, Explanation
from soak.core.series import parse_series, source_of

NEXT = "find the consumers that read old data; limit them with a quota"

_READ_MORE = 1.1


def explain(change: Change, nearby: Nearby) -> Explanation | None:
    """Return the drain that began at the onset, or None."""
    drain = _load.draining(change, nearby)
    if drain is None:
        return None
    received = risen(
        [
            one
            for metric in ("received_messages", "consume_rate")
            for one in moves(metric, change, nearby)
        ],
        _READ_MORE,
    )
    read = risen(
        [
            drive.moves[_drives.READ]
            for drive in _drives.drives(change, nearby)
            if _drives.READ in drive.moves
        ]
    )
    beside = [told(one, change) for one in (received, read) if one is not None]
    band = cause_scores.CERTAIN if beside else cause_scores.STRONG
    fallen = 1.0 - drain.end / drain.peak
    return Explanation(
        "catch_up_read", cause_scores.graded(band, fallen), (_drained(drain, change), *beside)
    )


def _drained(drain: Drain, change: Change) -> Evidence:
    unit = parse_series(drain.series).unit or "messages"
    return Evidence(
        f"A backlog began to drain {when(drain.from_k - change.onset_k)} of the step: "
        f"{wording.title(drain.series)} of {source_of(drain.series)} fell from "
        f"{wording.amount(drain.peak, unit)} to {wording.amount(drain.end, unit)} "
        f"in {wording.span(drain.seconds)}.",
        {"peak": drain.peak, "end": drain.end, "from_k": drain.from_k, "seconds": drain.seconds},
    )
