"""Bookies compact: they copy what is still needed out of old entry logs, and publishing waits for the drive.

Method:  a compaction is told from the onset on and none before it, and the device reads or writes more from
         the onset on while what we send stays. Compactions are counted when they end, so they may be told
         two minutes late: the device dates them.
Assumes: the device that is watched is a bookie's.
"""

from __future__ import annotations

from detectors import cause_scores
from detectors.causes import _background, _drives, _load
from detectors.causes._moves import are_calm, near, told
from detectors.nearby import Nearby, when
from soak.core.model import Change, Evidence, Explanation

NEXT = "see the bookies' compaction settings: rate, thresholds, interval"

_MORE = 1.3
_TRAFFIC = (_drives.READ, _drives.WRITTEN, _drives.READS, _drives.WRITES)


def explain(change: Change, nearby: Nearby) -> Explanation | None:
    """Return the compaction that began at the onset; None when none did."""
    told_ks = _background.compactions(change, nearby)
    if not told_ks:
        return None
    traffic = [
        one
        for drive in _drives.drives(change, nearby)
        for metric in _TRAFFIC
        if (one := drive.risen(metric, _MORE))
    ]
    is_at_onset = told_ks[0] <= near(change)[1]
    if not traffic and not is_at_onset:
        return None
    is_steady = are_calm(_load.sent(change, nearby))
    band = cause_scores.STRONG if traffic and is_steady else cause_scores.LIKELY
    text = (
        f"The bookies reported a compaction {when(told_ks[0] - change.onset_k)} of the step, and none in "
        f"the {change.onset_k - nearby.k0} s before."
    )
    most = max(traffic, key=lambda one: one.ratio, default=None)
    evidence = [Evidence(text, {"told_k": told_ks[0]})]
    evidence += [told(most, change)] if most is not None else []
    return Explanation("compaction", cause_scores.graded(band, 1.0), tuple(evidence))
