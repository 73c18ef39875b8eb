"""Flushes wait: above an innocent device, for a limit or a journal, or with a drive that is slow throughout.

Method:  the latency of fsync, or of a bookie's journal sync, steps up at the onset, while the device's time
         a write, its busy time and its load stay; or the device slows with no more to do, its flushes by as
         much as its writes, before it was written over once. What a busy CPU adds
         (`fsync_schedule_lag_seconds`) does not count.
Assumes: the device's own numbers are known; without them nothing tells this from a slow drive.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from detectors.causes import _drives, _innocence, _scores
from detectors.causes._drives import Drive
from detectors.causes._moves import Move, moves, risen, share, told
from detectors.nearby import Nearby
from soak.core.model import Change, Evidence, Explanation

_METRICS = (
    "fsync_latency_seconds",
    "bookie_journal_JOURNAL_SYNC_floor_seconds",
    "bookie_journal_JOURNAL_SYNC_seconds",
)
_QUANTILES = ("0.5", "0.99", None)
_SLOWER = 1.5
_LEAST_SHARE = 0.25
_OF_FLUSH = 0.5


def explain(change: Change, nearby: Nearby) -> Explanation | None:
    """Return the flush that slowed on a device that did not; None when there is none."""
    flush = risen(_flushes(change, nearby), _SLOWER)
    if flush is None or share(flush, change) < _LEAST_SHARE:
        return None
    lag = risen(moves("fsync_schedule_lag_seconds", change, nearby))
    if lag is not None and lag.after - lag.before >= _OF_FLUSH * (flush.after - flush.before):
        return None
    known = [drive for drive in _drives.drives(change, nearby) if drive.is_known]
    guilty = [drive for drive in known if _innocence.is_guilty(drive)]
    part = share(flush, change)
    if known and not guilty:
        score = _scores.graded(_scores.STRONG, part)
        return Explanation("slow_fsync", score, (told(flush, change), _innocent(known)))
    slow = next((drive.flush for drive in guilty if _is_slow(drive, change, nearby)), None)
    if slow is None or len(guilty) > 1:
        return None
    score = _scores.graded(_scores.LIKELY, part)
    return Explanation("slow_fsync", score, (told(flush, change), told(slow, change)))


def _flushes(change: Change, nearby: Nearby) -> Iterable[Move]:
    for metric in _METRICS:
        for one in moves(metric, change, nearby):
            if one.label.get("quantile") in _QUANTILES:
                yield one


def _is_slow(drive: Drive, change: Change, nearby: Nearby) -> bool:
    turns = _drives.turnover(drive.place, change, nearby)
    return drive.is_slow_throughout and not drive.more_io() and not _drives.is_worn(turns)


def _innocent(known: Sequence[Drive]) -> Evidence:
    names = ", ".join(f"{drive.place[2] or '?'} of {drive.place[0]}" for drive in known)
    return Evidence(
        f"The device below did not slow and got no more to do ({names}): the flushes wait above it."
    )
