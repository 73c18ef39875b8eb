"""The start of a run on this boot's clocks: stored by the first daemon of a host and read by all others.

A daemon that starts again after the wall clock was moved would else count seconds of its own. Told by
CLOCK_BOOTTIME, which nobody sets and which a suspend does not stop.
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

from soak.core.clock import Grid
from soak.core.ports import Clock
from soak.service.files import write_atomically


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
