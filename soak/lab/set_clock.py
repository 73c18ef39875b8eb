"""A wall clock that a file steps; daemons load it at their start as `sitecustomize`.

Only Python's own clock is stepped. A library under the whole process (libfaketime 0.9.10) also steps the
clocks of client libraries, which wait until an instant: after a step back, librdkafka spends two thirds of
a processor on waiting.

It imports only the standard library, because its file is copied to a folder on the daemons' path.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

VARIABLE = "SOAKD_LAB_CLOCK"
"""Names the file, which holds the difference from the machine's clock in nanoseconds."""

READ_INTERVAL_NS = 200_000_000


class SetClock:
    """A replacement for `time.time_ns` and `time.time`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._machine_ns = time.time_ns
        self._offset_ns = self._next_read_ns = 0

    def time_ns(self) -> int:
        now_ns = time.monotonic_ns()
        if now_ns >= self._next_read_ns:
            self._next_read_ns = now_ns + READ_INTERVAL_NS
            with suppress(OSError):  # the process that steps it has ended
                self._offset_ns = int(self._path.read_text())
        return self._machine_ns() + self._offset_ns

    def time(self) -> float:
        return self.time_ns() / 1e9


if __name__ == "sitecustomize":
    _CLOCK = SetClock(Path(os.environ[VARIABLE]))
    time.time_ns, time.time = _CLOCK.time_ns, _CLOCK.time
