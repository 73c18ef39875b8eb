"""Flushes wait above an innocent device: for a limit, a journal, a lock.

Method:  the latency of fsync, or of a bookie's journal sync, steps up at the onset, while the device's time
         a write, its busy time and its load stay; or it gets no more to do, and four of its requests slowed
         by less than a tenth of what a flush did: what is held up above comes in bursts. Beside deletions
         that began at the onset, which a device feels, it may slow and discard, but on logarithms by less
         than half of what the flushes did, which must be three times slower. What a busy CPU adds
         (`fsync_schedule_lag_seconds`) does not count; where the CPU of the flush's own host ran short, for
         which a flush waits too, what took it is said first.
Assumes: the device's own numbers are known; without them nothing tells this from a slow drive. Those of
         another host are none, but for a bookie's page, which does not say what host it is of.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from detectors import cause_scores
from detectors.causes import _background, _drives, _innocence, broker_cpu
from detectors.causes._drives import Drive
from detectors.causes._moves import Move, moves, risen, share, told
from detectors.nearby import Nearby
from soak.core.model import Change, Evidence, Explanation
from soak.core.series import parse_series, source_of

NEXT = "see limits on IO (cgroups) and the filesystem above the drive"

_PROBED = "fsync_latency_seconds"
_METRICS = (
    _PROBED,
    "bookie_journal_JOURNAL_SYNC_floor_seconds",
    "bookie_journal_JOURNAL_SYNC_seconds",
)
_QUANTILES = ("0.5", "0.99", None)
_SLOWER = 1.5
_LEAST_SHARE = 0.25
_OF_FLUSH = 0.5
_REQUESTS = 4  # that a flush may wait for in turn: data, journal, its commit, the cache
_TRIFLE = 0.1
_OF_DELETIONS = 2  # power of the ratio by which the device slowed, at least that of the flushes
_BY_DELETIONS = 3.0  # deletions alone slow flushes about twice
_SHORT_OF_CPU = 0.55  # the score then: below what tells of the CPU


def explain(change: Change, nearby: Nearby) -> Explanation | None:
    """Return the flush that slowed on a device that did not; None when there is none."""
    flush = risen(_flushes(change, nearby), _SLOWER)
    if flush is None or share(flush, change) < _LEAST_SHARE:
        return None
    lag = risen(moves("fsync_schedule_lag_seconds", change, nearby))
    if lag is not None and lag.after - lag.before >= _OF_FLUSH * (flush.after - flush.before):
        return None
    known = _below(flush, change, nearby)
    slower = [drive for drive in known if _innocence.is_guilty(drive)]
    is_deleting = _background.has_begun(_background.DELETIONS, change, nearby)
    guilty = [drive for drive in slower if is_deleting or not _is_trifle(drive, flush)]
    part = share(flush, change)
    if not guilty:
        score = cause_scores.graded(cause_scores.STRONG, part)
        evidence = [told(flush, change), _trifling(slower) if slower else _innocent(known)]
        if _is_short_of_cpu(flush, change, nearby):
            score = _SHORT_OF_CPU
            evidence.append(Evidence("The CPU of its host ran short; a flush waits for that too."))
        return Explanation("slow_fsync", score, tuple(evidence)) if known else None
    if not is_deleting or not all(_is_deletions(drive, flush) for drive in guilty):
        return None
    score = cause_scores.graded(cause_scores.LIKELY, part)
    return Explanation("slow_fsync", score, (told(flush, change), _excused(guilty)))


def _flushes(change: Change, nearby: Nearby) -> Iterable[Move]:
    for metric in _METRICS:
        for one in moves(metric, change, nearby):
            if one.label.get("quantile") in _QUANTILES:
                yield one


def _below(flush: Move, change: Change, nearby: Nearby) -> list[Drive]:
    """Return the drives that may lie below a flush, as far as they are known.

    A page does not tell which host its bookie is on.
    """
    known = [drive for drive in _drives.drives(change, nearby) if drive.is_known]
    if parse_series(flush.series).metric != _PROBED:
        return known
    return [drive for drive in known if drive.place[0] == source_of(flush.series)]


def _is_short_of_cpu(flush: Move, change: Change, nearby: Nearby) -> bool:
    host = source_of(flush.series)
    return any(source_of(one.series) == host for one in broker_cpu.short(change, nearby))


def _is_trifle(drive: Drive, flush: Move) -> bool:
    """True when the work of a device did not grow and it slowed too little to explain the slower flushes."""
    write = drive.moves.get(_drives.WRITE_AWAIT)
    if write is None or drive.more_io() or drive.is_saturated:
        return False
    both = [write] if drive.flush is None else [write, drive.flush]
    longer = max(one.after - one.before for one in both)
    return _REQUESTS * longer < _TRIFLE * (flush.after - flush.before)


def _is_deletions(drive: Drive, flush: Move) -> bool:
    """True when the only new work of a device is discards, and it slowed far less than the flushes."""
    is_discarding = all(
        parse_series(one.series).metric == _drives.DISCARDS for one in drive.more_io()
    )
    write = drive.moves.get(_drives.WRITE_AWAIT)
    if write is None or drive.is_saturated:
        return False
    return is_discarding and flush.ratio >= max(_BY_DELETIONS, write.ratio**_OF_DELETIONS)


def _innocent(known: Sequence[Drive]) -> Evidence:
    return Evidence(
        f"The device below did not slow down and its work did not grow ({_names(known)}): "
        "the flushes wait above it."
    )


def _trifling(slower: Sequence[Drive]) -> Evidence:
    return Evidence(
        f"The work of the device below did not grow, and it slowed by too little to explain the step "
        f"({_names(slower)}): the flushes wait above it."
    )


def _excused(guilty: Sequence[Drive]) -> Evidence:
    return Evidence(
        f"The device below slowed by far less, and its only new work is deletions "
        f"({_names(guilty)}): the flushes wait above it."
    )


def _names(drives: Sequence[Drive]) -> str:
    return ", ".join(f"{drive.place[2] or '?'} of {drive.place[0]}" for drive in drives)
