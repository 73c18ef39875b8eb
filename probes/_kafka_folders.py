"""What Kafka's partition folders hold on a local disk: `<topic>-<partition>/<base offset>.log[.deleted]`."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from probes._log_starts import Folder, Partition

BLOCK_BYTES = 512  # st_blocks counts these (stat(2)); the size of a sparse index file says nothing
_LOG = re.compile(r"(?P<base>\d{20})\.log(?:\.deleted)?", re.ASCII)


def scan(directory: Path, partitions: Iterable[Partition]) -> dict[Partition, Folder]:
    """Return the partitions that lie in this folder; files that vanish while we look are left out."""
    found = {}
    for topic, partition in partitions:
        folder = _scan(directory / f"{topic}-{partition}")
        if folder is not None:
            found[topic, partition] = folder
    return found


def _scan(path: Path) -> Folder | None:
    held, segments = 0, {}
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                try:
                    status = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
                held += status.st_blocks * BLOCK_BYTES
                match = _LOG.fullmatch(entry.name)
                if match is not None:
                    segments[int(match["base"])] = status.st_size
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return None  # on another host, or not ours to read: sizes stay unknown
    return Folder(held, segments)
