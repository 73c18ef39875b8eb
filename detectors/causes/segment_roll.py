"""Segments roll: a new file is opened, the old one flushed, and latency is high whenever it happens.

Method:  as for deletions (`_repeated.py`), over rolls; spikes that come again need only be locked to them,
         over all that is seen. A period that the rolls keep is said.
Assumes: rolls are told within two seconds. Those in the same seconds as deletions are left to these.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from detectors import cause_scores
from detectors.causes import _background, _repeated
from detectors.causes._repeated import Repeated, Words, explained_ratio, repeated
from detectors.nearby import Nearby
from soak.core import wording
from soak.core.model import Change, Evidence, Explanation

# --- The period of events: times folded at every candidate length, and how sharply they then agree.
# Method:  Rayleigh's statistic |sum exp(2 pi i k / p)|^2 / n over candidate periods p, bursts counted
# once; the
# longest period within 10 % of the best wins, as every divisor of a period folds as well.
# Assumes: a period that is the same throughout; two combs interleaved show as one of half the length.

LEAST_EVENTS = 5
_LEAST_SECONDS = 4.0
_SHARP = 0.7  # mean resultant length of the folded times
_NEAR_BEST = 0.9
_STEPS = 2000


def period_of(ks: NDArray[np.int64], burst_seconds: int = 2) -> float | None:
    """Return the seconds between events, bursts counted once; None when they keep no period."""
    starts = ks[np.concatenate([[True], np.diff(ks) > burst_seconds])] if ks.size else ks
    if starts.size < LEAST_EVENTS:
        return None
    length = float(starts[-1] - starts[0])
    periods = 1.0 / np.linspace(1.0 / _LEAST_SECONDS, (LEAST_EVENTS - 1) / (length + 1.0), _STEPS)
    angles = 2.0 * np.pi * (starts - starts[0])[None, :] / periods[:, None]
    sharp = np.abs(np.exp(1j * angles).mean(axis=1))
    if sharp.max() < _SHARP:
        return None
    best = float(periods[sharp >= _NEAR_BEST * sharp.max()].max())
    # refined by the count of whole periods between the first and the last
    return length / max(1.0, round(length / best))


NEXT = "see the size of segments, and what is flushed when one is closed"

KINDS = ("segment_created", "segment_roll", "ledger_created", "ledger_roll")
_WORDS = Words("a roll", "rolls", "rolls of segments", "roll of a segment")
_TOGETHER = 0.5  # of the rolls within a second of a deletion
_MOST_P = 0.01
_SEED = 2


def explain(change: Change, nearby: Nearby) -> Explanation | None:
    """Return what rolls have to do with a step or with spikes of latency; None when nothing."""
    ks = np.unique(np.concatenate([nearby.event_ks(kind) for kind in KINDS]))
    if ks.size == 0 or _comes_with_deletions(ks, change, nearby):
        return None
    if change.kind == "spikes":
        found = _spikes(ks, change, nearby)
    else:
        found = repeated(ks, _WORDS, change, nearby, earlier=_earlier(nearby))
    if found is None:
        return None
    period = period_of(ks)
    told = found.evidence if period is None else (*found.evidence, _periodic(ks, period))
    return Explanation("segment_roll", cause_scores.graded(found.score, found.explained), told)


def _earlier(nearby: Nearby) -> int:
    return sum(nearby.earlier_events.get(kind, 0) for kind in KINDS)


def _comes_with_deletions(ks: NDArray[np.int64], change: Change, nearby: Nearby) -> bool:
    since = ks[ks >= change.onset_k]
    deletions = np.concatenate([nearby.event_ks(kind) for kind in _background.DELETIONS])
    close = np.isin(since, np.concatenate([deletions - 1, deletions, deletions + 1]))
    return bool(since.size) and float(close.mean()) >= _TOGETHER


def _spikes(ks: NDArray[np.int64], change: Change, nearby: Nearby) -> Repeated | None:
    series = nearby.series.get(change.series)
    if series is None:
        return None
    start, stop = nearby.soak_start(change.onset_k), nearby.soak_end(change.onset_k)
    low, high = np.searchsorted(series.k, [start, stop])
    if high - low < 2 * _repeated.LEAST_SECONDS:
        return None
    locking = _repeated.measured(
        series.k[low:high], series.values[low:high], ks, _SEED, least_seconds=4
    )
    if locking is None or locking.p_value > _MOST_P:
        return None
    explained = explained_ratio(change, locking)
    text = (
        f"The median {wording.title(change.series)} of seconds with a roll of a segment was "
        f"{wording.amount(locking.median_with, 'seconds')}, of the others "
        f"{wording.amount(locking.median_without, 'seconds')} (permutation test, p = {locking.p_value:.2g})."
    )
    numbers = {"median_with": locking.median_with, "median_without": locking.median_without}
    return Repeated(cause_scores.STRONG, explained, (Evidence(text, numbers),))


def _periodic(ks: NDArray[np.int64], period: float) -> Evidence:
    return Evidence(
        f"Segments rolled every {wording.span(period)} ({ks.size} seconds held a roll).",
        {"period_seconds": period},
    )
