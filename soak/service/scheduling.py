"""What a load daemon asks of the kernel and the interpreter: real-time priority, exact timers, no pauses."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import logging
import os

GC_THRESHOLD_OBJECTS = 100_000
_PR_SET_TIMERSLACK = 29  # linux/prctl.h
_SLACK_NS = 1000


def limit_numpy_threads() -> None:
    """Keep numpy from starting a pool of threads; before it is imported, and unless the user has said."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def reduce_garbage_collection() -> None:
    """Leave what is there now out of every later collection of cycles, and collect rarely.

    Tens of thousands of messages in flight hold no cycles, but each collection would walk over all of
    them: a fifth of a producer's CPU at full speed, and pauses. What grows by NET_OBJECTS still is looked at.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD_OBJECTS, 20, 50)


def minimise_timer_slack() -> None:
    """Have the kernel end this thread's sleeps when they are due, not up to 50 us later.

    It puts a thread's wake-ups off to save power: at 10,000/s a sixth of the schedule lag. A kernel that
    refuses leaves it at that.
    """
    ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, _SLACK_NS, 0, 0, 0)


# --- Real-time priority for a thread that must wake on time, where the user may have it.
# Without it a wake-up waits for whatever runs on the core, a broker's collector or a compiler: at 10,000/s on
# two cores beside a broker some 1 ms at the 99th percentile, against 0.4 ms. Root may have it, and a service
# with `LimitRTPRIO=`.

MAX_BUSY_RATIO = 0.5
"""Cores; a thread that has work all the time must not keep the broker beside it waiting."""
RESUME_BUSY_RATIO = 0.35
"""Below this it goes first again: a load between the two changes nothing."""
_LOWEST = 1

LOG = logging.getLogger("soak.service.scheduling")


class RealTimePriority:
    """Of the thread that makes it; threads that it starts have the usual one."""

    def __init__(self) -> None:
        self._is_first = self._set(is_first=True)
        self._may = self._is_first
        LOG.info("priority real_time=%s", self._is_first)

    @property
    def is_first(self) -> bool:
        """True while the thread goes before all that have the usual priority."""
        return self._is_first

    def adapt(self, busy_ratio: float) -> None:
        """Give way while the thread itself uses much of a core (`busy_ratio`, of the last second)."""
        is_wanted = self._may and busy_ratio < (
            MAX_BUSY_RATIO if self._is_first else RESUME_BUSY_RATIO
        )
        if is_wanted != self._is_first and self._set(is_first=is_wanted):
            self._is_first = is_wanted
            LOG.info("priority real_time=%s busy_ratio=%.2f", is_wanted, busy_ratio)

    @staticmethod
    def _set(*, is_first: bool) -> bool:
        policy = os.SCHED_RR if is_first else os.SCHED_OTHER
        number = _LOWEST if is_first else 0
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, policy | os.SCHED_RESET_ON_FORK, os.sched_param(number))
            return True
        return False
