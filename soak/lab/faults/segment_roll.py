"""Has the broker begin a new segment every so often: opening and flushing files becomes a part of the load.

Needs: a Kafka.
"""

from __future__ import annotations

from pydantic.dataclasses import dataclass

from soak.core.plan_base import STRICT
from soak.core.units import Duration, duration_ns
from soak.lab.faults._topics import altered
from soak.lab.faults._undoing import Undoing
from soak.lab.ports import Target

_MS_NS = 1_000_000


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Config:
    every: Duration = duration_ns("1s")
    topics: str = "soak-*"

    def __post_init__(self) -> None:
        if self.every < _MS_NS:
            raise ValueError("every must be at least 1ms")


def inject(target: Target, config: Config) -> Undoing:
    """Begin at once.

    Raises:
        LabError: there is no such topic, or the cluster refuses.
    """
    return altered(target, config.topics, {"segment.ms": str(config.every // _MS_NS)})
