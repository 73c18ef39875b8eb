"""The one place that reads time, and the whole-second grid of a run counted on the monotonic clock."""

from __future__ import annotations

import time
from dataclasses import dataclass

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
