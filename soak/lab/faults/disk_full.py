"""Fills a broker's drive up, for root too, but for what is asked to be left.

Needs: an injected drive (`lab.drive`), so root and FUSE: a drive that others use is never filled. What fills
it is a file without a name, so it goes with this process. A broker that ended of it is started again.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

from pydantic.dataclasses import dataclass

from soak.core.errors import LabError
from soak.core.plan_base import STRICT
from soak.core.units import Size
from soak.lab.faults._lacking import lacking_own_drive
from soak.lab.faults._undoing import Undoing, drive_of, node_of, revive, undoing
from soak.lab.ports import Target

_BLOCK_BYTES = 4096


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Config:
    node: int = 1  # whose drive, from 1
    left: Size = 0  # free afterwards

    def __post_init__(self) -> None:
        if self.left < 0:
            raise ValueError("left must not be below 0B")


lacks = lacking_own_drive


def inject(target: Target, config: Config) -> Undoing:
    """Begin at once.

    Raises:
        LabError: the broker has no injected drive.
    """
    with undoing(target) as active:
        folder = drive_of(target, config.node).mount_point
        node = node_of(target, config.node)
        active.on_lift(revive, node)
        try:
            filler = os.open(folder, os.O_TMPFILE | os.O_RDWR, 0o600)
            active.on_lift(os.close, filler)
            filled = _fill(filler, folder, config.left)
        except OSError as error:
            raise LabError(f"cannot fill {folder}: {error.strerror}") from error
        active.did(filled_bytes=filled)
    return active


def _fill(filler: int, folder: Path, left: int) -> int:
    """Let a file have all blocks but for these; return its length.

    A filesystem needs some of what it counts as free for its own maps, so the last blocks are tried for in
    ever smaller pieces.
    """
    length, piece = 0, _free_bytes(folder) - left
    while piece >= _BLOCK_BYTES:
        try:
            os.posix_fallocate(filler, length, piece)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            piece //= 2
        else:
            length += piece
        piece = min(piece, _free_bytes(folder) - left)
    return length


def _free_bytes(folder: Path) -> int:
    """Return what root may still write."""
    free = os.statvfs(folder)
    return free.f_bfree * free.f_frsize
