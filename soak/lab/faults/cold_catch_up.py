"""Stops the consumers of the run and lets them catch up from the drive: its reads hold up who publishes.

It is felt from the lifting on, as `consumer_pause` is. Then the kernel is asked to forget what it keeps of
the topics in memory, as it would have forgotten a backlog of hours; the drive goes on to read as slowly
until the run is over.

Needs: a Kafka on an injected drive (`lab.drive`), so root and FUSE.
"""

from __future__ import annotations

import contextlib
import fnmatch
from pathlib import Path

from pydantic.dataclasses import dataclass

from soak.core.plan_base import STRICT
from soak.core.units import SECOND_NS, Duration, duration_ns
from soak.lab import page_cache
from soak.lab.faults._daemons import paused
from soak.lab.faults._lacking import lacking_own_drive
from soak.lab.faults._undoing import Undoing, drive_of, node_of
from soak.lab.ports import Target


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Config:
    node: int = 1  # whose drive, from 1
    per_mib: Duration = duration_ns("800ms")  # that is read, in which the drive writes nothing
    topics: str = "soak-*"

    def __post_init__(self) -> None:
        if self.per_mib <= 0:
            raise ValueError("per_mib must be above 0s")


lacks = lacking_own_drive


def inject(target: Target, config: Config) -> Undoing:
    """Begin at once.

    Raises:
        LabError: the broker has no injected drive, or no consumer runs.
    """
    drive, node = drive_of(target, config.node), node_of(target, config.node)
    with contextlib.ExitStack() as undo:
        undo.callback(drive.read_slowly, 0.0)
        drive.read_slowly(config.per_mib / SECOND_NS)
        active = paused(target, "consume")
        undo.pop_all()
    active.on_close(drive.read_slowly, 0.0)
    active.on_lift(drive.forget)
    active.on_lift(forget, node.data_directory, config.topics)
    active.is_felt_when_lifted()
    return active


def forget(data: Path, topics: str) -> None:
    """Have the kernel keep nothing in memory of these topics' segments; what is not yet written stays."""
    page_cache.forget_all(
        segment
        for segment in data.glob("*/*.log")
        if fnmatch.fnmatchcase(segment.parent.name.rpartition("-")[0], topics)
    )
