"""The drive itself answers later throughout, writes and flushes alike, with no more to do.

Method:  on one drive the mean time of a write steps up at the onset, and that of a flush by half as many
         seconds or by the same ratio, while bytes, requests and discards do not grow, and the drive was not
         written over once. On a drive that is busy all the time flushes wait for writes: seconds alone count.
Assumes: garbage collection holds up writes, and what a drive does not promise to have stored can wait. How
         much was written before anybody looked is not known, so that the score is only just enough.
"""

from __future__ import annotations

from detectors import cause_scores
from detectors.causes import _drives
from detectors.causes._drives import Drive
from detectors.causes._moves import share, told
from detectors.nearby import Nearby
from soak.core.model import Change, Explanation

NEXT = "see the drive's health and limits: smartctl, a cloud's throttling"

_SLOWER = 1.5
_LEAST_SHARE = 0.2


def explain(change: Change, nearby: Nearby) -> Explanation | None:
    """Return the drive that slowed most; None when there is none, or something else slowed it."""
    return _drives.surest(change, nearby, _slow)


def _slow(drive: Drive, change: Change, nearby: Nearby) -> Explanation | None:
    write, flush = drive.risen(_drives.WRITE_AWAIT, _SLOWER), drive.flush
    if write is None or flush is None or not drive.is_slow_throughout:
        return None
    turns = _drives.turnover(drive.place, change, nearby)
    if _drives.WRITTEN not in drive.moves or drive.more_io() or _drives.is_worn(turns):
        return None
    part = 1.0 if drive.is_saturated else max(share(write, change), share(flush, change))
    if part < _LEAST_SHARE:
        return None
    evidence = (
        told(write, change),
        told(flush, change),
        _drives.told_work(drive.moves[_drives.WRITTEN]),
        _drives.told_wear(turns),
    )
    return Explanation("slow_drive", cause_scores.graded(cause_scores.LIKELY, part), evidence)
