"""A wall clock that a file sets: read by the interpreters of daemons at their start, as `sitecustomize`.

Python's own clock alone. A library under the whole process (libfaketime 0.9.10) sets those of the clients'
libraries too, and those wait until an instant: set back, librdkafka takes two thirds of a processor to wait.

Imports the standard library alone: its file is copied to where the daemons find it.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

VARIABLE = "SOAKD_LAB_CLOCK"
"""Names the file: by how many nanoseconds the clock is ahead of the machine's."""

LOOK_NS = 200_000_000  # from one look at the file to the next


class SetClock:
    """What takes the place of `time.time_ns` and `time.time`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._machine_ns = time.time_ns
        self._ahead_ns = self._look_ns = 0

    def time_ns(self) -> int:
        now_ns = time.monotonic_ns()
        if now_ns >= self._look_ns:
            self._look_ns = now_ns + LOOK_NS
            with suppress(OSError):  # who set it has gone
                self._ahead_ns = int(self._path.read_text())
        return self._machine_ns() + self._ahead_ns

    def time(self) -> float:
        return self.time_ns() / 1e9


if __name__ == "sitecustomize":
    _CLOCK = SetClock(Path(os.environ[VARIABLE]))
    time.time_ns, time.time = _CLOCK.time_ns, _CLOCK.time
