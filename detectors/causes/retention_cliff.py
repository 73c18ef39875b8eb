"""Deletion of old segments: latency steps at the first one, and is high whenever one goes on.

Method:  deletions that begin at the onset, or come there three times as often, and to which latency is
         locked (`_repeated.py`).
Assumes: deletions are told within two seconds, and cost latency within two.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from detectors import cause_scores
from detectors.causes._repeated import Words, repeated
from detectors.nearby import Nearby
from soak.core import wording
from soak.core.model import Change, Explanation

NEXT = "see how files are deleted: filesystem, discards, size of segments"

KIND = "retention_deletion"
_KINDS = (
    KIND,
    "segment_deletion",
    "ledger_deletion",
)  # the first that is told: of one deletion each
_COUNTERS = ("vectorized_storage_log_log_segments_removed", "bookie_DELETED_LEDGERS")
_WORDS = Words("a deletion", "deletions", "deletions of old segments", "deletion of old segments")


def explain(change: Change, nearby: Nearby) -> Explanation | None:
    """Return what deletions have to do with a step of latency; None when nothing."""
    kind = next((kind for kind in _KINDS if nearby.event_ks(kind).size), None)
    ks = _counted(nearby) if kind is None else nearby.event_ks(kind)
    found = repeated(
        ks,
        _WORDS,
        change,
        nearby,
        earlier=None if kind is None else nearby.earlier_events.get(kind, 0),
        about_first=_about_first(nearby),
    )
    if found is None:
        return None
    score = cause_scores.graded(found.score, found.explained)
    return Explanation("retention_cliff", score, found.evidence)


def _counted(nearby: Nearby) -> NDArray[np.int64]:
    """Return the seconds in which a broker counted deletions, where nobody tells them one by one."""
    told = [s.k[s.values > 0.0] for metric in _COUNTERS for s in nearby.named(metric).values()]
    return np.unique(np.concatenate([np.empty(0, np.int64), *told]))


def _about_first(nearby: Nearby) -> str:
    first = next((e.event for e in nearby.events if e.event.kind == KIND), None)
    if first is None:
        return ""
    what = f"topic {first.fields.get('topic', '?')}, partition {first.fields.get('partition', '?')}"
    bytes_ = float(first.fields.get("bytes", 0.0))
    return f" ({what}, about {wording.amount(bytes_, 'bytes')})" if bytes_ > 0.0 else f" ({what})"
