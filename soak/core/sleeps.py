"""How long ago an instant of the monotonic clock was, with the time in which the host was asleep."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from soak.core.ports import Clock
from soak.core.units import SECOND_NS

LEAST_NS = SECOND_NS
MOST = 1000
"""Of more sleeps than this the oldest are forgotten."""


@dataclass(slots=True)
class Sleeps:
    """Call `look` about once a second: a sleep is known from when it was seen."""

    clock: Clock
    _ahead_ns: int | None = None  # of the clock of the boot before the monotonic one
    _seen: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=MOST))

    def look(self) -> None:
        now_ns = self.clock.mono_ns()
        ahead_ns = self.clock.boot_ns() - now_ns
        if self._ahead_ns is None:
            self._ahead_ns = ahead_ns
        elif ahead_ns - self._ahead_ns > LEAST_NS:
            self._seen.append((now_ns, ahead_ns - self._ahead_ns))
            self._ahead_ns = ahead_ns

    def between(self, begin_ns: int, end_ns: int) -> int:
        """Return what lay between two monotonic instants, of which the later one has been looked at."""
        return end_ns - begin_ns + sum(ns for at, ns in self._seen if begin_ns < at <= end_ns)
