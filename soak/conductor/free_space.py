"""Free space on the drives of this host's brokers, which the load must not fill.

Each folder is read on a thread of its own, because a drive that hangs blocks its reader.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from functools import partial
from typing import Self

from probes.common.folders import folders_of
from probes.common.polling import Stop, Worker
from soak.core.plan.plan import AnyPlan, Plan

_DRIVE_PROBES = ("disk_io", "fsync", "smart")
"""Probes whose `directory` names folders on brokers' drives."""


def broker_folders(plan: AnyPlan) -> list[str]:
    """Return the data folders of this host's brokers, as the plan's probes name them; may be empty."""
    named = [plan.probes[name].directory for name in _DRIVE_PROBES if name in plan.probes]
    return list(dict.fromkeys(folder for text in named for folder in folders_of(text)))


def watched_folders(plan: Plan) -> list[str]:
    """Return the folders whose drives the load must not fill; the drives of a lab may be filled."""
    return [] if plan.lab else broker_folders(plan)


def free_bytes(directory: str) -> int:
    return shutil.disk_usage(directory).free


class FreeSpace:
    """Reads the free space about once a second while its `with` block runs."""

    def __init__(
        self,
        directories: Sequence[str],
        read: Callable[[str], int] = free_bytes,
        every_seconds: float = 1.0,
    ) -> None:
        self._read = read
        self._every_seconds = every_seconds
        self._free: dict[str, int] = {}
        self._workers = [Worker("free-space", partial(self._follow, one)) for one in directories]

    def __enter__(self) -> Self:
        for worker in self._workers:
            worker.check()
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.close(0.0)  # a thread that hangs in the kernel is abandoned

    def free_bytes(self) -> dict[str, int]:
        """Return the last known free bytes by folder; missing folders and unread ones are left out."""
        return dict(self._free)

    def _follow(self, directory: str, stop: Stop) -> None:
        while not stop.is_set():
            try:
                self._free[directory] = self._read(directory)
            except OSError:
                self._free.pop(directory, None)
            stop.wait(self._every_seconds)
