"""A limit on the writes of processes to one device, by whichever cgroup controller this machine has.

A group is named after the process that made it, so that what a killed one left is known and cleared by the
next; beside it is noted where each process came from, which is where it goes back to. Needs root.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path

from pydantic import TypeAdapter
from pydantic.dataclasses import dataclass

from soak.core.plan.config import STRICT
from soak.lab import leftovers
from soak.service.files import write_atomically

V1, V2 = Path("/sys/fs/cgroup/blkio"), Path("/sys/fs/cgroup")
NOTES = Path("/run/soakd/throttles")
"""A file a group, of its name; a boot empties it, as it ends the groups."""

_NAME = "soakd-lab"


@dataclass(frozen=True, kw_only=True, config=STRICT)
class _Note:
    """What there was before a group."""

    origins: Mapping[int, str] = field(default_factory=dict)  # the groups of those in it, by pid
    has_enabled_io: bool = False  # for the groups below the root, where it was off


class Throttle:
    """Made for a device; `hold` puts a process under it, `lift` lets all of them go."""

    def __init__(self, device: str, writes_per_second: int) -> None:
        self._root = _root()
        self._group = self._root / f"{_NAME}-{leftovers.own_mark()}"
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
        origin = _origin(self._root, pid)
        note = _noted(self._group)
        if origin != self._group:
            note = _Note(
                origins={**note.origins, pid: str(origin)},
                has_enabled_io=note.has_enabled_io or (self._root == V2 and not _has_io()),
            )
            write_atomically(NOTES / self._group.name, TypeAdapter(_Note).dump_json(note).decode())
        if note.has_enabled_io:
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
    """Let go what processes that are gone held, as far as this user may and can tell that they are gone."""
    root, pattern = _root(), f"{_NAME}-{leftovers.visible_marks()}"
    if not os.access(root, os.W_OK):
        return
    # One that ended between two steps has left a note without its group.
    for name in {path.name for path in (*root.glob(pattern), *NOTES.glob(pattern))}:
        if leftovers.has_ended(name.removeprefix(f"{_NAME}-")):
            _dissolve(root / name)


def _root() -> Path:
    return V1 if (V1 / "blkio.throttle.write_iops_device").exists() else V2


def _has_io() -> bool:
    return "io" in (V2 / "cgroup.subtree_control").read_text().split()


def _origin(root: Path, pid: int) -> Path:
    """Return the group that a process is in; a line of cgroups(7) is number:controllers:path."""
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        number, controllers, path = line.split(":", 2)
        if "blkio" in controllers.split(",") if root == V1 else number == "0":
            return root / path.lstrip("/")
    return root


def _noted(group: Path) -> _Note:
    try:
        return TypeAdapter(_Note).validate_json((NOTES / group.name).read_bytes())
    except FileNotFoundError:
        return _Note()


def _dissolve(group: Path) -> None:
    note = _noted(group)
    if group.exists():
        start = next(iter(note.origins.values()), str(group.parent))  # of whose child one may be
        for pid in map(int, (group / "cgroup.procs").read_text().split()):
            _move(pid, Path(note.origins.get(pid, start)), group.parent)
        group.rmdir()
    if note.has_enabled_io and not any(V2.glob(f"{_NAME}-*")):
        with contextlib.suppress(OSError):  # somebody else has come to need it
            (V2 / "cgroup.subtree_control").write_text("-io")
    (NOTES / group.name).unlink(missing_ok=True)


def _move(pid: int, group: Path, otherwise: Path) -> None:
    with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
        try:
            (group / "cgroup.procs").write_text(str(pid))
        except FileNotFoundError:  # the group has gone meanwhile
            (otherwise / "cgroup.procs").write_text(str(pid))
