"""The brokers are short of CPU: theirs is used up, or a hypervisor gives it to others.

Method:  the CPU of a broker's host, its steal, the time that tasks wait for CPU, or the busiest core of a
         broker steps up at the onset to a level at which work has to wait.
         A host whose CPU rose with that of soakd's own daemons there is not short of it for a broker's work.
         Where a JVM pauses for garbage much of the time, or a segment rolls with each message, that is what
         took the CPU, and is said first.
Assumes: a host of which drive, flushes or a broker's log are watched is a broker's.
"""

from __future__ import annotations

from dataclasses import dataclass

from detectors import affected_brokers, cause_scores
from detectors.causes import _innocence, gc_pause, segment_roll
from detectors.causes._moves import Move, moves, told
from detectors.nearby import Nearby
from soak.core.model import Change, Explanation
from soak.core.series import parse_series, source_of

NEXT = "see what else runs on the broker's host: top, and steal in vmstat"


@dataclass(frozen=True, slots=True)
class Limit:
    """From where on a channel says that there is too little; `rise` is the least difference."""

    metric: str
    after: float
    rise: float

    def is_exceeded(self, one: Move) -> bool:
        """True for a channel that came this far, whenever that was."""
        return one.after >= self.after and one.after - one.before >= self.rise


USED = Limit("host_cpu_ratio", 0.75, 0.15)
STOLEN = Limit("host_cpu_steal_ratio", 0.05, 0.04)
_LIMITS = (
    USED,
    STOLEN,
    Limit("node_pressure_cpu_waiting_seconds", 0.25, 0.15),
    Limit("vectorized_reactor_utilization_ratio", 0.9, 0.1),
)
_IDLE = "kafka_server_kafkarequesthandlerpool_requesthandleravgidle_ratio"
_MOST_IDLE = 0.3
_OWN_WORK = (gc_pause, segment_roll)
_OF_HOST = ("host_cpu_ratio", "node_pressure_cpu_waiting_seconds")


def explain(change: Change, nearby: Nearby) -> Explanation | None:
    """Return which CPU ran short at the onset; None when none did."""
    idle = [
        one for one in moves(_IDLE, change, nearby) if one.has_fallen and one.after < _MOST_IDLE
    ]
    found = [*short(change, nearby), *idle]
    if not found:
        return None
    is_told_twice = len({parse_series(one.series).metric for one in found}) > 1
    is_own_work = _is_own_work(change, nearby)
    band = cause_scores.STRONG if is_told_twice and not is_own_work else cause_scores.LIKELY
    strongest = max(min(1.0, abs(one.after - one.before)) for one in found)
    return Explanation(
        "broker_cpu",
        cause_scores.graded(band, strongest),
        tuple(told(one, change) for one in found),
    )


def short(change: Change, nearby: Nearby) -> list[Move]:
    """Return what tells at the onset that the CPU of a broker's host, or its busiest core, ran short."""
    ours = _innocence.busy_with_us(change, nearby)
    return [
        one
        for limit in _LIMITS
        for one in moves(limit.metric, change, nearby)
        if one.has_risen
        and limit.is_exceeded(one)
        and affected_brokers.is_host_of_one(one.series, nearby)
        and not (limit.metric in _OF_HOST and source_of(one.series) in ours)
    ]


def _is_own_work(change: Change, nearby: Nearby) -> bool:
    """True when something that brokers do themselves, and which takes CPU, surely explains the step.

    Latency is locked to it, or it goes on all the time; pauses must take much of that, for on a CPU that runs
    short usual ones last longer, too.
    """
    told = (cause.explain(change, nearby) for cause in _OWN_WORK)
    return any(one is not None and one.score > cause_scores.LIKELY for one in told)
