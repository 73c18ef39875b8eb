"""A broker's JVM stops to collect garbage, and whoever waits for it waits as long.

Method:  pauses long enough to matter (a quarter of the step, 5 ms at least) begin at the onset, or come
         there three times as often, and latency is locked to them (`_repeated.py`). Shorter ones matter
         together where they take much of a second. Where only the time a second is known, as of a metrics
         page, that must step at the onset, and between two looks at it by a quarter of the step at least: no
         pause is longer than it. Of looks far apart that is not sure.
         On a CPU that runs short usual pauses last longer, too: what latency is not locked to is sure
         only where it takes more of the time than G1 allows itself.
Assumes: the log is a broker's. Concurrent collectors tell of threads that wait for memory as `gc_stall`; of
         these a page may count work that stops nobody: beside a log of the same host it is not sure.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from detectors import affected_brokers, cause_scores
from detectors.causes._moves import Move, end_of, moves, risen, spacing_of, told
from detectors.causes._repeated import Words, repeated
from detectors.nearby import Nearby, between
from soak.core import wording
from soak.core.model import Change, Evidence, Explanation
from soak.core.series import host_of, parse_series, source_of

NEXT = "see the broker's GC log: heap, collector, what allocates"

KINDS = ("gc_pause", "gc_stall")
_WORDS = Words("a long pause", "pauses", "long pauses of the JVM", "long pause of the JVM")
_SUMS = ("jvm_gc_pause_seconds", "jvm_gc_stall_seconds")  # of a log, by second
_COLLECTIONS = "jvm_gc_collection_seconds"  # of a page
_OF_STEP = 0.25
_LEAST_SECONDS = 0.005
_ALL = 0.5  # of the time between two looks at a page: more is hardly told of any pause
_LEAST_SHARE = 0.03  # of a second, stopped
_MUCH = 1.0 / 13.0  # of the time: beyond it G1 asks for a larger heap (-XX:GCTimeRatio=12)
_ROSE = 2.0
_UNSURE = 0.55  # the score then: below what tells of the CPU


@dataclass(frozen=True, slots=True)
class _Pause:
    """A pause that a log told of by itself."""

    k: int
    seconds: float
    log: tuple[str, str]  # host and name: of one JVM


def explain(change: Change, nearby: Nearby) -> Explanation | None:
    """Return what pauses for garbage have to do with a step; None when nothing."""
    pauses = _pauses(nearby)
    longest = _long_pauses(pauses, change, nearby)
    ks = np.array(sorted(longest), np.int64)
    found = repeated(ks, _WORDS, change, nearby)
    if found is None:
        return None if ks.size else _stopped(pauses, change, nearby)
    score = cause_scores.graded(found.score, found.explained)
    if found.is_dense and not _are_much(pauses, change, nearby):
        score = _UNSURE
    return Explanation("gc_pause", score, (*found.evidence, _lengths(ks, longest, change)))


def _pauses(nearby: Nearby) -> list[_Pause]:
    return [
        _Pause(
            one.k,
            float(one.event.fields.get("pause_seconds", 0.0)),
            (one.source, str(one.event.fields.get("log", ""))),
        )
        for one in nearby.events
        if one.event.kind in KINDS
    ]


def _long_pauses(pauses: list[_Pause], change: Change, nearby: Nearby) -> dict[int, float]:
    """Return second to the longest pause in it, or their sum, of those long enough to matter."""
    least = max(_LEAST_SECONDS, _OF_STEP * (change.after - change.before))
    found: dict[int, float] = {}
    for one in pauses:
        if one.seconds >= least:
            found[one.k] = max(one.seconds, found.get(one.k, 0.0))
    if found:
        return found
    for metric in _SUMS:
        for name, series in nearby.named(metric).items():
            # then each pause is known, and that it is too short
            is_known = any(one.log[0] in ("", source_of(name)) for one in pauses)
            is_long = series.values >= (max(least, _MUCH) if is_known else least)
            for k, seconds in zip(series.k[is_long], series.values[is_long], strict=True):
                found[int(k)] = max(float(seconds), found.get(int(k), 0.0))
    return found


def _are_much(pauses: list[_Pause], change: Change, nearby: Nearby) -> bool:
    """True when the pauses of one JVM took so much of the time since the onset as usual ones never do."""
    first, end = change.onset_k, end_of(change, nearby)
    stopped: dict[tuple[str, str], float] = {}
    for one in pauses:
        if first <= one.k < end:
            stopped[one.log] = stopped.get(one.log, 0.0) + one.seconds
    sums = [
        float(between(series, first, end).sum())
        for metric in (() if stopped else _SUMS)
        for series in nearby.named(metric).values()
    ]
    return max([*stopped.values(), *sums], default=0.0) >= _MUCH * (end - first)


def _lengths(ks: NDArray[np.int64], longest: dict[int, float], change: Change) -> Evidence:
    since = [longest[int(k)] for k in ks if k >= change.onset_k] or list(longest.values())
    middle, longest_one = float(np.median(since)), max(since)
    return Evidence(
        f"The JVM's long pauses took {wording.amount(middle, 'seconds')} in the median and "
        f"{wording.amount(longest_one, 'seconds')} at most.",
        {"pause_median_seconds": middle, "pause_max_seconds": longest_one},
    )


def _stopped(pauses: list[_Pause], change: Change, nearby: Nearby) -> Explanation | None:
    """Return what the time in collections a second tells by itself."""
    found = [
        one
        for one in moves(_COLLECTIONS, change, nearby)
        if one.after >= _LEAST_SHARE and _are_long(one, change, nearby)
    ]
    worst = risen(found, _ROSE)
    if worst is None:
        return None
    is_sure = (
        worst.after >= _MUCH
        and worst.after - worst.before >= _least(change)
        and not _has_log(worst, pauses)
    )
    share = worst.after / _LEAST_SHARE / 10.0
    score = cause_scores.graded(cause_scores.STRONG, share) if is_sure else _UNSURE
    return Explanation("gc_pause", score, (told(worst, change),))


def _are_long(rise: Move, change: Change, nearby: Nearby) -> bool:
    """True when one pause between two looks at a page may be long enough to matter.

    A page that is read each 15 s tells of a pause of 1.5 s as of 0.1 s in each second; it tells so of many
    short ones as well.
    """
    spacing = spacing_of(nearby.series[rise.series])
    return (rise.after - rise.before) * spacing >= _least(change, spacing)


def _least(change: Change, seconds: int = 1) -> float:
    """Return how long collections must take of so many seconds to be a part of the step."""
    return min(_OF_STEP * (change.after - change.before), _ALL * seconds)


def _has_log(rise: Move, pauses: list[_Pause]) -> bool:
    """True when pauses are told one by one where a page is read, or on the host that it is of."""
    here = host_of(source_of(rise.series))
    target = dict(parse_series(rise.series).labels).get("target", "")
    logs = {host_of(one.log[0]) for one in pauses}
    return any(host in ("", here) or affected_brokers.is_on(target, host) for host in logs)
