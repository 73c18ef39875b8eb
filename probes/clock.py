"""How far this host's clock may be off: what end-to-end latency between hosts is worth.

Source:   adjtimex(2) every second; `chronyc -c tracking` where chronyd answers; wall against monotonic clock.
Overhead: a system call a second, one process every `chrony_period`.
Caveats:  The kernel's maximum error is a bound only as far as the time daemon tells it one: chronyd and ntpd
          do, systemd-timesyncd sets it to 0 at every poll. Steps above half a second are told by every daemon
          itself; here it is the smaller ones. To slew a clock moves wall and monotonic alike and is no step.
"""

from __future__ import annotations

from collections.abc import Callable

from pydantic.dataclasses import dataclass

from probes import _chrony, _timex
from probes._worker import Stop, Worker
from soak.core.errors import ProbeError
from soak.core.model import Column, Event, Reading
from soak.core.plan_base import STRICT
from soak.core.ports import Clock
from soak.core.units import SECOND_NS, Duration, duration_ns

SMALLEST_STEP_NS = duration_ns("1ms")
LARGEST_STEP_NS = SECOND_NS // 2  # above it, soak.daemons.recorder tells of it


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Config:
    chrony_period: Duration = duration_ns("16s")  # chronyc is asked this often

    def __post_init__(self) -> None:
        if not SECOND_NS <= self.chrony_period <= 3600 * SECOND_NS:
            raise ValueError("chrony_period must lie between 1s and 1h")


def build(config: Config, clock: Clock) -> KeptClock:
    return KeptClock(config, clock)


class KeptClock:
    def __init__(
        self,
        config: Config,
        clock: Clock,
        *,
        kernel: Callable[[], _timex.Timex] = _timex.read,
        chrony: Callable[[], str] = _chrony.ask,
    ) -> None:
        self._config = config
        self._clock = clock
        self._kernel = kernel
        self._chrony = chrony
        self._worker = Worker("chrony", self._ask)
        self._told: float | None = None  # by chronyd, in the last `chrony_period`
        self._ahead_ns: int | None = None
        self._since_ns = 0
        self._kept: tuple[bool, int] | None = None  # by the kernel's word, and when it said so

    def read(self) -> Reading:
        """Return the kernel's state, the best bound known, and what happened since the last reading."""
        begin_ns = self._clock.mono_ns()
        self._worker.check()
        kernel = self._kernel()
        samples = [
            (Column("node_timex_sync_status", (), "ratio"), float(kernel.is_synchronised)),
            (Column("node_timex_offset_seconds", (), "seconds"), kernel.offset_seconds),
            (Column("node_timex_maxerror_seconds", (), "seconds"), kernel.maxerror_seconds),
            (
                Column("node_timex_estimated_error_seconds", (), "seconds"),
                kernel.estimated_error_seconds,
            ),
            (
                Column("node_timex_frequency_adjustment_ratio", (), "ratio"),
                kernel.frequency_adjustment_ratio,
            ),
            *self._bound(kernel),
        ]
        events = (*self._steps(), *self._turns(kernel))
        return Reading(tuple(samples), events, (self._clock.mono_ns() - begin_ns) / SECOND_NS)

    def close(self) -> None:
        self._worker.close()

    def _bound(self, kernel: _timex.Timex) -> list[tuple[Column, float]]:
        """Return nothing for a clock that nobody keeps: then there is no bound."""
        told = self._told
        if told is not None:
            source, seconds = "chrony", told
        elif kernel.is_synchronised:
            source, seconds = "kernel", kernel.maxerror_seconds
        else:
            return []
        column = Column("clock_offset_bound_seconds", (("source", source),), "seconds")
        return [(column, seconds)]

    def _steps(self) -> tuple[Event, ...]:
        """Tell a jump of the wall clock against the monotonic one, as large as the recorder does not."""
        before_ns = self._clock.mono_ns()
        wall_ns = self._clock.wall_ns()
        after_ns = self._clock.mono_ns()
        if (
            after_ns - before_ns > SMALLEST_STEP_NS
        ):  # interrupted in between: the next one will tell
            return ()
        ahead_ns = wall_ns - before_ns
        last_ns, self._ahead_ns = self._ahead_ns, ahead_ns
        since_ns, self._since_ns = self._since_ns, wall_ns
        moved_ns = 0 if last_ns is None else ahead_ns - last_ns
        if not SMALLEST_STEP_NS < abs(moved_ns) <= LARGEST_STEP_NS:
            return ()
        return (Event("clock_step", wall_ns, since_ns, {"seconds": moved_ns / SECOND_NS}),)

    def _turns(self, kernel: _timex.Timex) -> tuple[Event, ...]:
        """Tell that from now on nobody keeps the clock, or that somebody does again."""
        now_ns, last = self._clock.wall_ns(), self._kept
        self._kept = kernel.is_synchronised, now_ns
        if last is None or last[0] == kernel.is_synchronised:
            return ()
        kind = "clock_kept_again" if kernel.is_synchronised else "clock_not_kept"
        return (Event(kind, now_ns, last[1], {"maxerror_seconds": kernel.maxerror_seconds}),)

    def _ask(self, stop: Stop) -> None:
        while True:
            try:
                self._told = _chrony.bound_seconds(self._chrony())
            except (
                ProbeError
            ):  # the kernel tells as much as it knows; `source` says that it is the one
                self._told = None
            if stop.wait(self._config.chrony_period / SECOND_NS):
                return
