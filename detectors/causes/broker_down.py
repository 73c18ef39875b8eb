"""A broker went down: it answers nobody any more, and the others take over what it led.

Method:  a broker's page stops answering at the onset and does not come back within half a minute, and with
         it a quarter of the acknowledgements is missing for three seconds, sends fail, copies fall behind or
         leaders move; or leaders move after such three seconds, more surely when they move two seconds after
         these began: at an orderly end they move first.
Assumes: a page that alone is silent says more of the page than of the broker, so it is not enough.
"""

from __future__ import annotations

import numpy as np

from detectors import cause_scores
from detectors.causes import _background, _stalls
from detectors.causes._moves import near
from detectors.causes._stalls import Silence
from detectors.nearby import Nearby, when
from soak.core import wording
from soak.core.model import Change, Evidence, Explanation

NEXT = "check that the broker is up, and read in its log why it left"

_LONG_SECONDS = 30
_STOPPED_SECONDS = 3  # an orderly end takes less
_UNLED_SECONDS = 2  # until a cluster notices at the earliest
_FAILURES = ("failed_messages", "missed_messages")


def explain(change: Change, nearby: Nearby) -> Explanation | None:
    """Return what says that a broker ended at the onset; None when too little does."""
    gone = [one for one in _stalls.unreachable(change, nearby) if one.seconds >= _LONG_SECONDS]
    copies = _background.copying(change, nearby) or _has(change, nearby, "isr_shrink")
    led = _has(change, nearby, "leader_change")
    stopped = _stopped(change, nearby)
    beside = [
        text
        for holds, text in (
            (copies, "copies fell behind"),
            (led, "leaders moved"),
            (_has_failed(change, nearby), "sends failed"),
            (stopped is not None, _stalls.told_missing(stopped) if stopped else ""),
        )
        if holds
    ]
    if gone and beside:
        band = cause_scores.CERTAIN if led or copies else cause_scores.STRONG
    elif led and stopped is not None:
        band = cause_scores.STRONG if copies or _is_unled(stopped, nearby) else cause_scores.LIKELY
    else:
        return None
    return Explanation(
        "broker_down", cause_scores.graded(band, 1.0), _evidence(gone, beside, change)
    )


def _stopped(change: Change, nearby: Nearby) -> Silence | None:
    """Return the lack of acknowledgements around the onset; None where it was short."""
    found = _stalls.unacknowledged(change, nearby)
    return found if found is not None and found.seconds >= _STOPPED_SECONDS else None


def _is_unled(stopped: Silence, nearby: Nearby) -> bool:
    """True when acknowledgements were missing for a while before the first leader moved."""
    ks = nearby.event_ks("leader_change")
    later = ks[ks >= stopped.from_k]
    return bool(later.size and later[0] - stopped.from_k >= _UNLED_SECONDS)


def _has(change: Change, nearby: Nearby, kind: str) -> bool:
    first, last = near(change)
    ks = nearby.event_ks(kind)
    return bool(np.any((ks >= first) & (ks <= last + _LONG_SECONDS)) and not np.any(ks < first))


def _has_failed(change: Change, nearby: Nearby) -> bool:
    first, last = near(change)
    return any(
        np.any(series.values[(series.k >= first) & (series.k <= last + _LONG_SECONDS)] > 0.0)
        and not np.any(series.values[series.k < first] > 0.0)
        for metric in _FAILURES
        for series in nearby.named(metric).values()
    )


def _evidence(gone: list[Silence], beside: list[str], change: Change) -> tuple[Evidence, ...]:
    pages = tuple(
        Evidence(
            f"The metrics page of {one.what} stopped answering {when(one.from_k - change.onset_k)} of "
            f"the step, for {wording.span(one.seconds)}{'' if one.is_over else ' and longer'}.",
            {"from_k": one.from_k, "seconds": one.seconds},
        )
        for one in gone
    )
    return (*pages, Evidence(f"At the onset of the step {' and '.join(beside)}."))
