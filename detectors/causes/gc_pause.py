"""A broker's JVM stops to collect garbage, and whoever waits for it waits as long.

Method:  pauses long enough to matter (a quarter of the step, 5 ms at least) begin at the onset, or come
         there three times as often, and latency is locked to them (`_repeated.py`). Where only their time a
         second is known, as of a metrics page, that must step at the onset.
Assumes: the log is a broker's. Concurrent collectors tell of threads that wait for memory as `gc_stall`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from detectors.causes import _scores
from detectors.causes._moves import moves, risen, told
from detectors.causes._repeated import Words, repeated
from detectors.nearby import Nearby
from soak.core import wording
from soak.core.model import Change, Evidence, Explanation

NEXT = "see the broker's GC log: heap, collector, what allocates"

KINDS = ("gc_pause", "gc_stall")
_WORDS = Words("a long pause", "pauses", "long pauses of the JVM", "long pause of the JVM")
_SUMS = ("jvm_gc_pause_seconds", "jvm_gc_stall_seconds")  # of a log, by second
_SHARES = (*_SUMS, "jvm_gc_collection_seconds")
_OF_STEP = 0.25
_LEAST_SECONDS = 0.005
_LEAST_SHARE = 0.03  # of a second, stopped
_ROSE = 2.0


def explain(change: Change, nearby: Nearby) -> Explanation | None:
    """Return what pauses for garbage have to do with a step; None when nothing."""
    longest = _long_pauses(change, nearby)
    ks = np.array(sorted(longest), np.int64)
    found = repeated(ks, _WORDS, change, nearby)
    if found is not None:
        evidence = (*found.evidence, _lengths(ks, longest, change))
        return Explanation("gc_pause", _scores.graded(found.score, found.explained), evidence)
    return None if ks.size else _stopped(change, nearby)


def _long_pauses(change: Change, nearby: Nearby) -> dict[int, float]:
    """Return second to the longest pause in it, or their sum, of those long enough to matter."""
    least = max(_LEAST_SECONDS, _OF_STEP * (change.after - change.before))
    found: dict[int, float] = {}
    for one in nearby.events:
        seconds = float(one.event.fields.get("pause_seconds", 0.0))
        if one.event.kind in KINDS and seconds >= least:
            found[one.k] = max(seconds, found.get(one.k, 0.0))
    for metric in _SUMS if not found else ():
        for series in nearby.named(metric).values():
            is_long = series.values >= least
            for k, seconds in zip(series.k[is_long], series.values[is_long], strict=True):
                found[int(k)] = max(float(seconds), found.get(int(k), 0.0))
    return found


def _lengths(ks: NDArray[np.int64], longest: dict[int, float], change: Change) -> Evidence:
    since = [longest[int(k)] for k in ks if k >= change.onset_k] or list(longest.values())
    middle, longest_one = float(np.median(since)), max(since)
    return Evidence(
        f"The JVM's long pauses took {wording.amount(middle, 'seconds')} in the median and "
        f"{wording.amount(longest_one, 'seconds')} at most.",
        {"pause_median_seconds": middle, "pause_max_seconds": longest_one},
    )


def _stopped(change: Change, nearby: Nearby) -> Explanation | None:
    """Return what the time stopped a second tells by itself."""
    found = [one for metric in _SHARES for one in moves(metric, change, nearby)]
    worst = risen((one for one in found if one.after >= _LEAST_SHARE), _ROSE)
    if worst is None:
        return None
    score = _scores.graded(_scores.STRONG, worst.after / _LEAST_SHARE / 10.0)
    return Explanation("gc_pause", score, (told(worst, change),))
