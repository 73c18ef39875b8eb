"""The drive collects its own garbage: it answers writes later and is busier with no more to do.

Method:  on one drive the mean time of a write and the time spent writing step up at the onset, while bytes,
         requests and discards do not grow. How often the drive was written over says how likely it has
         run out of erased blocks; below one turn-over flushes must not have slowed as much as writes.
Assumes: the drive is the brokers'. A drive that fails, or one that a cloud throttles, looks the same from the
         host: below one turn-over the score is only just enough to be named.
"""

from __future__ import annotations

from detectors import cause_scores
from detectors.causes import _drives
from detectors.causes._drives import Drive
from detectors.causes._moves import are_calm, moves, share, told
from detectors.nearby import Nearby
from soak.core.model import Change, Evidence, Explanation

NEXT = "trim the drive (fstrim), and leave more of it unused"

_LIKE = Evidence("A drive that fails, or one that a cloud throttles, looks the same from its host.")
_SLOWER = 1.5
_LEAST_SHARE = 0.2


def explain(change: Change, nearby: Nearby) -> Explanation | None:
    """Return the drive that slowed most without more to do; None when there is none."""
    return _drives.surest(change, nearby, _slow)


def _slow(drive: Drive, change: Change, nearby: Nearby) -> Explanation | None:
    slower = drive.risen(_drives.WRITE_AWAIT, _SLOWER)
    busier = drive.risen(_drives.WRITE_TIME, _SLOWER) or drive.risen(_drives.BUSY)
    if slower is None or busier is None or _drives.WRITTEN not in drive.moves or drive.more_io():
        return None
    part = 1.0 if drive.is_saturated else share(slower, change)
    if part < _LEAST_SHARE:
        return None
    turns = _drives.turnover(drive.place, change, nearby)
    if drive.is_slow_throughout and not _drives.is_worn(turns):
        return None
    if _drives.is_worn(turns):
        is_steady = are_calm(moves("sent_messages", change, nearby))
        band = cause_scores.CERTAIN if is_steady else cause_scores.STRONG
    else:
        band = cause_scores.LIKELY
    evidence = (
        told(slower, change),
        told(busier, change),
        _drives.told_work(drive.moves[_drives.WRITTEN]),
    )
    wear = (_drives.told_wear(turns), *(() if _drives.is_worn(turns) else (_LIKE,)))
    return Explanation("drive_gc", cause_scores.graded(band, part), (*evidence, *wear))
