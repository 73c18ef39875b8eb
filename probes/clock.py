"""How far this host's clock may be off, which bounds the error of latencies measured between hosts.

Source:   adjtimex(2) every second; `chronyc -c tracking` where chronyd answers; wall against monotonic clock.
Overhead: a system call a second, one process every `chrony_period`.
Caveats:  The kernel's maximum error is a bound only where the time daemon sets it, as chronyd and ntpd do:
          systemd-timesyncd and phc2sys set it to 0, which is no bound. Steps above half a second are
          reported by each daemon itself, smaller ones by this probe. Slewing moves the wall and the monotonic
          clock alike: no step.
"""

from __future__ import annotations

import ctypes
import math
import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass

from pydantic.dataclasses import dataclass as config_dataclass

from probes.common.polling import Stop, Worker
from soak.core.errors import NotAvailableError, ProbeError
from soak.core.model import Column, Event, Reading
from soak.core.plan.config import STRICT
from soak.core.ports import Clock
from soak.core.units import SECOND_NS, Duration, duration_ns

_TIME_ERROR = 5  # of linux/timex.h: the clock is marked as not synchronised
_MAX_ERROR_US = 16_000_000  # NTP_PHASE_LIMIT of the kernel, at which it sets that mark itself
_STA_NANO = 0x2000
_FREQUENCY_PARTS = 65_536 * 1e6  # `freq` is ppm with a 16-bit fraction

CHRONY_COMMAND = ("chronyc", "-n", "-c", "tracking")
CHRONY_TIMEOUT_SECONDS = 5.0

_CHRONY_FIELDS = 14  # reference, its name, stratum, its time, system offset, ..., leap status
_OFFSET, _ROOT_DELAY, _ROOT_DISPERSION, _LEAP = 4, 10, 11, 13
_NOT_SYNCHRONISED = "Not synchronised"
_LOCAL_REFERENCE = (
    "7F7F0101"  # 127.127.1.1: configured to serve its own clock, which it then calls exact
)

SMALLEST_STEP_NS = duration_ns("1ms")
LARGEST_STEP_NS = SECOND_NS // 2  # larger ones are reported by soak.runtime.recorder


