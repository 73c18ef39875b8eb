"""Deletion of old segments: latency steps at the first one, and is high whenever one goes on.

Method:  deletions that begin at the onset, or come there three times as often, and to which latency is
         locked (`_repeated.py`).
Assumes: deletions are told within two seconds, and cost latency within two.
"""

from __future__ import annotations

from detectors.causes._repeated import Words, repeated
from detectors.nearby import Nearby
from soak.core import wording
from soak.core.model import Change, Explanation

KIND = "retention_deletion"
_WORDS = Words("a deletion", "deletions", "deletions of old segments", "deletion of old segments")


def explain(change: Change, nearby: Nearby) -> Explanation | None:
    """Return what deletions have to do with a step of latency; None when nothing."""
    found = repeated(
        nearby.event_ks(KIND),
        _WORDS,
        change,
        nearby,
        earlier=nearby.earlier_events.get(KIND, 0),
        about_first=_about_first(nearby),
    )
    return None if found is None else Explanation("retention_cliff", found.score, found.evidence)


def _about_first(nearby: Nearby) -> str:
    first = next((e.event for e in nearby.events if e.event.kind == KIND), None)
    if first is None:
        return ""
    what = f"topic {first.fields.get('topic', '?')}, partition {first.fields.get('partition', '?')}"
    bytes_ = float(first.fields.get("bytes", 0.0))
    return f" ({what}, about {wording.amount(bytes_, 'bytes')})" if bytes_ > 0.0 else f" ({what})"
