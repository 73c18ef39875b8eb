"""Lets a broker's flash drive run out of erased blocks: it is full and was never trimmed, and writes go on.

Needs: an injected drive (`lab.drive`), so root and FUSE. The step comes when the load has written the pool of
erased pages; lifting the fault trims the drive, as an operator would, and nothing else: it stays what it is.
"""

from __future__ import annotations

import math

from pydantic.dataclasses import dataclass

from soak.core.plan_base import STRICT
from soak.core.units import SECOND_NS, Duration, Size, duration_ns, size_bytes
from soak.lab.faults import _sole
from soak.lab.faults._lacking import lacking_own_drive
from soak.lab.faults._undoing import Undoing, drive_of, undoing
from soak.lab.flash import PAGE_BYTES, Settings
from soak.lab.ports import Target


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Config:
    node: int = 1  # whose drive, from 1
    pool: Size = size_bytes("24MiB")  # erased when it begins
    # as if nothing on it were valid: what it can keep up for long is pool / (capacity + pool) of that
    collected_per_second: Size = size_bytes("16MiB")
    foreground: float = 1.0  # so many times that while a write waits
    starved: Duration = duration_ns("2ms")  # more for each write that finds nothing erased

    def __post_init__(self) -> None:
        if self.pool <= 0 or self.collected_per_second <= 0:
            raise ValueError("pool and collected_per_second must be above 0B")
        if self.starved < 0:
            raise ValueError("starved must not be below 0s")
        if not 1.0 <= self.foreground < math.inf:
            raise ValueError("foreground must be a number from 1 on")


lacks = lacking_own_drive
sole = _sole.drive_pages


def inject(target: Target, config: Config) -> Undoing:
    """Begin at once.

    Raises:
        LabError: the broker has no injected drive.
    """
    with undoing(target) as active:
        drive = drive_of(target, config.node)
        active.on_lift(drive.trim)
        drive.age(
            Settings(
                spare_ratio=config.pool / drive.capacity_bytes,
                collected_pages_per_second=config.collected_per_second / PAGE_BYTES,
                foreground_ratio=config.foreground,
                starved_seconds=config.starved / SECOND_NS,
            )
        )
        active.did(pool_bytes=config.pool)
        active.is_felt_from(lambda: drive.said().starved_wall_ns)
    return active
