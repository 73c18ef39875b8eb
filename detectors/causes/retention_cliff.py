"""Deletion of old segments: latency steps at the first one, and is high whenever one goes on.

Method:  the first deletion must lie at the onset (at most 3 s before its interval, 2 s after it), or the
         rate of deletions must have risen there threefold; then seconds with a deletion are compared with
         those without, against deletions each moved by seconds. Locked to them is enough by itself; the
         time of the onset is so only where nearly every second lies close after a deletion, so that
         nothing could be compared.
Assumes: deletions are told within two seconds, and cost latency within two.
"""

from __future__ import annotations

from math import log10

import numpy as np
from numpy.typing import NDArray

from detectors.causes import _locking
from detectors.causes._locking import Locking
from detectors.nearby import Nearby, when
from soak.core import wording
from soak.core.model import Change, Evidence, Explanation

KIND = "retention_deletion"
_NEAR = 3  # seconds from the onset that its interval may reach, or it would catch any deletion
_LEAD = 3  # that a deletion may come before what it costs
_LATE = 2  # or be told after it: polled once a second
_RATE_SECONDS = 60
_JUST_SECONDS = 10
_RATE_ROSE = 3.0
_MOST_P = 0.01
_LEAST_EXPLAINED = 0.3
_SEED = 1

_STARTED_AND_LOCKED = 0.95
_STARTED = 0.8  # and nearly every second lies close after a deletion
_ONLY_LOCKED = 0.65
_ONLY_STARTED = 0.4  # below the bar: the two may have met by chance
_LEAST_DELETIONS = 5  # seconds with one, before their time alone tells anything
_MOST_FREE_RATIO = 0.05  # of the seconds, that lie close after no deletion


def explain(change: Change, nearby: Nearby) -> Explanation | None:
    """Return what deletions have to do with an upward step of latency; None when nothing."""
    deletions = nearby.event_ks(KIND)
    first, last = _near(change)
    if change.direction == "down" or deletions.size == 0 or deletions[0] > last:
        return None
    start = _started(change, nearby, deletions, (first, last))
    locking = _locked(change, nearby, deletions)
    explained = 0.0 if locking is None else _explained(change, locking)
    is_locked = locking is not None and locking.p_value <= _MOST_P and explained >= _LEAST_EXPLAINED
    if start is None and not is_locked:
        return None
    evidence = [] if start is None else [start]
    is_dense = not is_locked and _is_dense(change, nearby, deletions)
    evidence.append(_evidence(change, nearby, deletions, None if is_dense else locking, explained))
    if start is None:
        score = _ONLY_LOCKED
    elif is_locked:
        score = _STARTED_AND_LOCKED
    else:
        score = _STARTED if is_dense else _ONLY_STARTED
    return Explanation("retention_cliff", score, tuple(evidence))


def _near(change: Change) -> tuple[int, int]:
    """Return the seconds, both included, in which a deletion is at the onset."""
    low, high = change.interval
    onset = change.onset_k
    return max(low, onset - _NEAR) - _LEAD, min(high, onset + _NEAR) + _LATE


def _is_dense(change: Change, nearby: Nearby, deletions: NDArray[np.int64]) -> bool:
    """True when too few seconds since the onset lie clear of deletions, of which there are enough."""
    seconds = np.arange(change.onset_k, nearby.soak_end(change.onset_k))
    held = np.isin(seconds, deletions)
    close = np.isin(seconds, np.concatenate([deletions + lag for lag in _locking.LAGS]))
    most = max(_locking.LEAST_SECONDS - 1.0, _MOST_FREE_RATIO * seconds.size)
    is_most = 2 * np.count_nonzero(close) > seconds.size
    return bool(
        np.count_nonzero(held) >= _LEAST_DELETIONS and is_most and np.count_nonzero(~close) <= most
    )


