"""Signs that brokers answer nobody: acknowledgements that stop, pages and questions that get no answer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from detectors.causes import _brokers
from detectors.causes._moves import Move, moves, near, risen
from detectors.channels import column_of
from detectors.nearby import Nearby, between
from soak.core.model import Change

_FEW = 0.1  # of the usual acknowledgements: a second with fewer is one without
_STALL_SECONDS = 30  # a step is dated to where a stall begins, or to where it ends
_LEAST_USUAL = 10.0
_ANSWERS = ("retention_poll_age_seconds", "scrape_duration_seconds")
_SLOWER = 1.5
_ANSWERED = 0.9  # of the minute before


@dataclass(frozen=True, slots=True)
class Silence:
    """Seconds in a row, from `from_k` on, in which something gave no answer; `is_over`: it gave one again."""

    what: str
    from_k: int
    seconds: int
    is_over: bool


def unacknowledged(change: Change, nearby: Nearby) -> Silence | None:
    """Return the longest stop of all acknowledgements around the onset while messages were sent, or None."""
    acked, sent = _total("acked_messages", nearby), _total("sent_messages", nearby)
    low, high = near(change)
    usual = [count for k, count in acked.items() if low - 60 <= k < low]
    if not usual or np.median(usual) < _LEAST_USUAL:
        return None
    few = _FEW * float(np.median(usual))
    is_sending = {k for k, count in sent.items() if count > 0.0}
    ks = [k for k in sorted(acked) if low - _STALL_SECONDS <= k <= high]
    quiet = np.array([k for k in ks if acked[k] < few and k in is_sending], np.int64)
    return _longest("acknowledgements", quiet, nearby.k1, low, high)


def unreachable(change: Change, nearby: Nearby) -> list[Silence]:
    """Return the pages that went from answering to not answering at the onset."""
    untouched = _brokers.untouched(change, nearby)
    low, high = near(change)
    found = []
    for name, series in nearby.named("up").items():
        if _brokers.is_of(name, untouched):
            continue
        before = between(series, low - 60, low)
        if before.size == 0 or np.mean(before > 0.0) < _ANSWERED:
            continue
        silent = series.k[series.values == 0.0]
        silence = _longest(
            dict(column_of(name).labels).get("target", name), silent, nearby.k1, low, high
        )
        if silence is not None:
            found.append(silence)
    return found


def slow_answers(change: Change, nearby: Nearby) -> Move | None:
    """Return the question, of those that no drive is needed for, whose answer slowed most at the onset."""
    return risen((one for metric in _ANSWERS for one in moves(metric, change, nearby)), _SLOWER)


def _total(metric: str, nearby: Nearby) -> dict[int, float]:
    """Return the sum over producers by second."""
    found: dict[int, float] = {}
    for series in nearby.named(metric).values():
        for k, value in zip(series.k.tolist(), series.values.tolist(), strict=True):
            found[k] = found.get(k, 0.0) + value
    return found


def _longest(what: str, silent: NDArray[np.int64], k1: int, low: int, high: int) -> Silence | None:
    """Return the longest run of seconds that touches the onset: begins there, or ends there."""
    runs = [
        (int(run[0]), int(run.size))
        for run in _runs(silent)
        if low <= int(run[0]) <= high or low <= int(run[-1]) + 1 <= high
    ]
    if not runs:
        return None
    from_k, seconds = max(runs, key=lambda run: run[1])
    return Silence(what, from_k, seconds, from_k + seconds < k1)


def _runs(ks: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    if ks.size:
        yield from np.split(ks, np.flatnonzero(np.diff(ks) > 1) + 1)
