"""CPU wait: how long the threads of this process waited for a processor."""

from __future__ import annotations

import contextlib
import math
import os
from pathlib import Path

from soak.core.ports import Clock

_TASKS = Path("/proc/self/task")
_MAX_THREADS = 64
_RESCAN_CALLS = 10  # after so many it looks again which threads there are


class CpuWaitMeter:
    """The share of the time since the last call that the thread waited which waited longest, 0 to 1.

    The kernel counts it for each thread (proc(5): schedstat), a wait in the second in which it ends; client
    libraries have threads of their own, through which each message goes. Of very many the oldest count. NaN
    at first, and where a kernel counts nothing.
    """

    def __init__(self, clock: Clock, tasks: Path = _TASKS) -> None:
        self._clock = clock
        self._tasks = tasks
        self._last_ns = 0
        self._calls = 0
        self._open: dict[str, int] = {}  # descriptors by thread: opening one costs ten reads
        self._waited_ns: dict[str, int] = {}

    def ratio(self) -> float:
        """Return it; call it once a second."""
        if self._calls % _RESCAN_CALLS == 0:
            self._look()
        self._calls += 1
        now_ns, waited_ns = self._clock.mono_ns(), self._read()
        elapsed_ns = now_ns - self._last_ns
        since_ns = [
            each - self._waited_ns[thread]
            for thread, each in waited_ns.items()
            if thread in self._waited_ns
        ]
        self._last_ns, self._waited_ns = now_ns, waited_ns
        return min(1.0, max(since_ns) / elapsed_ns) if since_ns and elapsed_ns > 0 else math.nan

    def _look(self) -> None:
        with contextlib.suppress(OSError):  # no such folder on this kernel
            threads = sorted(self._tasks.iterdir(), key=lambda path: int(path.name))
            for path in threads[:_MAX_THREADS]:
                if path.name not in self._open:
                    with contextlib.suppress(OSError):  # it has ended meanwhile
                        flags = os.O_RDONLY | os.O_CLOEXEC
                        self._open[path.name] = os.open(path / "schedstat", flags)

    def _read(self) -> dict[str, int]:
        """Return the nanoseconds that each thread has waited in its life; none where nothing is counted."""
        ran_ns, waited_ns = 0, {}
        for name, descriptor in list(self._open.items()):
            try:
                ran, waited, _ = map(int, os.pread(descriptor, 64, 0).split())
            except (OSError, ValueError):  # it has ended
                os.close(self._open.pop(name))
                continue
            ran_ns += ran
            waited_ns[name] = waited
        return waited_ns if ran_ns else {}
