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
    """Interval k covers [start + k s, start + (k + 1) s); anchored once a daemon, never again.

    `start_mono_ns` is where the run's start lies on this boot's monotonic clock, as judged from the
    wall clock when the daemon started.
    """

    start_wall_ns: int
    start_mono_ns: int

    @classmethod
    def anchored(cls, start_wall_ns: int, clock: Clock) -> Grid:
        elapsed_ns = clock.wall_ns() - start_wall_ns
        return cls(start_wall_ns, clock.mono_ns() - elapsed_ns)

    def k_at(self, mono_ns: int) -> int:
        """Return the interval that holds this instant; negative before the run's start."""
        return (mono_ns - self.start_mono_ns) // SECOND_NS

    def start_of(self, k: int) -> int:
        """Return the monotonic instant at which interval k begins."""
        return self.start_mono_ns + k * SECOND_NS

    def wall_of(self, k: int) -> int:
        """Return the nominal wall time at which interval k begins: for people, not for arithmetic."""
        return self.start_wall_ns + k * SECOND_NS


@dataclass(frozen=True, slots=True)
class RunClock:
    """Says which second of its run it is, also after a suspend: for who decides and watches.

    Who measures must not go on over a suspend, and counts on the grid of an incarnation.
    """

    clock: Clock
    start_boot_ns: int  # the run's start on CLOCK_BOOTTIME

    @classmethod
    def on(cls, grid: Grid, clock: Clock) -> RunClock:
        """Return it for a grid that was anchored since the last suspend."""
        return cls(clock, grid.start_mono_ns + clock.boot_ns() - clock.mono_ns())

    def k(self) -> int:
        """Return the interval that holds this instant; negative before the run's start."""
        return (self.clock.boot_ns() - self.start_boot_ns) // SECOND_NS


# --- How long ago an instant of the monotonic clock was, with the time in which the host was asleep.

MIN_SUSPEND_NS = SECOND_NS
MAX_SUSPENDS = 1000
"""Of more sleeps than this the oldest are forgotten."""


@dataclass(slots=True)
class SuspendLog:
    """Call `look` about once a second: a sleep is known from when it was seen."""

    clock: Clock
    _ahead_ns: int | None = None  # of the clock of the boot before the monotonic one
    _seen: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=MAX_SUSPENDS))

    def look(self) -> None:
        now_ns = self.clock.mono_ns()
        ahead_ns = self.clock.boot_ns() - now_ns
        if self._ahead_ns is None:
            self._ahead_ns = ahead_ns
        elif ahead_ns - self._ahead_ns > MIN_SUSPEND_NS:
            self._seen.append((now_ns, ahead_ns - self._ahead_ns))
            self._ahead_ns = ahead_ns

    def between(self, begin_ns: int, end_ns: int) -> int:
        """Return what lay between two monotonic instants, of which the later one has been looked at."""
        return end_ns - begin_ns + sum(ns for at, ns in self._seen if begin_ns < at <= end_ns)
