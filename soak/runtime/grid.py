"""The start of a run on this boot's clocks: stored by the first daemon of a host and read by all others.

Otherwise a daemon that restarts after a step of the wall clock would count other intervals. The start is
stored on CLOCK_BOOTTIME, which is never set and which a suspend does not stop.
"""

from __future__ import annotations

import json
import socket
from contextlib import suppress
from pathlib import Path
from time import CLOCK_BOOTTIME
from uuid import uuid4

from soak.core.clock import Grid
from soak.core.ports import Clock
from soak.service.files import read_json, write_atomically
from soak.store.run_folder import Run, RunFolder

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def host_name() -> str:
    """Return this host's name for source names, without characters that are special in paths."""
    name = socket.gethostname()
    return "".join(c if c.isascii() and (c.isalnum() or c in "-.") else "-" for c in name) or "host"


def boot_id(path: Path = BOOT_ID) -> str:
    """Return the kernel's id of this boot, or a constant of this host: for files that only it reads."""
    return _kernel_boot_id(path) or f"{host_name()}-{CLOCK_BOOTTIME}"


def boot_id_for_messages(path: Path = BOOT_ID) -> str:
    """Return the kernel's id of this boot, or a new id on each call: an unknown boot equals no other."""
    return _kernel_boot_id(path) or str(uuid4())


def _kernel_boot_id(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def grid_of(folder: RunFolder, run: Run, clock: Clock) -> Grid:
    """Return the run's grid on this boot's monotonic clock, the same for all daemons of this host."""
    return anchored_grid(_anchor(folder), boot_id(), run.start_wall_ns, clock)


def has_grid(folder: RunFolder, run: Run) -> bool:
    """True when a daemon of this boot has stored the grid, so that `grid_of` does not read the wall clock."""
    return is_anchored(_anchor(folder), boot_id(), run.start_wall_ns)


def _anchor(folder: RunFolder) -> Path:
    return folder.anchors / f"{host_name()}.json"


def anchored_grid(path: Path, boot: str, start_wall_ns: int, clock: Clock) -> Grid:
    """Return the grid that `path` holds for this boot; on a new boot, anchor and store one."""
    kept = _kept(path, boot, start_wall_ns)
    if kept is not None:
        return Grid(start_wall_ns, clock.mono_ns() - (clock.boot_ns() - kept))
    grid = Grid.anchored(start_wall_ns, clock)
    start_boot_ns = grid.start_mono_ns + clock.boot_ns() - clock.mono_ns()
    body = {"boot": boot, "start_wall_ns": start_wall_ns, "start_boot_ns": start_boot_ns}
    with suppress(OSError):  # a full drive: this daemon uses the wall clock, as the first one does
        write_atomically(path, json.dumps(body) + "\n")
    return grid


def is_anchored(path: Path, boot: str, start_wall_ns: int) -> bool:
    """True when a daemon of this boot has stored the run's start."""
    return _kept(path, boot, start_wall_ns) is not None


def _kept(path: Path, boot: str, start_wall_ns: int) -> int | None:
    """Return the run's start on CLOCK_BOOTTIME; None for another boot or a damaged file."""
    try:
        body = read_json(path)
        stored_boot = str(body["boot"]).strip()  # version 0.1.0 stored it with a newline
        is_ours = (stored_boot, body["start_wall_ns"]) == (boot, start_wall_ns)
        return int(body["start_boot_ns"]) if is_ours else None
    except (OSError, ValueError, TypeError, KeyError):
        return None