def _started(
    change: Change, nearby: Nearby, deletions: NDArray[np.int64], interval: tuple[int, int]
) -> Evidence | None:
    low, high = interval
    first = int(deletions[0])
    if nearby.earlier_events.get(KIND, 0) == 0 and low <= first <= high:
        event = next(e.event for e in nearby.events if e.k == first and e.event.kind == KIND)
        fields = event.fields
        bytes_ = float(fields.get("bytes", 0.0))
        what = f"topic {fields.get('topic', '?')}, partition {fields.get('partition', '?')}"
        if bytes_ > 0.0:
            what += f", about {wording.amount(bytes_, 'bytes')}"
        return Evidence(
            f"The first deletion of old segments in this run came "
            f"{when(first - change.onset_k)} of the step ({what}); "
            f"there was none in the {max(0, first - nearby.k0)} s before.",
            {"first_deletion_k": first, "seconds_after_onset": first - change.onset_k},
        )
    return _rose(change, nearby, deletions, interval)


def _rose(
    change: Change, nearby: Nearby, deletions: NDArray[np.int64], interval: tuple[int, int]
) -> Evidence | None:
    onset, (low, high) = change.onset_k, interval
    if not np.any((deletions >= low) & (deletions <= high)):
        return None
    seconds = min(_RATE_SECONDS, low - nearby.k0, nearby.soak_end(onset) - onset)
    if seconds < _RATE_SECONDS // 3:
        return None
    before = int(np.count_nonzero((deletions >= low - seconds) & (deletions < low)))
    after = int(np.count_nonzero((deletions >= onset) & (deletions < onset + seconds)))
    just_before = int(np.count_nonzero((deletions >= low - _JUST_SECONDS) & (deletions < low)))
    was = max(before / seconds, just_before / _JUST_SECONDS, 1.0 / seconds)  # it rose at the onset
    if after / seconds < _RATE_ROSE * was or after < _locking.LEAST_SECONDS:
        return None
    return Evidence(
        f"In the {seconds} s since the onset of the step {after} seconds held deletions of old "
        f"segments, in the {seconds} s before it {before}.",
        {"seconds_with_deletions_after": after, "seconds_with_deletions_before": before},
    )


def _locked(change: Change, nearby: Nearby, deletions: NDArray[np.int64]) -> Locking | None:
    series = nearby.series.get(change.series)
    if series is None:
        return None
    low, high = np.searchsorted(series.k, [change.onset_k, nearby.soak_end(change.onset_k)])
    return _locking.measured(series.k[low:high], series.values[low:high], deletions, _SEED)


def _explained(change: Change, locking: Locking) -> float:
    """Return the share of the step, on log10, that is absent from seconds without a deletion."""
    floor = 1e-6
    step = log10(max(change.after, floor) / max(change.before, floor))
    contrast = log10(max(locking.median_with, floor) / max(locking.median_without, floor))
    return max(0.0, min(1.0, contrast / step))


def _evidence(
    change: Change,
    nearby: Nearby,
    deletions: NDArray[np.int64],
    locking: Locking | None,
    explained: float,
) -> Evidence:
    end = nearby.soak_end(change.onset_k)
    held = int(np.count_nonzero((deletions >= change.onset_k) & (deletions < end)))
    since = f"Of the {end - change.onset_k} s since the onset of the step {held} held a deletion"
    quantity = wording.title(change.series)
    if locking is None:
        return Evidence(
            f"{since}: too few lie clear of one, or close after one, to compare their {quantity}, "
            f"so there is only the time of the onset.",
            {"seconds_with_deletions": held, "seconds": end - change.onset_k},
        )
    lag = f" {locking.lag_seconds} s after" if locking.lag_seconds else " with"
    return Evidence(
        f"{since}: the median {quantity} of seconds{lag} a deletion was "
        f"{wording.amount(locking.median_with, 'seconds')}, of the others "
        f"{wording.amount(locking.median_without, 'seconds')} (permutation test, p = {locking.p_value:.2g}); "
        f"deletions explain {explained:.0%} of the step.",
        {
            "seconds_with": locking.seconds_with,
            "seconds_without": locking.seconds_without,
            "median_with": locking.median_with,
            "median_without": locking.median_without,
            "p_value": locking.p_value,
            "explained_ratio": explained,
        },
    )
