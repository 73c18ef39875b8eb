"""A limit on the writes of processes to one device, by the cgroup controller that this machine has.

A group is named after the process that made it, so that a later process recognises and removes those of
killed ones. A note names the group that each process came from and goes back to. It needs root.
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
from soak.lab.files import has_ended, own_mark, visible_marks
from soak.service.files import write_atomically

V1, V2 = Path("/sys/fs/cgroup/blkio"), Path("/sys/fs/cgroup")
NOTES = Path("/run/soakd/throttles")
"""One file for each group; a boot empties the folder, as it ends the groups."""

_NAME = "soakd-lab"


@dataclass(frozen=True, kw_only=True, config=STRICT)
class _Note:
    """The state before a group was made."""

    origins: Mapping[int, str] = field(default_factory=dict)  # the former group of each process
    has_enabled_io: bool = False  # whether the io controller was off below the root


class Throttle:
    """A limit on the writes to one device, for the processes that are added to it."""

    def __init__(self, device: str, writes_per_second: int) -> None:
        self._root = _root()
        self._group = self._root / f"{_NAME}-{own_mark()}"
        self._device = device
        self._writes_per_second = writes_per_second

    @property
    def missing(self) -> str:
        """Return what this machine lacks for a limit, or ""."""
        if not os.access(self._root, os.W_OK):
            return "a limit on a process's writes needs root, for a cgroup"
        controllers = V2 / "cgroup.controllers"
        if self._root == V1 or (controllers.exists() and "io" in controllers.read_text().split()):
            return ""
        return "this machine has neither the blkio nor the io controller of cgroups"

    def add(self, pid: int) -> None:
        """Limit the writes of a process."""
        clear_abandoned()
        origin = _group_of(self._root, pid)
        note = _read_note(self._group)
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
        """Give every process its former group back; may be called twice, and without `add`."""
        _remove_group(self._group)

    def _limit(self) -> tuple[str, str]:
        number = (Path("/sys/block") / self._device / "dev").read_text().strip()
        if self._root == V1:
            return "blkio.throttle.write_iops_device", f"{number} {self._writes_per_second}"
        return "io.max", f"{number} wiops={self._writes_per_second}"


def clear_abandoned() -> None:
    """Remove the groups of processes that have ended, if this user may and can see that they have."""
    root, pattern = _root(), f"{_NAME}-{visible_marks()}"
    if not os.access(root, os.W_OK):
        return
    # A process that ended between two steps left a note without a group.
    for name in {path.name for path in (*root.glob(pattern), *NOTES.glob(pattern))}:
        if has_ended(name.removeprefix(f"{_NAME}-")):
            _remove_group(root / name)


def _root() -> Path:
    return V1 if (V1 / "blkio.throttle.write_iops_device").exists() else V2


def _has_io() -> bool:
    return "io" in (V2 / "cgroup.subtree_control").read_text().split()


def _group_of(root: Path, pid: int) -> Path:
    """Return the group of a process; a line in /proc is number:controllers:path, see cgroups(7)."""
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        number, controllers, path = line.split(":", 2)
        if "blkio" in controllers.split(",") if root == V1 else number == "0":
            return root / path.lstrip("/")
    return root


def _read_note(group: Path) -> _Note:
    try:
        return TypeAdapter(_Note).validate_json((NOTES / group.name).read_bytes())
    except FileNotFoundError:
        return _Note()


def _remove_group(group: Path) -> None:
    note = _read_note(group)
    if group.exists():
        start = next(
            iter(note.origins.values()), str(group.parent)
        )  # of a child of a process that was added
        for pid in map(int, (group / "cgroup.procs").read_text().split()):
            _move(pid, Path(note.origins.get(pid, start)), group.parent)
        group.rmdir()
    if note.has_enabled_io and not any(V2.glob(f"{_NAME}-*")):
        with contextlib.suppress(OSError):  # another group needs it by now
            (V2 / "cgroup.subtree_control").write_text("-io")
    (NOTES / group.name).unlink(missing_ok=True)


def _move(pid: int, group: Path, otherwise: Path) -> None:
    with contextlib.suppress(ProcessLookupError):  # the process has ended
        try:
            (group / "cgroup.procs").write_text(str(pid))
        except FileNotFoundError:  # its former group was removed
            (otherwise / "cgroup.procs").write_text(str(pid))
