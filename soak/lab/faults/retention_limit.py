"""Lowers the retention limit of the run's topics while it runs, so that deletions begin at once and go on.

Needs: a Kafka, and more in those topics than the limit.
"""

from __future__ import annotations

from pydantic.dataclasses import dataclass

from soak.core.errors import LabError
from soak.core.plan_base import STRICT
from soak.core.units import SECOND_NS, Size, size_bytes
from soak.lab.faults._topics import altered
from soak.lab.faults._undoing import Undoing
from soak.lab.faults.deletion_stall import deleted_segments
from soak.lab.ports import Target

_PATIENCE_NS, _LOOK_NS = 30 * SECOND_NS, SECOND_NS // 20


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Config:
    bytes: Size = size_bytes("4MiB")  # of each partition
    topics: str = "soak-*"

    def __post_init__(self) -> None:
        if self.bytes < 1:
            raise ValueError("bytes must be above 0B")


def inject(target: Target, config: Config) -> Undoing:
    """Return when the first segments are deleted.

    Raises:
        LabError: there is no such topic, the cluster refuses, or nothing was deleted.
    """
    active = altered(target, config.topics, {"retention.bytes": str(config.bytes)})
    try:
        count = await_deletion(target, config)
    except BaseException:
        active.lift()
        raise
    active.did(deleted_segments=count)
    return active


def await_deletion(target: Target, config: Config) -> int:
    """Return how many segments are being deleted, as soon as there are some.

    Raises:
        LabError: there were none for half a minute.
    """
    clock, data = target.clock, target.broker.data_directory
    deadline_ns = clock.mono_ns() + _PATIENCE_NS
    while clock.mono_ns() < deadline_ns:
        deleted = deleted_segments(data, config.topics)
        if deleted:
            return len(deleted)
        clock.sleep_until(clock.mono_ns() + _LOOK_NS)
    raise LabError(f"the limit of {config.topics!r} was lowered, and nothing was deleted")
