"""Makes the broker wait while it deletes segments, as a drive that starves would make it wait.

Needs no root: it watches the data folder for segments that are being deleted and stops the broker's
process for a moment, again and again, as long as deletions are recent.
"""

from __future__ import annotations

import fnmatch
import os
from pathlib import Path

from pydantic.dataclasses import dataclass

from soak.core.plan_base import STRICT
from soak.core.units import SECOND_NS, Duration, duration_ns, format_duration
from soak.lab.faults._stopped import Stopping
from soak.lab.ports import Target

_DELETED = ".log.deleted"  # Kafka renames a segment, and unlinks it after file.delete.delay.ms


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Config:
    stall: Duration = duration_ns("80ms")  # how long the broker is stopped at a time
    every: Duration = duration_ns("250ms")  # from one stop to the next
    within: Duration = duration_ns("1s")  # after a deletion, how long it goes on
    poll: Duration = duration_ns("20ms")  # between two looks at the data folder
    topics: str = "soak-*"  # only deletions in topics of this pattern count

    def __post_init__(self) -> None:
        for key in ("stall", "every", "within", "poll"):
            if getattr(self, key) <= 0:
                raise ValueError(f"{key} must be above 0s")
        if self.stall * 2 > self.every:
            raise ValueError("stall must be at most half of every, or the broker hardly runs")
        if self.stall > 5 * SECOND_NS:
            raise ValueError(
                f"stall must be at most 5s, not {format_duration(self.stall)}: "
                "clients would take the broker for dead"
            )


def inject(target: Target, config: Config) -> Stopping:
    """Begin to watch and to stop the broker; ends with `lift`, or with this process."""

    def watch(active: Stopping) -> None:
        clock, duty = target.clock, Duty(config)
        while not active.is_lifted_in(config.poll):
            deleted = deleted_segments(target.broker.data_directory, config.topics)
            now_ns = clock.mono_ns()
            fresh = duty.fresh(now_ns, deleted)
            if fresh:
                active.has_begun(clock.wall_ns())
            if duty.is_due(now_ns):
                active.stop(target.broker.pid, config.stall, new_deletions=fresh)

    active = Stopping("deletion_stall", target, watch)
    active.begin()
    return active


def deleted_segments(data: Path, topics: str) -> frozenset[str]:
    """Return the segments of these topics that are renamed for deletion and still there."""
    found = []
    for partition in _listed(data):
        topic = partition.rpartition("-")[0]
        if fnmatch.fnmatchcase(topic, topics):
            names = _listed(data / partition)
            found += [f"{partition}/{name}" for name in names if name.endswith(_DELETED)]
    return frozenset(found)


class Duty:
    """Decides from what is being deleted whether the broker is stopped now; no IO."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._seen: frozenset[str] = frozenset()
        self._until_ns = 0
        self._next_ns = 0

    def fresh(self, now_ns: int, deleted: frozenset[str]) -> int:
        """Return how many deletions began since the last call."""
        new = len(deleted - self._seen)
        self._seen = deleted
        if new:
            self._until_ns = now_ns + self._config.within
        return new

    def is_due(self, now_ns: int) -> bool:
        """Return whether to stop the broker now; a True counts as done."""
        if now_ns >= self._until_ns or now_ns < self._next_ns:
            return False
        self._next_ns = now_ns + self._config.every
        return True


def _listed(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)  # noqa: PTH208 - names are enough, fifty times a second
    except (FileNotFoundError, NotADirectoryError):  # deleted meanwhile, or a file beside them
        return []
