"""Fills a broker's drive up, but for a little.

Needs: an injected drive (`lab.drive`), so root and FUSE: a drive that others use is never filled. What fills
it is a file without a name, so it goes with this process. A broker that ended of it is started again.
"""

from __future__ import annotations

import os

from pydantic.dataclasses import dataclass

from soak.core.plan_base import STRICT
from soak.core.units import Size
from soak.lab.faults._undoing import Undoing, drive_of, node_of, revive, undoing
from soak.lab.ports import Target


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Config:
    node: int = 1  # whose drive, from 1
    left: Size = 0  # free afterwards

    def __post_init__(self) -> None:
        if self.left < 0:
            raise ValueError("left must not be below 0B")


def inject(target: Target, config: Config) -> Undoing:
    """Begin at once.

    Raises:
        LabError: the broker has no injected drive.
        OSError: it could not be filled.
    """
    with undoing(target) as active:
        folder = drive_of(target, config.node).mount_point
        node = node_of(target, config.node)
        active.on_lift(revive, node)
        filler = os.open(folder, os.O_TMPFILE | os.O_RDWR, 0o600)
        active.on_lift(os.close, filler)
        free = os.statvfs(folder)
        length = max(0, free.f_bavail * free.f_frsize - config.left)
        if length:
            os.posix_fallocate(filler, 0, length)
        active.did(filled_bytes=length)
    return active
