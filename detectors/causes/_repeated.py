"""Events that come again and again: did they begin at the onset, and is latency high whenever one is there?

Method:  the first event of the run must lie at the onset (at most 3 s before its interval, 2 s after it), or
         their rate must have risen there threefold; then seconds with an event are compared with those
         without, against events each moved by seconds. Locked to them is enough by itself, unless latency was
         so before the step; the time of the onset is so only where nearly every second lies close after an
         event, so that nothing could be compared.
Assumes: events are told within two seconds, and cost latency within two.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log10

import numpy as np
from numpy.typing import NDArray

from detectors.causes import _locking, _scores
from detectors.causes._locking import Locking
from detectors.causes._moves import end_of, near
from detectors.nearby import Nearby, when
from soak.core import wording
from soak.core.model import Change, Evidence

_RATE_SECONDS = 60
_JUST_SECONDS = 10
_RATE_ROSE = 3.0
_MOST_P = 0.01
_LEAST_EXPLAINED = 0.2
_CLEARLY_SLOWER = 1.5  # noise grows with the level: less of it is no share in seconds
_SEED = 1
_FLOOR = 1e-6  # seconds: no latency is shorter
_LEAST_SECONDS_WITH = 5  # before their time alone tells anything
_MOST_FREE_RATIO = 0.05  # of the seconds, that lie close after no event


@dataclass(frozen=True, slots=True)
class Words:
    """How an event is called: `a deletion`, `deletions`, `deletions of old segments`, `explain`."""

    one: str
    many: str
    whole: str  # plural in full, as in `deletions of old segments`
    first: str  # singular in full, as in `deletion of old segments`


@dataclass(frozen=True, slots=True)
class Repeated:
    """What repeated events have to do with a step: a score in the bands of `_scores`, and why.

    `is_dense`: nothing could be compared, as nearly every second lies close after one; they may explain all.
    """

    score: float
    explained: float
    evidence: tuple[Evidence, ...]
    is_dense: bool = False


def repeated(
    ks: NDArray[np.int64],
    words: Words,
    change: Change,
    nearby: Nearby,
    *,
    earlier: int | None = None,
    about_first: str = "",
) -> Repeated | None:
    """Return how events in the seconds `ks`, ascending, explain a step; None when they do not.

    `earlier` is how many there were in the run before the window, None where that is not known; `about_first`
    tells more of the first one.
    """
    if ks.size == 0 or ks[0] > near(change)[1]:
        return None
    start = _first(ks, words, change, nearby, earlier, about_first) or _rose(
        ks, words, change, nearby
    )
    locking = _locked(ks, change, nearby)
    explained = 0.0 if locking is None else explained_ratio(change, locking)
    is_locked = (
        locking is not None
        and locking.p_value <= _MOST_P
        and explained >= _LEAST_EXPLAINED
        and (start is not None or not _was_locked(ks, change, nearby, locking))
    )
    if start is None and not is_locked:
        return None
    is_dense = not is_locked and _is_dense(ks, change, nearby)
    told = _told(ks, words, change, nearby, None if is_dense else locking, explained)
    if is_locked:
        band = _scores.CERTAIN if start is not None else _scores.LIKELY
    else:
        band = _scores.STRONG if is_dense else _scores.WEAK
    return Repeated(
        band,
        1.0 if is_dense else explained,
        (told,) if start is None else (start, told),
        is_dense=is_dense,
    )


def _first(
    ks: NDArray[np.int64],
    words: Words,
    change: Change,
    nearby: Nearby,
    earlier: int | None,
    about: str,
) -> Evidence | None:
    (low, high), first = near(change), int(ks[0])
    if earlier or not low <= first <= high:
        return None
    calm = max(0, first - nearby.k0)
    since = f"in {calm} s" if earlier is None and nearby.k0 > 0 else "in this run"
    return Evidence(
        f"The first {words.first} {since} came {when(first - change.onset_k)} of the step{about}; "
        f"there was none in the {calm} s before.",
        {"first_k": first, "seconds_after_onset": first - change.onset_k},
    )


def _rose(ks: NDArray[np.int64], words: Words, change: Change, nearby: Nearby) -> Evidence | None:
    onset, (low, high) = change.onset_k, near(change)
    if not np.any((ks >= low) & (ks <= high)):
        return None
    seconds = min(_RATE_SECONDS, low - nearby.k0, nearby.soak_end(onset) - onset)
    if seconds < _RATE_SECONDS // 3:
        return None
    before = int(np.count_nonzero((ks >= low - seconds) & (ks < low)))
    after = int(np.count_nonzero((ks >= onset) & (ks < onset + seconds)))
    just_before = int(np.count_nonzero((ks >= low - _JUST_SECONDS) & (ks < low)))
    was = max(before / seconds, just_before / _JUST_SECONDS, 1.0 / seconds)  # it rose at the onset
    if after / seconds < _RATE_ROSE * was or after < _locking.LEAST_SECONDS:
        return None
    return Evidence(
        f"In the {seconds} s since the onset of the step {after} seconds held {words.whole}, "
        f"in the {seconds} s before it {before}.",
        {"seconds_after": after, "seconds_before": before},
    )


def _is_dense(ks: NDArray[np.int64], change: Change, nearby: Nearby) -> bool:
    """True when too few seconds since the onset lie clear of events, of which there are enough."""
    seconds = np.arange(change.onset_k, end_of(change, nearby))
    held = np.isin(seconds, ks)
    close = np.isin(seconds, np.concatenate([ks + lag for lag in _locking.LAGS]))
    most = max(_locking.LEAST_SECONDS - 1.0, _MOST_FREE_RATIO * seconds.size)
    is_most = 2 * np.count_nonzero(close) > seconds.size
    return bool(
        np.count_nonzero(held) >= _LEAST_SECONDS_WITH
        and is_most
        and np.count_nonzero(~close) <= most
    )


def _locked(ks: NDArray[np.int64], change: Change, nearby: Nearby) -> Locking | None:
    return _locking_in(ks, change, nearby, change.onset_k, end_of(change, nearby))


def _was_locked(ks: NDArray[np.int64], change: Change, nearby: Nearby, locking: Locking) -> bool:
    """True when the same events cost half as much, or more, before the step: then they did not make it."""
    start = nearby.soak_start(change.onset_k)
    before = _locking_in(ks, change, nearby, start, change.interval[0])
    if before is None or before.p_value > _MOST_P:
        return False
    return 2.0 * contrast(before) >= contrast(locking)


def _locking_in(
    ks: NDArray[np.int64], change: Change, nearby: Nearby, start: int, stop: int
) -> Locking | None:
    series = nearby.series.get(change.series)
    if series is None:
        return None
    low, high = np.searchsorted(series.k, [start, stop])
    if high - low < 2 * _locking.LEAST_SECONDS:
        return None
    return _locking.measured(series.k[low:high], series.values[low:high], ks, _SEED)


def contrast(locking: Locking) -> float:
    return log10(max(locking.median_with, _FLOOR) / max(locking.median_without, _FLOOR))


def explained_ratio(change: Change, locking: Locking) -> float:
    """Return the share of the step that is absent from seconds without an event.

    As a ratio or, of seconds half as slow again, in seconds, the larger: beside another cause, which adds to
    it, the ratio is small.
    """
    step = log10(max(change.after, _FLOOR) / max(change.before, _FLOOR))
    if step <= 0.0:
        return 0.0
    found = contrast(locking) / step
    if locking.median_with >= _CLEARLY_SLOWER * locking.median_without:
        seconds = locking.median_with - locking.median_without
        found = max(found, seconds / (change.after - change.before))
    return max(0.0, min(1.0, found))


def _told(
    ks: NDArray[np.int64],
    words: Words,
    change: Change,
    nearby: Nearby,
    locking: Locking | None,
    explained: float,
) -> Evidence:
    end = end_of(change, nearby)
    held = int(np.count_nonzero((ks >= change.onset_k) & (ks < end)))
    since = f"Of the {end - change.onset_k} s since the onset of the step {held} held {words.one}"
    quantity = wording.title(change.series)
    if locking is None:
        return Evidence(
            f"{since}: too few lie clear of one, or close after one, to compare their {quantity}, "
            f"so there is only the time of the onset.",
            {"seconds_with": held, "seconds": end - change.onset_k},
        )
    lag = f" {locking.lag_seconds} s after" if locking.lag_seconds else " with"
    return Evidence(
        f"{since}: the median {quantity} of seconds{lag} {words.one} was "
        f"{wording.amount(locking.median_with, 'seconds')}, of the others "
        f"{wording.amount(locking.median_without, 'seconds')} (permutation test, p = {locking.p_value:.2g}); "
        f"{words.many} explain {explained:.0%} of the step.",
        {
            "seconds_with": locking.seconds_with,
            "seconds_without": locking.seconds_without,
            "median_with": locking.median_with,
            "median_without": locking.median_without,
            "p_value": locking.p_value,
            "explained_ratio": explained,
        },
    )
