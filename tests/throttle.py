"""A limit on the writes of one process to one device, by whichever cgroup controller this machine has."""

from __future__ import annotations

import os
from pathlib import Path

V1, V2 = Path("/sys/fs/cgroup/blkio"), Path("/sys/fs/cgroup")
NAME = "soakd-test"


class Throttle:
    """Made for a device; `hold` puts a process under it, `lift` lets all of them go."""

    def __init__(self, device: str, writes_per_second: int) -> None:
        self._root = V1 if (V1 / "blkio.throttle.write_iops_device").exists() else V2
        self._group = self._root / f"{NAME}-{os.getpid()}"
        number = (Path("/sys/block") / device / "dev").read_text().strip()
        if self._root == V1:
            self._limit = ("blkio.throttle.write_iops_device", f"{number} {writes_per_second}")
        else:
            self._limit = ("io.max", f"{number} wiops={writes_per_second}")

    @property
    def lack(self) -> str:
        """Return what this machine lacks, or ""."""
        controllers = V2 / "cgroup.controllers"
        if self._root == V1 or (controllers.exists() and "io" in controllers.read_text().split()):
            return ""
        return "this machine has neither the blkio nor the io controller of cgroups"

    def hold(self, pid: int) -> None:
        if self._root == V2:
            (V2 / "cgroup.subtree_control").write_text("+io")
        self._group.mkdir()
        name, limit = self._limit
        (self._group / name).write_text(limit)
        (self._group / "cgroup.procs").write_text(str(pid))

    def lift(self) -> None:
        """May be called twice, and without `hold`."""
        if self._group.exists():
            for pid in (self._group / "cgroup.procs").read_text().split():
                (self._root / "cgroup.procs").write_text(pid)
            self._group.rmdir()
