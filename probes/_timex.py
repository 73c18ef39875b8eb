"""The kernel's own view of how well the clock is kept: adjtimex(2), which anyone may read."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from dataclasses import dataclass

from soak.core.errors import NotAvailableError

_ERROR = 5  # TIME_ERROR of linux/timex.h: nobody keeps this clock
_STA_NANO = 0x2000
_FREQUENCY_PARTS = 65_536 * 1e6  # `freq` is ppm with a 16-bit fraction


class _Raw(ctypes.Structure):
    """`struct timex`; what follows `tai` is reserved."""

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
    """In base units. `maxerror_seconds` grows by 500 us a second until the clock is set right again."""

    is_synchronised: bool
    offset_seconds: float
    maxerror_seconds: float
    estimated_error_seconds: float
    frequency_adjustment_ratio: float


Call = Callable[[_Raw], int]


def _adjtimex(raw: _Raw) -> int:
    return int(ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(raw)))


def read(call: Call = _adjtimex) -> Timex:
    """Ask the kernel; `modes` of 0 changes nothing.

    Raises:
        NotAvailableError: the kernel, or a filter of system calls, refuses.
    """
    raw = _Raw()
    try:
        state = call(raw)
    except AttributeError as error:
        raise NotAvailableError("this C library has no adjtimex") from error
    if state < 0:
        reason = os.strerror(ctypes.get_errno())
        raise NotAvailableError(f"adjtimex is refused: {reason}")
    parts = 1e9 if raw.status & _STA_NANO else 1e6
    return Timex(
        is_synchronised=state != _ERROR,
        offset_seconds=raw.offset / parts,
        maxerror_seconds=raw.maxerror / 1e6,
        estimated_error_seconds=raw.esterror / 1e6,
        frequency_adjustment_ratio=1.0 + raw.freq / _FREQUENCY_PARTS,
    )
