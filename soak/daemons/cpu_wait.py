"""How long this process waited for a processor: a client that is not let run measures its own host."""

from __future__ import annotations

import contextlib
import math
from pathlib import Path

from soak.core.ports import Clock

_TASKS = Path("/proc/self/task")


class WaitMeter:
    """The share of the time since the last call that the thread waited which waited longest, 0 to 1.

    The kernel counts it for each thread, running or ready to run (proc(5): schedstat); client libraries have
    threads of their own, through which each message goes. NaN where a kernel counts nothing.
    """

    def __init__(self, clock: Clock, tasks: Path = _TASKS) -> None:
        self._clock = clock
        self._tasks = tasks
        self._last_ns = clock.mono_ns()
        self._waited_ns = self._read()

    def ratio(self) -> float:
        now_ns, waited_ns = self._clock.mono_ns(), self._read()
        elapsed_ns = now_ns - self._last_ns
        since_ns = [each - self._waited_ns.get(thread, 0) for thread, each in waited_ns.items()]
        self._last_ns, self._waited_ns = now_ns, waited_ns
        return min(1.0, max(since_ns) / elapsed_ns) if since_ns and elapsed_ns > 0 else math.nan

    def _read(self) -> dict[str, int]:
        """Return the nanoseconds that each thread has waited in its life."""
        found = {}
        with contextlib.suppress(OSError):  # no such folder on this kernel
            for thread in self._tasks.iterdir():
                with contextlib.suppress(OSError, IndexError, ValueError):  # it has ended meanwhile
                    found[thread.name] = int((thread / "schedstat").read_bytes().split()[1])
        return found
