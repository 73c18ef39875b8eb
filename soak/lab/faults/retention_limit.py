"""Lowers the retention limit of the run's topics while it runs, so that deletions begin at once and go on.

Needs: a Kafka.
"""

from __future__ import annotations

from pydantic.dataclasses import dataclass

from soak.core.plan_base import STRICT
from soak.core.units import Size, size_bytes
from soak.lab.faults._topics import altered
from soak.lab.faults._undoing import Undoing
from soak.lab.ports import Target


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Config:
    bytes: Size = size_bytes("4MiB")  # of each partition
    topics: str = "soak-*"

    def __post_init__(self) -> None:
        if self.bytes < 1:
            raise ValueError("bytes must be above 0B")


def inject(target: Target, config: Config) -> Undoing:
    """Begin at once.

    Raises:
        LabError: there is no such topic, or the cluster refuses.
    """
    return altered(target, config.topics, {"retention.bytes": str(config.bytes)})
