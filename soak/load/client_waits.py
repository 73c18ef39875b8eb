"""How long the clients of this process were made to wait: for a processor, and by a broker's quota.

A client that gets no processor time measures its own host instead of the cluster; one that brokers throttle
measures its quota.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from soak.core.model import Column
from soak.core.ports import Clock
from soak.runtime.recorder import Recorder

_TASKS = Path("/proc/self/task")
_MAX_THREADS = 64
_RESCAN_CALLS = 10  # calls between two scans for new threads

THROTTLED_EVENT = "throttled"
_AGAIN_SECONDS = 60
"""A broker that throttles again after so many seconds without a throttle is reported again."""


class CpuWaitMeter:
    """Measures the share of time, 0 to 1, that the thread which waited longest had to wait.

    The kernel counts the wait of each thread (proc(5): schedstat) in the second in which it ends. All threads
    are measured, because messages pass through the threads of the client library; of more than 64 threads the
    oldest.
    """

    def __init__(self, clock: Clock, tasks: Path = _TASKS) -> None:
        self._clock = clock
        self._tasks = tasks
        self._last_ns = 0
        self._calls = 0
        self._open: dict[
            str, int
        ] = {}  # file descriptors by thread: opening costs as much as ten reads
        self._waited_ns: dict[str, int] = {}

    def ratio(self) -> float:
        """Return the ratio since the last call; NaN at first, and where the kernel does not count.

        Call it once a second.
        """
        if self._calls % _RESCAN_CALLS == 0:
            self._open_new_threads()
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

    def _open_new_threads(self) -> None:
        with contextlib.suppress(OSError):  # this kernel has no such folder
            threads = sorted(self._tasks.iterdir(), key=lambda path: int(path.name))
            for path in threads[:_MAX_THREADS]:
                if path.name not in self._open:
                    with contextlib.suppress(OSError):  # the thread has ended
                        flags = os.O_RDONLY | os.O_CLOEXEC
                        self._open[path.name] = os.open(path / "schedstat", flags)

    def _read(self) -> dict[str, int]:
        """Return by thread the nanoseconds waited since it started; empty where the kernel does not count."""
        ran_ns, waited_ns = 0, {}
        for name, descriptor in list(self._open.items()):
            try:
                ran, waited, _ = map(int, os.pread(descriptor, 64, 0).split())
            except (OSError, ValueError):  # the thread has ended
                os.close(self._open.pop(name))
                continue
            ran_ns += ran
            waited_ns[name] = waited
        return waited_ns if ran_ns else {}


class Throttled(Protocol):
    def throttle_seconds(self) -> Mapping[str, float] | None: ...


class Throttling:
    """Makes the column of each second, and an event where a broker begins to throttle."""

    def __init__(self, clients: Sequence[Throttled], recorder: Recorder) -> None:
        self._clients = clients
        self._recorder = recorder
        self._last_k: dict[str, int] = {}

    def columns(self, k: int) -> list[tuple[Column, float]]:
        """Return the longest wait that is reported; no column where no client reports it."""
        reports = [one.throttle_seconds() for one in self._clients]
        known = [one for one in reports if one is not None]
        if not known:
            return []
        longest: dict[str, float] = {}
        for report in known:
            for broker, seconds in report.items():
                longest[broker] = max(seconds, longest.get(broker, 0.0))
        for broker, seconds in longest.items():
            if k - self._last_k.get(broker, -_AGAIN_SECONDS) >= _AGAIN_SECONDS:
                self._recorder.note_event(THROTTLED_EVENT, {"broker": broker, "seconds": seconds})
            self._last_k[broker] = k
        column = Column("throttle_seconds", (), "seconds")
        return [(column, max(longest.values(), default=0.0))]
