"""Limits how often a broker and the probe beside it may write: flushes are slow, and the drive is innocent.

Needs: root, for a cgroup, and an injected drive (`lab.drive`). It is felt by a broker that flushes before it
acknowledges (`flush.messages=1`); the kernel waits before the device is asked, so the device shows nothing.
"""

from __future__ import annotations

from pydantic.dataclasses import dataclass

from soak.core.errors import LabError
from soak.core.plan_base import STRICT
from soak.lab.faults import _sole
from soak.lab.faults._lacking import lacking_own_drive
from soak.lab.faults._undoing import Undoing, drive_of, node_of, undoing
from soak.lab.ports import Target
from soak.lab.throttle import Throttle


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Config:
    node: int = 1  # which broker, from 1
    writes_per_second: int = 50

    def __post_init__(self) -> None:
        if self.writes_per_second < 1:
            raise ValueError("writes_per_second must be at least 1")


def missing() -> str:
    """Return what this machine lacks, or ""."""
    return Throttle("", 1).lack


lacks = lacking_own_drive
sole = _sole.group


def inject(target: Target, config: Config) -> Undoing:
    """Begin at once.

    Raises:
        LabError: this machine cannot, or the broker has no injected drive.
    """
    throttle = Throttle(drive_of(target, config.node).device, config.writes_per_second)
    if throttle.lack:
        raise LabError(throttle.lack)
    with undoing(target) as active:
        active.on_lift(throttle.lift)
        probes = [pid for name, pid in target.daemons().items() if name == "probe"]
        for pid in (node_of(target, config.node).pid, *probes):
            throttle.hold(pid)
        active.did(writes_per_second=config.writes_per_second)
    return active