class TimexStruct(ctypes.Structure):
    """`struct timex`; the fields after `tai` are reserved."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("constant", ctypes.c_long),
        ("precision", ctypes.c_long),
        ("tolerance", ctypes.c_long),
        ("time_seconds", ctypes.c_long),
        ("time_fraction", ctypes.c_long),
        ("tick", ctypes.c_long),
        ("ppsfreq", ctypes.c_long),
        ("jitter", ctypes.c_long),
        ("shift", ctypes.c_int),
        ("stabil", ctypes.c_long),
        ("jitcnt", ctypes.c_long),
        ("calcnt", ctypes.c_long),
        ("errcnt", ctypes.c_long),
        ("stbcnt", ctypes.c_long),
        ("tai", ctypes.c_int),
        ("reserved", ctypes.c_int * 11),
    )


@dataclass(frozen=True, slots=True)
class Timex:
    """In base units. `maxerror_seconds` grows by 500 us a second until the time daemon updates it.

    `is_synchronised` while that is below its limit, as timedatectl says. `is_marked`: the kernel's flag,
    which chronyd sets only where it also keeps the hardware clock (`rtcsync`).
    """

    is_synchronised: bool
    offset_seconds: float
    maxerror_seconds: float
    estimated_error_seconds: float
    frequency_adjustment_ratio: float
    is_marked: bool = True

    @property
    def bound_seconds(self) -> float | None:
        """Return by how much the clock may be off; None where the time daemon does not say.

        A daemon that knows it also sets an estimated error, as chronyd and ntpd do. systemd-timesyncd sets
        both to 0, and phc2sys only the maximum error: the kernel then counts up from 0, which bounds nothing.
        """
        is_known = 0.0 < self.estimated_error_seconds <= self.maxerror_seconds
        return self.maxerror_seconds if self.is_synchronised and is_known else None


AdjtimexCall = Callable[[TimexStruct], int]


def _adjtimex(raw: TimexStruct) -> int:
    return int(ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(raw)))


def read_timex(call: AdjtimexCall = _adjtimex) -> Timex:
    """Read the kernel's clock state by adjtimex(2), which needs no privileges; `modes` of 0 changes nothing.

    Raises:
        NotAvailableError: the kernel, or a filter of system calls, refuses it.
    """
    raw = TimexStruct()
    try:
        state = call(raw)
    except AttributeError as error:
        raise NotAvailableError("this C library has no adjtimex") from error
    if state < 0:
        reason = os.strerror(ctypes.get_errno())
        raise NotAvailableError(f"adjtimex is refused: {reason}")
    parts = 1e9 if raw.status & _STA_NANO else 1e6
    return Timex(
        is_synchronised=raw.maxerror < _MAX_ERROR_US,
        offset_seconds=raw.offset / parts,
        maxerror_seconds=raw.maxerror / 1e6,
        estimated_error_seconds=raw.esterror / 1e6,
        frequency_adjustment_ratio=1.0 + raw.freq / _FREQUENCY_PARTS,
        is_marked=state != _TIME_ERROR,
    )


def ask_chrony() -> str:
    """Return the output of `chronyc tracking`; may block for `CHRONY_TIMEOUT_SECONDS`.

    Raises:
        ProbeError: chronyc is not installed, or no chronyd answers it.
    """
    try:
        done = subprocess.run(
            CHRONY_COMMAND,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=CHRONY_TIMEOUT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ProbeError(f"cannot run chronyc: {error}") from error
    if done.returncode:
        reason = (done.stdout or done.stderr).strip()
        raise ProbeError(f"chronyc failed: {reason}")
    return done.stdout


def parse_chrony_bound(text: str) -> float | None:
    """Return how far the clock may be off; None while chronyd has no source.

    The bound of chronyc(1), "tracking": offset, root dispersion and half the root delay.

    Raises:
        ProbeError: the text is not in chronyc's format.
    """
    fields = text.removesuffix("\n").split(",")
    if len(fields) != _CHRONY_FIELDS or not text.endswith("\n"):
        raise _unreadable(text)
    if fields[_LEAP] == _NOT_SYNCHRONISED or fields[0] == _LOCAL_REFERENCE:
        return None
    offset, delay, dispersion = (
        _number(fields[at], text) for at in (_OFFSET, _ROOT_DELAY, _ROOT_DISPERSION)
    )
    if min(delay, dispersion) < 0.0:
        raise _unreadable(text)
    return abs(offset) + dispersion + delay / 2


def _number(field: str, text: str) -> float:
    try:
        value = float(field)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise _unreadable(text)
    return value


def _unreadable(text: str) -> ProbeError:
    return ProbeError(f"cannot read this output of chronyc: {text!r}")


@config_dataclass(frozen=True, kw_only=True, config=STRICT)
class Config:
    chrony_period: Duration = duration_ns("16s")  # between two runs of chronyc

    def __post_init__(self) -> None:
        if not SECOND_NS <= self.chrony_period <= 3600 * SECOND_NS:
            raise ValueError("chrony_period must lie between 1s and 1h")


def build(config: Config, clock: Clock) -> ClockProbe:
    return ClockProbe(config, clock)


class ClockProbe:
    def __init__(
        self,
        config: Config,
        clock: Clock,
        *,
        kernel: Callable[[], Timex] = read_timex,
        chrony: Callable[[], str] = ask_chrony,
    ) -> None:
        self._config = config
        self._clock = clock
        self._kernel = kernel
        self._chrony = chrony
        self._worker = Worker("chrony", self._ask)
        self._chrony_bound: float | None = None  # of the last `chrony_period`
        self._ahead_ns: int | None = None
        self._since_ns = 0
        self._was_synchronised: tuple[bool, int] | None = None  # and when that was read

    def read(self) -> Reading:
        """Return the kernel's clock state, the best known bound, and the events since the last reading."""
        begin_ns = self._clock.mono_ns()
        self._worker.check()
        kernel = self._kernel()
        samples = [
            (Column("node_timex_sync_status", (), "ratio"), float(kernel.is_marked)),
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
        events = (*self._steps(), *self._synchronisation(kernel))
        return Reading(tuple(samples), events, (self._clock.mono_ns() - begin_ns) / SECOND_NS)

    def close(self) -> None:
        self._worker.close()

    def _bound(self, kernel: Timex) -> list[tuple[Column, float]]:
        """Return the bound; nothing where none is known."""
        source, seconds = "chrony", self._chrony_bound
        if seconds is None:
            source, seconds = "kernel", kernel.bound_seconds
        if seconds is None:
            return []
        column = Column("clock_offset_bound_seconds", (("source", source),), "seconds")
        return [(column, seconds)]

    def _steps(self) -> tuple[Event, ...]:
        """Return an event for a step of the wall clock that is too small for the recorder to report."""
        before_ns = self._clock.mono_ns()
        wall_ns = self._clock.wall_ns()
        after_ns = self._clock.mono_ns()
        if (
            after_ns - before_ns > SMALLEST_STEP_NS
        ):  # interrupted: the next reading will show a step
            return ()
        ahead_ns = wall_ns - before_ns
        last_ns, self._ahead_ns = self._ahead_ns, ahead_ns
        since_ns, self._since_ns = self._since_ns, wall_ns
        moved_ns = 0 if last_ns is None else ahead_ns - last_ns
        if not SMALLEST_STEP_NS < abs(moved_ns) <= LARGEST_STEP_NS:
            return ()
        return (Event("clock_step", wall_ns, since_ns, {"seconds": moved_ns / SECOND_NS}),)

    def _synchronisation(self, kernel: Timex) -> tuple[Event, ...]:
        """Return an event if the clock has lost or regained its synchronisation."""
        now_ns, last = self._clock.wall_ns(), self._was_synchronised
        self._was_synchronised = kernel.is_synchronised, now_ns
        if last is None or last[0] == kernel.is_synchronised:
            return ()
        kind = "clock_synchronised" if kernel.is_synchronised else "clock_unsynchronised"
        return (Event(kind, now_ns, last[1], {"maxerror_seconds": kernel.maxerror_seconds}),)

    def _ask(self, stop: Stop) -> None:
        while True:
            try:
                self._chrony_bound = parse_chrony_bound(self._chrony())
            except ProbeError:  # the bound then comes from the kernel, as `source` says
                self._chrony_bound = None
            if stop.wait(self._config.chrony_period / SECOND_NS):
                return
