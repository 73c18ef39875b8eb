"""Signs that brokers answer nobody: acknowledgements that stop, pages and questions that get no answer."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from detectors import affected_brokers
from detectors.causes._moves import end_of, near
from detectors.nearby import Nearby, between
from soak.core.model import Change, Series
from soak.core.series import parse_series

_FEW = 0.75  # of the usual acknowledgements: with fewer, some partitions get none
_LEAST_USUAL = 10.0
_ANSWERS = ("retention_poll_age_seconds", "scrape_duration_seconds")
_SLOWER = 1.5
_USUAL = 0.99
_OFTEN = 0.1  # of the seconds, so that one outlier is none
_LEAST_VALUES = 20
_LEAST_SHARE = 0.2
_EVERY = 8  # seconds from one standstill to the next, at most
_ANSWERED = 0.9  # of the minute before


@dataclass(frozen=True, slots=True)
class Silence:
    """Seconds in a row, from `from_k` on, in which something gave no answer, or less than it was to.

    `is_over`: it gave one again; `missing_ratio`: of the answers, 1 when there was none at all.
    """

    what: str
    from_k: int
    seconds: int
    is_over: bool
    missing_ratio: float = 1.0


@dataclass(frozen=True, slots=True)
class Late:
    """Answers beyond what was usual: how late they were, in which share of the seconds, from when on."""

    series: str
    usual: float
    late: float
    ratio: float
    from_k: int


def unacknowledged(change: Change, nearby: Nearby) -> Silence | None:
    """Return the longest lack of acknowledgements around the onset of what was sent, or None."""
    acked, sent = _total("acked_messages", nearby), _total("sent_messages", nearby)
    held = _total("held_back_messages", nearby)  # by a full queue: the cluster takes no more
    low = near(change)[0]
    before = [count for k, count in acked.items() if low - 60 <= k < low]
    usual = float(np.median(before)) if before else 0.0
    if usual < _LEAST_USUAL:
        return None
    due = {
        k: usual if held.get(k) and count else min(usual, count)
        for k, count in sent.items()
        if k in acked
    }
    k = np.array(sorted(due), np.int64)
    is_quiet = np.array([acked[at] < _FEW * due[at] for at in k.tolist()], np.bool_)
    found = _longest("acknowledgements", k, is_quiet, change)
    if found is None:
        return None
    ks = [at for at in due if found.from_k <= at < found.from_k + found.seconds]
    missing = 1.0 - sum(acked[at] for at in ks) / sum(due[at] for at in ks)
    return replace(found, missing_ratio=missing)


def told_missing(one: Silence) -> str:
    """Say how many acknowledgements were missing: `acknowledgements stopped` is for none at all."""
    if one.missing_ratio == 1.0:
        return "acknowledgements stopped"
    return f"{min(0.99, one.missing_ratio):.0%} of the usual acknowledgements were missing"


def unreachable(change: Change, nearby: Nearby) -> list[Silence]:
    """Return the pages that went from answering to not answering at the onset."""
    pages = nearby.named("up")
    untouched = affected_brokers.untouched(pages, change, nearby)
    low = near(change)[0]
    found = []
    for name, series in pages.items():
        if name in untouched:
            continue
        before = between(series, low - 60, low)
        if before.size == 0 or np.mean(before > 0.0) < _ANSWERED:
            continue
        what = dict(parse_series(name).labels).get("target", name)
        silence = _longest(what, series.k, series.values == 0.0, change)
        if silence is not None:
            found.append(silence)
    return found


def late_answers(change: Change, nearby: Nearby) -> Late | None:
    """Return the question that needs no drive whose answers came late most often, or None."""
    named = {name: one for metric in _ANSWERS for name, one in nearby.named(metric).items()}
    untouched = affected_brokers.untouched(named, change, nearby)
    found = [
        one
        for name, series in named.items()
        if name not in untouched and (one := _late(series, change, nearby))
    ]
    return max(found, key=lambda one: one.ratio, default=None)


def _late(series: Series, change: Change, nearby: Nearby) -> Late | None:
    first, last = near(change)
    before = between(series, nearby.soak_start(change.onset_k), first)
    low, high = np.searchsorted(series.k, [first, end_of(change, nearby)])
    k, after = series.k[low:high], series.values[low:high]
    if min(before.size, after.size) < _LEAST_VALUES:
        return None
    usual = float(np.quantile(before, _USUAL))
    is_late = after > _SLOWER * usual
    ratio = float(is_late.mean())
    if ratio < _OFTEN or k[is_late][0] > last + _EVERY:
        return None
    typical = float(np.median(after[is_late]))
    if typical - usual < _LEAST_SHARE * (change.after - change.before):
        return None
    return Late(series.name, usual, typical, ratio, int(k[is_late][0]))


def _total(metric: str, nearby: Nearby) -> dict[int, float]:
    """Return the sum over producers by second, of the seconds that all of them have."""
    known = [
        dict(zip(s.k.tolist(), s.values.tolist(), strict=True))
        for s in nearby.named(metric).values()
    ]
    shared = set.intersection(*map(set, known)) if known else set()
    return {k: sum(one[k] for one in known) for k in shared}


def _longest(
    what: str, k: NDArray[np.int64], is_silent: NDArray[np.bool_], change: Change
) -> Silence | None:
    """Return the longest run of silent rows that begins at the onset, or ends there."""
    low, high = near(change)
    edges = np.flatnonzero(np.diff(np.concatenate([[False], is_silent, [False]]).astype(np.int8)))
    runs = [
        Silence(what, int(k[first]), int(k[stop - 1] - k[first]) + 1, stop < k.size)
        for first, stop in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)
        if low <= k[first] <= high or low <= k[stop - 1] + 1 <= high
    ]
    return max(runs, key=lambda run: run.seconds, default=None)
