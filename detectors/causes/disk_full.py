"""The brokers' drive is full: there is no space left for what they have to write.

Method:  free space is below 2 % of the drive, or 256 MiB where its size is not known, at the onset, and was
         more before; or a probe or a broker says by itself that there is no space left.
Assumes: the filesystem named is the brokers'.
"""

from __future__ import annotations

import re

import numpy as np

from detectors import affected_brokers, cause_scores
from detectors.causes._moves import end_of, near, spacing_of
from detectors.nearby import Nearby, between, when
from soak.core import wording
from soak.core.model import Change, Evidence, Explanation, Series
from soak.core.series import parse_series, source_of

NEXT = "make room on the broker's drive, or shorten retention, at once"

_FREE = re.compile(r"(filesystem|disk|volume)\w*_(avail|free)_bytes$")
_TOTAL = "redpanda_storage_disk_total_bytes"
_LEAST_RATIO = 0.02
_LEAST_BYTES = 256 * 2**20
_SHRANK = 0.5
_SAID = re.compile(r"no space left|less space is free|disk full|out of space", re.IGNORECASE)
_VALUES = 3  # that are the onset's: a drive that fills later made no step
_EARLIER_SECONDS = 60  # space runs out before latency feels it


def explain(change: Change, nearby: Nearby) -> Explanation | None:
    """Return what says that space ran out at the onset; None when nothing does."""
    said = _said(change, nearby)
    short = [one for name in _names(nearby) if (one := _short(nearby.series[name], change, nearby))]
    found = [*said, *short]
    if not found:
        return None
    band = cause_scores.CERTAIN if said and short else cause_scores.STRONG
    return Explanation("disk_full", cause_scores.graded(band, 1.0), tuple(found))


def _names(nearby: Nearby) -> list[str]:
    return [name for name in nearby.series if _FREE.search(parse_series(name).metric)]


def _said(change: Change, nearby: Nearby) -> list[Evidence]:
    first, last = near(change)
    told = [
        (e.k, str(e.event.fields.get("reason", "")))
        for e in nearby.events
        if _SAID.search(str(e.event.fields.get("reason", "")))
    ]
    if not told or not first - _EARLIER_SECONDS <= told[0][0] <= last:
        return []
    k, reason = told[0]
    text = f"First reported {when(k - change.onset_k)} of the step: {reason}."
    return [Evidence(text, {"k": k})]


def _short(series: Series, change: Change, nearby: Nearby) -> Evidence | None:
    """Return the free space at the onset when it is too little and was more before."""
    first, last = near(change, nearby.lag_seconds.get(series.name, 0.0))
    stop = min(last + _VALUES * spacing_of(series), end_of(change, nearby))
    if series.name in affected_brokers.untouched((series.name,), change, nearby):
        return None
    before = between(series, nearby.k0, first - _EARLIER_SECONDS)
    after = between(series, last, stop)
    if min(before.size, after.size) == 0:
        return None
    was, became = float(np.max(before)), float(np.median(after))
    if became >= _least(series, nearby) or became >= _SHRANK * was:
        return None
    return Evidence(
        f"{wording.title(series.name)} of {source_of(series.name)} was down to "
        f"{wording.amount(became, 'bytes')} at the onset of the step; before it was up to "
        f"{wording.amount(was, 'bytes')}.",
        {"free_bytes": became, "free_before_bytes": was},
    )


def _least(series: Series, nearby: Nearby) -> float:
    target = dict(parse_series(series.name).labels).get("target")
    sizes = [
        float(np.median(one.values))
        for name, one in nearby.named(_TOTAL).items()
        if dict(parse_series(name).labels).get("target") == target and one.values.size
    ]
    return _LEAST_RATIO * max(sizes) if sizes else float(_LEAST_BYTES)
