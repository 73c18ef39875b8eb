"""Ourselves: the load generator was late, away or out of CPU, so the step says nothing about the cluster.

Method:  latency counts from the intended time of sending, so schedule lag is part of it: its rise is
         compared with the step, but for seconds in which a full queue held the sending back. So is how long a
         producer could note no acknowledgement, and a consumer take no message. All these are a part of the
         latency, so they may have risen anywhere in the interval of its onset. Beside them, the share of
         seconds that a daemon marked as untrusted, the time that a thread of it waited for a processor, the
         CPU that a hypervisor took from its host, and what those of our daemons took of it that only watch
         (`_watchers`). Where a broker has the same host it may wait for a processor as well.
Assumes: our own records of the minute before and after the onset. A producer's latency is its own: what
         another process did is no part of it; end to end every producer may be.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from detectors import affected_brokers, cause_scores
from detectors.causes import _watchers, broker_cpu
from detectors.causes._moves import Move, move, moves, told
from detectors.nearby import Nearby, between
from soak.core import wording
from soak.core.model import Change, Evidence, Explanation, Series
from soak.core.series import host_of, parse_series, source_of

NEXT = "see what else runs on the load generator's host, not the cluster"

_SECONDS = 30  # before and after the onset
_LEAST = 5
_UNTRUSTED_RATIO = 0.5
_UNTRUSTED_SCORE = 0.8
_WAITING = broker_cpu.Limit("process_cpu_waiting_ratio", 0.5, 0.25)
# before what tells of that host's CPU alone, after what surely is a broker's
_WAITING_BESIDE_BROKER = 0.7
# where that host's CPU is used up, or nobody knows: then a broker has none either
_SHORT_TOGETHER = 0.55
_PRODUCER, _END_TO_END = "produce.", "end_to_end_latency_seconds"
_LAG = "schedule_lag_seconds"
_HELD = "held_back_messages"
_CPU = "process_cpu_ratio"
_AWAY = {
    "publish_latency_seconds": (
        "callback_delay_seconds",
        "The producer {} was late to serve its own client",
    ),
    _END_TO_END: (
        "consumer_pause_seconds",
        "The consumer {} was late to serve its own client",
    ),
}


def explain(change: Change, nearby: Nearby) -> Explanation | None:
    """Return what our own daemons have to do with a step of latency; None when nothing."""
    if change.direction == "down":
        return None
    parts = (_late, _invalid, _waiting, _stolen, _watched)
    found = [found for part in parts if (found := part(change, nearby))]
    if not found:
        return None
    return Explanation(
        "client", max(score for score, _ in found), tuple(evidence for _, evidence in found)
    )


def _late(change: Change, nearby: Nearby) -> tuple[float, Evidence] | None:
    """Return the share of the step that is the delay of the worst of our daemons."""
    found = [
        one
        for name, text in _delays(change, nearby)
        if (one := _delayed(name, text, change, nearby)) is not None
    ]
    return max(found, key=lambda one: one[0], default=None)


def _delays(change: Change, nearby: Nearby) -> Iterator[tuple[str, str]]:
    """Give the series that are a part of this latency, and what each says of its daemon."""
    column = parse_series(change.series)
    quantile = dict(column.labels).get("quantile", "0.99")
    wanted = quantile if quantile in {"0.5", "0.99"} else "0.99"
    for name in nearby.named(_LAG):
        is_wanted = dict(parse_series(name).labels).get("quantile") == wanted
        if is_wanted and _is_part(source_of(name), change):
            yield name, "The producer {} sent later than scheduled"
    if wanted == "0.5":
        return  # a pause a second is no part of the median
    metric, text = _AWAY.get(column.metric, ("", ""))
    for name in nearby.named(metric):
        if source_of(name) == source_of(change.series):
            yield name, text


def _is_part(source: str, change: Change) -> bool:
    """True for the daemon whose latency this is; end to end also for every producer."""
    is_on_the_way = (
        source.startswith(_PRODUCER) and parse_series(change.series).metric == _END_TO_END
    )
    return source == source_of(change.series) or is_on_the_way


def _delayed(name: str, text: str, change: Change, nearby: Nearby) -> tuple[float, Evidence] | None:
    own = _own(nearby.series[name], nearby, source_of(name))
    around, moved = _around(own, change, nearby), move(own, change, nearby)
    if around is None or moved is None or not moved.has_risen_with(change):
        return None
    was, became = (float(np.median(part)) for part in around)
    share = max(0.0, min(1.0, (became - was) / (change.after - change.before)))
    if share == 0.0:
        return None
    return share, Evidence(
        f"{text.format(source_of(name))} from the onset of the step on: its {wording.title(name)} "
        f"went from {wording.amount(was, 'seconds')} to {wording.amount(became, 'seconds')}, "
        f"{share:.0%} of the step.",
        {"before": was, "after": became, "explained_ratio": share},
    )


def _around(
    series: Series, change: Change, nearby: Nearby
) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
    """Return the values of the half minute before the onset and after it; None when too few are known."""
    low, high = change.interval
    before = between(series, low - _SECONDS, low)
    after = between(series, high, min(high + _SECONDS, nearby.soak_end(change.onset_k)))
    return (before, after) if min(before.size, after.size) >= _LEAST else None


def _own(lag: Series, nearby: Nearby, source: str) -> Series:
    """Return the lag without the seconds in which the cluster took no more: there it is not ours."""
    for name, held in nearby.named(_HELD).items():
        if source_of(name) == source:
            is_ours = ~np.isin(lag.k, held.k[held.values > 0])
            return Series(lag.name, lag.k[is_ours], lag.values[is_ours])
    return lag


def _invalid(change: Change, nearby: Nearby) -> tuple[float, Evidence] | None:
    low, high = change.interval
    for source, ks in nearby.invalid_k.items():
        if not _is_part(source, change):
            continue
        before = int(np.count_nonzero((ks >= low - _SECONDS) & (ks < low)))
        stop = min(high + _SECONDS, nearby.soak_end(change.onset_k))
        after = int(np.count_nonzero((ks >= high) & (ks < stop)))
        seconds = stop - high
        if seconds >= _LEAST and after / seconds >= _UNTRUSTED_RATIO > 2.0 * before / _SECONDS:
            return (
                _UNTRUSTED_SCORE,
                Evidence(
                    f"{source} reported its own measurement as invalid in {after} of the {seconds} s "
                    f"after the onset of the step, and in {before} of the {_SECONDS} s before.",
                    {"untrusted_after": after, "untrusted_before": before, "seconds": seconds},
                ),
            )
    return None


def _waiting(change: Change, nearby: Nearby) -> tuple[float, Evidence] | None:
    """Return which of the daemons whose latency this is came to wait for a processor most of the time."""
    spinning = {  # whoever is answered nothing may keep a processor busy itself
        source_of(one.series) for one in moves(_CPU, change, nearby) if one.has_risen_with(change)
    }
    found = []
    for name, series in nearby.named(_WAITING.metric).items():
        source = source_of(name)
        if _is_part(source, change) and source not in spinning:
            one = move(_own(series, nearby, source), change, nearby)
            if one is not None and one.has_risen and _WAITING.is_exceeded(one):
                found.append(one)
    worst = max(found, key=lambda one: one.after, default=None)
    if worst is None:
        return None
    return _waiting_score(worst, change, nearby), told(worst, change)


def _waiting_score(waiting: Move, change: Change, nearby: Nearby) -> float:
    host = host_of(source_of(waiting.series))
    if host not in affected_brokers.hosts(nearby):
        return cause_scores.graded(cause_scores.CERTAIN, waiting.after)
    used = [
        one.after
        for one in moves(broker_cpu.USED.metric, change, nearby)
        if host_of(source_of(one.series)) == host
    ]
    has_more = bool(used) and max(used) < broker_cpu.USED.after
    return _WAITING_BESIDE_BROKER if has_more else _SHORT_TOGETHER


def _stolen(change: Change, nearby: Nearby) -> tuple[float, Evidence] | None:
    """Return what a hypervisor took from the host of a daemon whose latency this is: broker's hosts apart."""
    hosts = _hosts(change, nearby)
    found = [
        one
        for one in moves(broker_cpu.STOLEN.metric, change, nearby)
        if host_of(source_of(one.series)) in hosts
        and one.has_risen_with(change)
        and broker_cpu.STOLEN.is_exceeded(one)
        and not affected_brokers.is_host_of_one(one.series, nearby)
    ]
    worst = max(found, key=lambda one: one.after - one.before, default=None)
    if worst is None:
        return None
    return cause_scores.graded(cause_scores.LIKELY, worst.after - worst.before), told(worst, change)


def _watched(change: Change, nearby: Nearby) -> tuple[float, Evidence] | None:
    """Return what a daemon that only watches began to take of such a host."""
    return _watchers.taken(change, nearby, _hosts(change, nearby))


def _hosts(change: Change, nearby: Nearby) -> set[str]:
    """Return the hosts of the daemons whose latency this is."""
    return {host_of(source) for source in map(source_of, nearby.series) if _is_part(source, change)}
