"""Where a benchmark did not send at its rate, or its consumers fell behind: latencies alone do not show it.

Method:  the rate of a run is the one that was asked for, where the result says so, else the highest that a
         quarter of its samples keep within 2 %, or its median. It is not held where it is a tenth lower, and
         by more than the rates of the run differ among themselves. Consumers fall behind where the backlog
         grows by what is sent in ten seconds; while a benchmark pauses its consumers, and they read it all
         later, it grows as planned.
Assumes: one rate for the whole run, which a quarter of it reaches where nothing says which was asked for:
         of the four dialects only Vanlightly's does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from soak.omb.result import Floats, Result

PUBLISH_RATE, CONSUME_RATE = "publish_rate_per_second", "consume_rate_per_second"
BACKLOG = "backlog_messages"

_ASKED_RATE = "producerRate"  # among the facts of a result

_ALIKE = 0.02  # rates that differ by less are one rate that is kept
_QUARTER = 0.25
_SHORT, _MUCH = 0.9, 0.5  # of that rate: not held; not held in a single sample
_SIGMAS = 5.0
_LEAST_SAMPLES = 2
_BEHIND_SECONDS = 10.0  # of messages that a backlog grows by
_PAUSED = 0.1  # of what is sent is received: consumers pause
_EDGE = 0.02  # of a rise: it has not begun
_HALF = 0.5  # of a backlog: left when it counts as read; missing from what was received


@dataclass(frozen=True, slots=True)
class LoadFault:
    """Samples `first` to `last`, in which `metric` was `after` where it was `before`.

    A rate is messages a second, a backlog messages: before it grew and at its highest. `received` is the
    share of what was sent that consumers received meanwhile, NaN where it is not known.
    """

    metric: str
    first: int
    last: int
    before: float
    after: float
    received: float = np.nan


def load_faults(result: Result) -> list[LoadFault]:
    """Return where the load of a result was not kept, in order of time."""
    found = [*_rate_not_held(result), *_backlogs_that_grow(result)]
    return sorted(found, key=lambda one: (one.first, one.metric))


def _rate_not_held(result: Result) -> Iterator[LoadFault]:
    rate = _values(result, PUBLISH_RATE)
    if not np.any(rate > 0.0):
        return
    rate[: np.argmax(rate > 0.0)] = np.nan  # the load has not begun
    known = rate[np.isfinite(rate)]
    asked = result.facts.get(_ASKED_RATE)
    reached = max(_rate_of_run(known), asked if isinstance(asked, int | float) else 0.0)
    spread = 1.4826 * float(np.median(np.abs(known - np.median(known))))
    short = rate < min(_SHORT * reached, reached - _SIGMAS * spread)  # NaN is not
    for first, stop in _runs(short):
        low = float(np.mean(rate[first:stop]))
        at_the_edge = first == 0 or stop == rate.size  # a sample that began late, or was cut off
        is_one = stop - first < _LEAST_SAMPLES
        if is_one and (at_the_edge or low >= _MUCH * reached):
            continue
        yield LoadFault(PUBLISH_RATE, first, stop - 1, reached, low)


def _rate_of_run(rates: Floats) -> float:
    """Return the highest rate that a quarter of the samples keep; without one, the median."""
    ordered = np.sort(rates)
    many = max(_LEAST_SAMPLES, int(np.ceil(_QUARTER * ordered.size)))
    low, high = ordered[: ordered.size - many + 1], ordered[many - 1 :]
    is_kept = (high <= (1.0 + _ALIKE) * low) & (low > 0.0)
    if not np.any(is_kept):
        return float(np.median(ordered))
    at = int(np.flatnonzero(is_kept)[-1])
    return float(np.median(ordered[at : at + many]))


def _backlogs_that_grow(result: Result) -> Iterator[LoadFault]:
    backlog = _values(result, BACKLOG)
    sent, received = _values(result, PUBLISH_RATE), _values(result, CONSUME_RATE)
    known = np.flatnonzero(np.isfinite(backlog) & np.isfinite(sent) & np.isfinite(received))
    if known.size <= _LEAST_SAMPLES or not np.any(sent[known] > 0.0):
        return
    level, sent, received = backlog[known], sent[known], received[known]
    copies = _subscriptions(level, sent, received, result.seconds[known])
    missing = (copies * sent - received) * np.diff(result.seconds, prepend=0.0)[known]
    grown = np.diff(level)
    grown[_planned(level, sent, received)[1:]] = 0.0
    least = _BEHIND_SECONDS * copies * float(np.median(sent))
    for low, high in _rises(grown, least, 0):
        during = slice(low + 1, high + 1)
        rise = float(level[high] - level[low])
        if float(np.sum(missing[during])) < _HALF * rise:
            continue  # the rates contradict it: a backlog is but estimated while it is read
        share = float(np.mean(received[during]) / (copies * np.mean(sent[during])))
        first, last = int(known[low + 1]), int(known[high])
        yield LoadFault(BACKLOG, first, last, float(level[low]), float(level[high]), share)


def _subscriptions(level: Floats, sent: Floats, received: Floats, ends: Floats) -> float:
    """Return how often each message is to be received: what was received, and what the backlog grew by."""
    grown, seconds = np.diff(level), np.diff(ends)
    due = received[1:] + np.divide(grown, seconds, out=np.zeros_like(grown), where=seconds > 0.0)
    is_sent = sent[1:] > 0.0
    if not np.any(is_sent):
        return 1.0
    return max(1.0, float(np.round(np.median(due[is_sent] / sent[1:][is_sent]))))


def _planned(level: Floats, sent: Floats, received: Floats) -> NDArray[np.bool_]:
    """Return the samples in which consumers receive next to nothing, and what gathers is read later."""
    is_paused = received < _PAUSED * sent
    lowest_later = np.minimum.accumulate(level[::-1])[::-1]
    for first, stop in _runs(is_paused):
        peak, rest = level[stop - 1], lowest_later[stop - 1]
        before = level[first - 1] if first else 0.0
        if rest - before > _HALF * (peak - before):
            is_paused[first:stop] = False
    return is_paused


def _rises(grown: Floats, least: float, begin: int) -> Iterator[tuple[int, int]]:
    """Give the greatest rises of a series by its differences, as places before and at the end, in order."""
    total = np.concatenate([[0.0], np.cumsum(grown)])
    lowest = np.minimum.accumulate(total)
    high = int(np.argmax(total - lowest))
    low = int(np.argmin(total[: high + 1]))
    if total[high] - total[low] < least or high - low < _LEAST_SAMPLES:
        return
    yield from _rises(grown[:low], least, begin)
    still_low = total[low] + _EDGE * (total[high] - total[low])
    yield begin + low + int(np.flatnonzero(total[low:high] <= still_low)[-1]), begin + high
    yield from _rises(grown[high:], least, begin + high)


def _runs(is_there: NDArray[np.bool_]) -> Iterator[tuple[int, int]]:
    """Give each stretch of True as its first place and the one after its last."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], is_there, [False]])))
    yield from zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)


def _values(result: Result, name: str) -> Floats:
    return np.array(result.samples.get(name, np.full(result.seconds.size, np.nan)))
