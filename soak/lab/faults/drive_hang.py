"""Makes a broker's drive answer nothing at all, as a controller does that resets itself.

Needs: an injected drive (`lab.drive`), so root and FUSE.
"""

from __future__ import annotations

from pydantic.dataclasses import dataclass

from soak.core.plan_base import STRICT
from soak.lab.faults import _sole
from soak.lab.faults._lacking import lacking_own_drive
from soak.lab.faults._undoing import Undoing, drive_of, undoing
from soak.lab.ports import Target


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Config:
    node: int = 1  # whose drive, from 1


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
        drive.stop_answering()
        active.did(hanging=config.node)
    return active
