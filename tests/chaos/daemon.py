"""`soak` on a host whose wall clock somebody moves: `python -m tests.chaos.daemon COMMAND...`.

All of `soak` reads the time through `SystemClock` alone, so that is the place where it is moved: by as many
nanoseconds as the file that `WALL_OFF` names says.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path

from soak.cli import main
from soak.core import clock

WALL_OFF = "SOAK_CHAOS_WALL_OFF"
_BYTES = 8


class MovedClock(clock.SystemClock):
    """The machine's clocks, the wall clock moved by what the shared file says now."""

    def __init__(self) -> None:
        with Path(os.environ[WALL_OFF]).open("rb") as file:
            self._off = mmap.mmap(file.fileno(), _BYTES, prot=mmap.PROT_READ)

    def wall_ns(self) -> int:
        return super().wall_ns() + int.from_bytes(self._off[:_BYTES], "little", signed=True)


def write_off(path: Path, off_ns: int) -> None:
    """Move the clock of all who read this file, at once."""
    raw = off_ns.to_bytes(_BYTES, "little", signed=True)
    if not path.exists():
        path.write_bytes(raw)
    with path.open("r+b") as file:
        file.write(raw)


if __name__ == "__main__":
    clock.SystemClock = MovedClock  # type: ignore[misc]  # each command takes it from there when it is called
    main.run()
