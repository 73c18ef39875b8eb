"""Makes a broker's drive slow: every write and every flush takes longer.

Needs: an injected drive (`lab.drive`), so root and FUSE.
"""

from __future__ import annotations

from pydantic.dataclasses import dataclass

from soak.core.plan_base import STRICT
from soak.core.units import SECOND_NS, Duration, duration_ns
from soak.lab.faults import _sole
from soak.lab.faults._lacking import lacking_own_drive
from soak.lab.faults._undoing import Undoing, drive_of, undoing
from soak.lab.ports import Target


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Config:
    node: int = 1  # whose drive, from 1
    delay: Duration = duration_ns("10ms")

    def __post_init__(self) -> None:
        if self.delay <= 0:
            raise ValueError("delay must be above 0s")


lacks = lacking_own_drive
sole = _sole.drive_answers


def inject(target: Target, config: Config) -> Undoing:
    """Begin at once.

    Raises:
        LabError: the broker has no injected drive.
    """
    with undoing(target) as active:
        drive = drive_of(target, config.node)
        active.on_lift(drive.answer)
        drive.answer(delay_seconds=config.delay / SECOND_NS)
        active.did(delay_ns=config.delay)
    return active
