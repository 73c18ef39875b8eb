"""The start of a run on this boot's clocks: stored by the first daemon of a host and read by all others.

A daemon that starts again after the wall clock was moved would else count seconds of its own. Told by
CLOCK_BOOTTIME, which nobody sets and which a suspend does not stop.
"""

from __future__ import annotations

import json
import socket
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

from soak.core.clock import Grid
from soak.core.ports import Clock
from soak.service.files import write_atomically
from soak.store.run_folder import Run, RunFolder

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def host_name() -> str:
    """Return this host's name as it stands in source names: no character that a path dislikes."""
    return "".join(c if c.isalnum() or c in "-." else "-" for c in socket.gethostname()) or "host"


def boot_id(path: Path = BOOT_ID) -> str:
    """Return the kernel's id of this boot; where there is none, a new one each time, as it equals no other."""
    try:
        known = path.read_text().strip()
    except OSError:
        known = ""
    return known or str(uuid4())


def grid_of(folder: RunFolder, run: Run, clock: Clock) -> Grid:
    """Return the run's seconds on this boot's monotonic clock, the same for all daemons of this host."""
    return anchored_grid(_anchor(folder), boot_id(), run.start_wall_ns, clock)


def has_grid(folder: RunFolder, run: Run) -> bool:
    """True when `grid_of` asks no wall clock: a daemon of this boot has done so."""
    return is_anchored(_anchor(folder), boot_id(), run.start_wall_ns)


def _anchor(folder: RunFolder) -> Path:
    return folder.anchors / f"{host_name()}.json"


def anchored_grid(path: Path, boot: str, start_wall_ns: int, clock: Clock) -> Grid:
    """Return the grid that `path` keeps for this boot; on a new boot anchor one by the wall clock."""
    kept = _kept(path, boot, start_wall_ns)
    if kept is not None:
        return Grid(start_wall_ns, clock.mono_ns() - (clock.boot_ns() - kept))
    grid = Grid.anchored(start_wall_ns, clock)
    start_boot_ns = grid.start_mono_ns + clock.boot_ns() - clock.mono_ns()
    body = {"boot": boot, "start_wall_ns": start_wall_ns, "start_boot_ns": start_boot_ns}
    with suppress(
        OSError
    ):  # a full drive: this daemon goes by the wall clock, as the first one does
        write_atomically(path, json.dumps(body) + "\n")
    return grid


def is_anchored(path: Path, boot: str, start_wall_ns: int) -> bool:
    """True when a daemon of this boot has kept where the run's start lies: no clock is asked any more."""
    return _kept(path, boot, start_wall_ns) is not None


def _kept(path: Path, boot: str, start_wall_ns: int) -> int | None:
    """Return the run's start on CLOCK_BOOTTIME; None of another boot, or where the file is damaged."""
    try:
        body = json.loads(path.read_text())
        is_ours = (body["boot"], body["start_wall_ns"]) == (boot, start_wall_ns)
        return int(body["start_boot_ns"]) if is_ours else None
    except (OSError, ValueError, TypeError, KeyError):
        return None
