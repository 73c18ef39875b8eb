"""Free space on the drives of this host's brokers, which the load must not fill.

A drive that hangs holds up who asks it, so each folder is asked on a thread of its own.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from functools import partial
from typing import Self

from probes.common.polling import Stop, Worker
from soak.core.plan.plan import AnyPlan, Plan

_OF_ONE_DRIVE = ("disk_io", "fsync", "smart")
"""The probes whose `directory` is one folder on a broker's drive."""


def broker_folders(plan: AnyPlan) -> list[str]:
    """Return where the plan's probes say that brokers of this host keep their data; may be empty."""
    named = [plan.probes[name].directory for name in _OF_ONE_DRIVE if name in plan.probes]
    return list(dict.fromkeys(directory for directory in named if directory))


def watched_folders(plan: Plan) -> list[str]:
    """Return those whose drives a load must leave room on; a lab's are there to be filled."""
    return [] if plan.lab else broker_folders(plan)


def free_bytes(directory: str) -> int:
    return shutil.disk_usage(directory).free


class FreeSpace:
    """Looks about once a second while its `with` block runs; `look` stands for the machine in tests."""

    def __init__(
        self,
        directories: Sequence[str],
        look: Callable[[str], int] = free_bytes,
        every_seconds: float = 1.0,
    ) -> None:
        self._look = look
        self._every_seconds = every_seconds
        self._free: dict[str, int] = {}
        self._workers = [Worker("free-space", partial(self._follow, one)) for one in directories]

    def __enter__(self) -> Self:
        for worker in self._workers:
            worker.check()
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.close(0.0)  # one that hangs in the kernel is left behind

    def seen(self) -> dict[str, int]:
        """Return the bytes that are free, by folder, as the drives said last.

        A folder that is not on this host, or not looked at yet, is left out.
        """
        return dict(self._free)

    def _follow(self, directory: str, stop: Stop) -> None:
        while not stop.is_set():
            try:
                self._free[directory] = self._look(directory)
            except OSError:
                self._free.pop(directory, None)
            stop.wait(self._every_seconds)
