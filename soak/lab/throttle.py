"""A limit on the writes of one process to one device, by whichever cgroup controller this machine has.

A group is named after the process that made it, so that what a killed one left is known and cleared by the
next. Needs root.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from soak.lab.standing import start_ticks

V1, V2 = Path("/sys/fs/cgroup/blkio"), Path("/sys/fs/cgroup")
_NAME = "soakd-lab"


class Throttle:
    """Made for a device; `hold` puts a process under it, `lift` lets all of them go."""

    def __init__(self, device: str, writes_per_second: int) -> None:
        self._root = _root()
        self._group = self._root / f"{_NAME}-{os.getpid()}-{start_ticks(os.getpid())}"
        self._device = device
        self._writes_per_second = writes_per_second

    @property
    def lack(self) -> str:
        """Return what this machine lacks, or ""."""
        if not os.access(self._root, os.W_OK):
            return "a limit on a process's writes needs root, for a cgroup"
        controllers = V2 / "cgroup.controllers"
        if self._root == V1 or (controllers.exists() and "io" in controllers.read_text().split()):
            return ""
        return "this machine has neither the blkio nor the io controller of cgroups"

    def hold(self, pid: int) -> None:
        clear()
        if self._root == V2:
            (V2 / "cgroup.subtree_control").write_text("+io")
        self._group.mkdir(exist_ok=True)
        name, limit = self._limit()
        (self._group / name).write_text(limit)
        (self._group / "cgroup.procs").write_text(str(pid))

    def lift(self) -> None:
        """May be called twice, and without `hold`."""
        _dissolve(self._group)

    def _limit(self) -> tuple[str, str]:
        number = (Path("/sys/block") / self._device / "dev").read_text().strip()
        if self._root == V1:
            return "blkio.throttle.write_iops_device", f"{number} {self._writes_per_second}"
        return "io.max", f"{number} wiops={self._writes_per_second}"


def clear() -> None:
    """Let go what processes that are gone held."""
    for group in _root().glob(f"{_NAME}-*-*"):
        pid, ticks = group.name.split("-")[-2:]
        if str(start_ticks(int(pid))) != ticks:
            _dissolve(group)


def _root() -> Path:
    return V1 if (V1 / "blkio.throttle.write_iops_device").exists() else V2


def _dissolve(group: Path) -> None:
    if not group.exists():
        return
    for pid in (group / "cgroup.procs").read_text().split():
        with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
            (group.parent / "cgroup.procs").write_text(pid)
    group.rmdir()
