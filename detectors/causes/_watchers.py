"""What a daemon of ours that only watches took of a host: one that is started again takes a core for a while.

Method:  the CPU seconds of such a daemon in the half minute from a second on in which it began to take more,
         in the interval of the onset or just beside it. Where its host was measured and it was not, it was
         away. Latency must be worse than half-way in a quarter of the seconds in which it was busy, and in
         at most half as many of the first calm ones after: until those are known it is a word for now.
Assumes: a step, or a tail that grew: what comes again and again, or slowly, has another reason. Of the
         daemons only those count that are no clients of the cluster, as what such a one takes follows what
         the cluster does, and that start a JVM or draw.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from detectors import cause_scores
from detectors.causes._innocence import processors
from detectors.causes._moves import spacing_of
from detectors.nearby import Nearby, between
from soak.core import wording
from soak.core.model import Change, Evidence, Series
from soak.core.series import host_of, parse_series, source_of

_WATCHING = frozenset({"alert", "detect-stream", "report"})
_KINDS = frozenset({"step", "tail"})
_SECONDS = 30
_BESIDE = 5  # seconds about the interval of the onset: one for a process to be seen, one for its first value
_LEAST_RATIO = 0.25  # of the host's processors, all those seconds
_LEAST_VALUES = 5
_CALM_ROWS = 3  # after a busy one
_BAD_RATIO = 0.25  # of the busy seconds, at least
_SCORE = 0.52  # whatever else was measured comes first


def taken(change: Change, nearby: Nearby, hosts: Collection[str]) -> tuple[float, Evidence] | None:
    """Return what the busiest of them began to take of one of these hosts; None when it was little."""
    if change.kind not in _KINDS:
        return None
    counts = processors(nearby)
    known = {source_of(name): one.k for name, one in nearby.named("host_cpu_count").items()}
    found = []
    for name, cores in nearby.named("host_daemon_cpu_cores").items():
        source, daemon = source_of(name), dict(parse_series(name).labels).get("daemon")
        if source in counts and host_of(source) in hosts and daemon in _WATCHING:
            found.append(_burst(_whole(cores, known[source]), counts[source], change, nearby))
    worst = max(filter(None, found), key=lambda one: one[0], default=None)
    return None if worst is None else worst[1:]


def _whole(cores: Series, k: NDArray[np.int64]) -> Series:
    """Return the cores in each second in which the host was measured, 0 where the daemon was away."""
    values = np.zeros(k.size)
    values[np.isin(k, cores.k)] = cores.values[np.isin(cores.k, k)]
    return Series(cores.name, k, values)


def _burst(
    cores: Series, count: float, change: Change, nearby: Nearby
) -> tuple[float, float, Evidence] | None:
    """Return the CPU seconds that it took beside what it took before, the score, and the words for them."""
    first, last = change.interval[0] - _BESIDE, change.interval[1] + _BESIDE
    before = between(cores, first - _SECONDS, first)
    if before.size < _LEAST_VALUES:
        return None
    was, end = float(np.median(before)), nearby.soak_end(change.onset_k)
    is_busy = cores.values >= was + _LEAST_RATIO * count
    begins = is_busy & ~np.append(True, is_busy[:-1]) & (cores.k >= first) & (cores.k <= last)
    parts = {int(k): between(cores, int(k), min(int(k) + _SECONDS, end)) for k in cores.k[begins]}
    spacing = spacing_of(cores)
    extra = {k: spacing * float((part - was).sum()) for k, part in parts.items()}
    start = max(extra, key=extra.__getitem__, default=-1)
    if start < 0 or extra[start] < _LEAST_RATIO * count * _SECONDS:
        return None
    since = (cores.k >= start) & (cores.k < end)
    score = _sureness(cores.k[since], is_busy[since], change, nearby)
    if score is None:
        return None
    daemon, off = dict(parse_series(cores.name).labels)["daemon"], start - change.onset_k
    became = float(parts[start].mean())
    evidence = Evidence(
        f"{daemon} of soakd itself took {wording.amount(became, 'cores')} of the {count:g} processors "
        f"of {host_of(source_of(cores.name))} in {parts[start].size * spacing} s from "
        f"{abs(off)} s {'before' if off < 0 else 'after'} the onset on, and "
        f"{wording.amount(was, 'cores')} in the {_SECONDS} s before what may be the onset.",
        {"daemon": daemon, "before": was, "after": became, "cpu_seconds": extra[start]},
    )
    return extra[start], score, evidence


def _sureness(
    k: NDArray[np.int64], is_busy: NDArray[np.bool_], change: Change, nearby: Nearby
) -> float | None:
    """Return how sure it is that latency was bad because a daemon was busy; None when it was not."""
    own = nearby.series.get(change.series)
    if own is None:
        return None
    last_busy = np.maximum.accumulate(np.where(is_busy, np.arange(k.size), 0))
    is_calm = np.arange(k.size) - last_busy >= _CALM_ROWS
    bad, bad_after = (
        own.values[np.isin(own.k, part)] > _half_way(change)
        for part in (k[is_busy], k[is_calm][:_SECONDS])
    )
    if bad.size < _LEAST_VALUES or bad.mean() < _BAD_RATIO:
        return None
    if bad_after.size < _LEAST_VALUES:
        return cause_scores.SO_FAR
    return _SCORE if bad.mean() >= 2.0 * bad_after.mean() else None


def _half_way(change: Change) -> float:
    """Return what lies between both levels, as latencies are judged: on log10 where both are above 0."""
    low, high = change.before, change.after
    return float(np.sqrt(low * high)) if min(low, high) > 0.0 else (low + high) / 2.0
