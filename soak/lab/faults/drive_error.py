"""Makes a broker's drive fail every write and every flush, as one does that is worn or full.

Needs: an injected drive (`lab.drive`), so root and FUSE. A filesystem writes no more after such an error, so
when the fault is lifted it is mounted anew and the broker, which may have ended of it, is started again.
"""

from __future__ import annotations

from typing import Literal

from pydantic.dataclasses import dataclass

from soak.core.plan_base import STRICT
from soak.lab.faults import _sole
from soak.lab.faults._lacking import lacking_own_drive
from soak.lab.faults._undoing import Undoing, drive_of, node_of, undoing
from soak.lab.ports import Target


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Config:
    node: int = 1  # whose drive, from 1
    error: Literal["EIO", "ENOSPC"] = "EIO"


lacks = lacking_own_drive
sole = _sole.drive_answers


def inject(target: Target, config: Config) -> Undoing:
    """Begin at once; lift it from the main thread, as the broker is then started.

    Raises:
        LabError: the broker has no injected drive.
    """
    with undoing(target) as active:
        drive = drive_of(target, config.node)
        node = node_of(target, config.node)
        for step in (node.restart, drive.remount, node.kill, drive.answer):  # the last one first
            active.on_lift(step)
        drive.fail(config.error)
        active.did(error=config.error)
    return active
