"""The brokers are short of CPU: theirs is used up, or a hypervisor gives it to others.

Method:  the CPU of a broker's host, its steal, the time that tasks wait for CPU, or the busiest core of a
         broker steps up at the onset to a level at which work has to wait.
Assumes: a host of which drive, flushes or a broker's log are watched is a broker's.
"""

from __future__ import annotations

from dataclasses import dataclass

from detectors.causes import _brokers, _scores
from detectors.causes._moves import Move, moves, told
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


def explain(change: Change, nearby: Nearby) -> Explanation | None:
    """Return which CPU ran short at the onset; None when none did."""
    short = [
        one
        for limit in _LIMITS
        for one in moves(limit.metric, change, nearby)
        if one.has_risen
        and one.after >= limit.after
        and one.after - one.before >= limit.rise
        and _brokers.is_host_of_one(one.series, nearby)
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


def _metric(one: Move) -> str:
    return one.series.partition("|")[2].partition("{")[0]
