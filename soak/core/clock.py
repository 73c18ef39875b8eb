"""The only module that reads the time: clocks, the one-second grid of a run, and host suspends."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field

from soak.core.ports import Clock
from soak.core.units import SECOND_NS


class SystemClock:
    """Linux clocks; the only caller of `time` in the project."""

    def mono_ns(self) -> int:
        return time.monotonic_ns()

    def wall_ns(self) -> int:
        return time.time_ns()

    def boot_ns(self) -> int:
        """Return CLOCK_BOOTTIME, which runs on during a suspend while `mono_ns` stands still."""
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME)

    def sleep_until(self, mono_ns: int) -> None:
        """Return at once when the instant has passed."""
        wait_ns = mono_ns - time.monotonic_ns()
        if wait_ns > 0:
            time.sleep(wait_ns / SECOND_NS)


@dataclass(frozen=True, slots=True)
class Grid:
    """The one-second intervals of a run: interval k covers [start + k s, start + (k + 1) s).

    A daemon anchors its grid once. `start_mono_ns` is the run's start on this boot's monotonic clock.
    """

    start_wall_ns: int
    start_mono_ns: int

    @classmethod
    def anchored(cls, start_wall_ns: int, clock: Clock) -> Grid:
        elapsed_ns = clock.wall_ns() - start_wall_ns
        return cls(start_wall_ns, clock.mono_ns() - elapsed_ns)

    def interval_index_at(self, mono_ns: int) -> int:
        """Return the interval that holds this instant; negative before the run's start."""
        return (mono_ns - self.start_mono_ns) // SECOND_NS

    def start_of(self, k: int) -> int:
        """Return the monotonic instant at which interval k begins."""
        return self.start_mono_ns + k * SECOND_NS

    def wall_of(self, k: int) -> int:
        """Return the nominal wall time at which interval k begins, for display only."""
        return self.start_wall_ns + k * SECOND_NS


@dataclass(frozen=True, slots=True)
class RunClock:
    """The current interval of a run, also after a suspend: for daemons that decide and watch.

    A daemon that measures ends its epoch at a suspend and uses the grid instead.
    """

    clock: Clock
    start_boot_ns: int  # the run's start on CLOCK_BOOTTIME

    @classmethod
    def on(cls, grid: Grid, clock: Clock) -> RunClock:
        """Return the clock of a grid that was anchored after the last suspend."""
        return cls(clock, grid.start_mono_ns + clock.boot_ns() - clock.mono_ns())

    def interval_index(self) -> int:
        """Return the interval that holds this instant; negative before the run's start."""
        return (self.clock.boot_ns() - self.start_boot_ns) // SECOND_NS


MIN_SUSPEND_NS = SECOND_NS
MAX_SUSPENDS = 1000
"""The oldest suspends above this number are forgotten."""


@dataclass(slots=True)
class SuspendLog:
    """The recent suspends of this host; call `update` about once a second, which notices them."""

    clock: Clock
    _ahead_ns: int | None = None  # CLOCK_BOOTTIME minus the monotonic clock
    _seen: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=MAX_SUSPENDS))

    def update(self) -> None:
        """Notice a suspend since the last call."""
        now_ns = self.clock.mono_ns()
        ahead_ns = self.clock.boot_ns() - now_ns
        if self._ahead_ns is None:
            self._ahead_ns = ahead_ns
        elif ahead_ns - self._ahead_ns > MIN_SUSPEND_NS:
            self._seen.append((now_ns, ahead_ns - self._ahead_ns))
            self._ahead_ns = ahead_ns

    def between(self, begin_ns: int, end_ns: int) -> int:
        """Return the time between two monotonic instants, suspends included, up to the last `update`."""
        return end_ns - begin_ns + sum(ns for at, ns in self._seen if begin_ns < at <= end_ns)
