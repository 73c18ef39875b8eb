"""Reads Kafka's partition folders on a local disk: `<topic>-<partition>/<base offset>.log[.deleted]`."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

BLOCK_BYTES = 512  # st_blocks counts these (stat(2)); the size of a sparse index file says nothing
_LOG = re.compile(r"(?P<base>\d{20})\.log(?P<waits>\.deleted)?", re.ASCII)
_GONE = (FileNotFoundError, NotADirectoryError)


@dataclass(frozen=True, slots=True)
class Waiting:
    """A segment that was renamed and waits to be unlinked."""

    bytes: int
    renamed_ns: int  # wall clock: a rename sets the file's ctime


@dataclass(frozen=True, slots=True)
class Size:
    """Of one log file: its length, and what it occupies of the disk."""

    bytes: int
    held_bytes: int


@dataclass(frozen=True, slots=True)
class Listing:
    """One folder. Segments are known by their base offset; sizes are those of the log files."""

    held_bytes: int  # really on disk, with indexes and with files that wait to be unlinked
    newest_held_bytes: int  # of these the newest log file, which grows
    live: dict[int, int]
    waiting: dict[int, Waiting]


def changed_ns(path: str) -> int | None:
    """Return when a file of the folder last came, went or was renamed; None: it is not there.

    Raises:
        OSError: it cannot be read; as all of these functions.
    """
    try:
        return os.stat(path).st_mtime_ns  # noqa: PTH116  # a Path costs as much as the call
    except _GONE:
        return None


def listing(path: str) -> Listing | None:
    """Return what the folder holds; files that vanish while we look are left out."""
    held, newest, live, waiting = 0, (-1, 0), {}, {}
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                try:
                    status = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
                occupied = status.st_blocks * BLOCK_BYTES
                held += occupied
                match = _LOG.fullmatch(entry.name)
                if match is None:
                    continue
                base = int(match["base"])
                if match["waits"]:
                    waiting[base] = Waiting(status.st_size, status.st_ctime_ns)
                else:
                    live[base] = status.st_size
                    newest = max(newest, (base, occupied))
    except _GONE:
        return None
    for base in waiting:  # renamed meanwhile, and seen under both names
        live.pop(base, None)
    return Listing(held, newest[1], live, waiting)


def size(path: str, base: int) -> Size | None:
    """Return how large the log file of a segment is by now, or None where it is gone."""
    try:
        status = os.stat(f"{path}/{base:020d}.log")  # noqa: PTH116  # as above
    except _GONE:
        return None
    return Size(status.st_size, status.st_blocks * BLOCK_BYTES)
