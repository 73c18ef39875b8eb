"""The brokers are short of CPU: theirs is used up, or a hypervisor gives it to others.

Method:  the CPU of a broker's host, its steal, the time that tasks wait for CPU, or the busiest core of a
         broker steps up at the onset to a level at which work has to wait.
         A host whose CPU rose with that of soakd's own daemons there is not short of it for a broker's work:
         a client that is answered nothing may spin.
Assumes: a host of which drive, flushes or a broker's log are watched is a broker's.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from detectors.causes import _brokers, _scores
from detectors.causes._moves import Move, moves, told
from detectors.channels import source_of
from detectors.nearby import Nearby
from soak.core.model import Change, Explanation


@dataclass(frozen=True, slots=True)
class _Limit:
    """From where on a channel says that there is too little; `rise` is the least difference."""

    metric: str
    after: float
    rise: float


_LIMITS = (
    _Limit("host_cpu_ratio", 0.75, 0.15),
    _Limit("host_cpu_steal_ratio", 0.05, 0.04),
    _Limit("node_pressure_cpu_waiting_seconds", 0.25, 0.15),
    _Limit("vectorized_reactor_utilization_ratio", 0.9, 0.1),
)
_IDLE = "kafka_server_kafkarequesthandlerpool_requesthandleravgidle_ratio"
_MOST_IDLE = 0.3
_CPU = "host_cpu_ratio"
_OF_HOST = (_CPU, "node_pressure_cpu_waiting_seconds")
_MOST_OURS = 0.5  # of what a host's CPU rose by


def explain(change: Change, nearby: Nearby) -> Explanation | None:
    """Return which CPU ran short at the onset; None when none did."""
    ours = _ours(change, nearby)
    short = [
        one
        for limit in _LIMITS
        for one in moves(limit.metric, change, nearby)
        if one.has_risen
        and one.after >= limit.after
        and one.after - one.before >= limit.rise
        and _brokers.is_host_of_one(one.series, nearby)
        and not (limit.metric in _OF_HOST and source_of(one.series) in ours)
    ]
    idle = [
        one for one in moves(_IDLE, change, nearby) if one.has_fallen and one.after < _MOST_IDLE
    ]
    found = [*short, *idle]
    if not found:
        return None
    band = _scores.STRONG if len({_metric(one) for one in found}) > 1 else _scores.LIKELY
    strongest = max(min(1.0, abs(one.after - one.before)) for one in found)
    return Explanation(
        "broker_cpu", _scores.graded(band, strongest), tuple(told(one, change) for one in found)
    )


def _ours(change: Change, nearby: Nearby) -> set[str]:
    """Return the hosts, by what watches them, whose CPU rose mostly with that of our own daemons."""
    counts = {
        source_of(name): float(np.median(series.values))
        for name, series in nearby.named("host_cpu_count").items()
    }
    cores: dict[str, float] = {}
    for one in moves("host_daemon_cpu_cores", change, nearby):
        source = source_of(one.series)
        cores[source] = cores.get(source, 0.0) + one.after - one.before
    return {
        source
        for one in moves(_CPU, change, nearby)
        if (source := source_of(one.series)) in counts
        and cores.get(source, 0.0) > _MOST_OURS * (one.after - one.before) * counts[source] > 0.0
    }


def _metric(one: Move) -> str:
    return one.series.partition("|")[2].partition("{")[0]
