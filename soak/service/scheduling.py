"""What a load daemon asks of the kernel and the interpreter: real-time priority, exact timers, no pauses."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import logging
import os

LOG = logging.getLogger(__name__)
GC_THRESHOLD_OBJECTS = 100_000
MAX_BUSY_RATIO = 0.5
"""In cores: a thread that is busy all the time must not keep a broker on this machine waiting."""
RESUME_BUSY_RATIO = 0.35
"""Below this the thread gets its priority back; a load between the two changes nothing."""
_LOWEST_REAL_TIME = 1
_PR_SET_TIMERSLACK = 29  # linux/prctl.h
_SLACK_NS = 1000


def limit_numpy_threads() -> None:
    """Keep numpy from starting a thread pool, unless the user configured one; call it before the import."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def reduce_garbage_collection() -> None:
    """Exclude the present objects from every later garbage collection, and collect rarely.

    Tens of thousands of messages in flight form no cycles, but each collection would visit all of them: a
    fifth of a producer's CPU at full speed, and pauses. Each `GC_THRESHOLD_OBJECTS` new objects are still
    collected.
    """
    keep_present_objects()
    gc.set_threshold(GC_THRESHOLD_OBJECTS, 20, 50)


def keep_present_objects() -> None:
    """Exclude the present objects, such as loaded modules, from every later garbage collection."""
    gc.collect()
    gc.freeze()


def minimise_timer_slack() -> None:
    """Ask the kernel to end the sleeps of this thread on time, not up to 50 us later.

    It delays wake-ups to save power, at 10,000/s by a sixth of the schedule lag. A refusal is ignored.
    """
    ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, _SLACK_NS, 0, 0, 0)


class RealTimePriority:
    """Real-time priority for the thread that creates it, where the user may have it; not for its children.

    Without it a wake-up waits for whatever runs on the core, as the garbage collector or the compiler of a
    broker: at 10,000/s on two cores with a broker some 1 ms at the 99th percentile, instead of 0.4 ms. Root
    may have it, and a service with `LimitRTPRIO=`.
    """

    def __init__(self) -> None:
        self._is_real_time = self._set(is_real_time=True)
        self._is_allowed = self._is_real_time
        LOG.info("priority real_time=%s", self._is_real_time)

    @property
    def is_real_time(self) -> bool:
        """True while the thread runs before all threads of usual priority."""
        return self._is_real_time

    def adapt(self, busy_ratio: float) -> None:
        """Give up the priority while the thread uses much of a core (`busy_ratio`, of the last second)."""
        limit = MAX_BUSY_RATIO if self._is_real_time else RESUME_BUSY_RATIO
        is_wanted = self._is_allowed and busy_ratio < limit
        if is_wanted != self._is_real_time and self._set(is_real_time=is_wanted):
            self._is_real_time = is_wanted
            LOG.info("priority real_time=%s busy_ratio=%.2f", is_wanted, busy_ratio)

    @staticmethod
    def _set(*, is_real_time: bool) -> bool:
        policy = os.SCHED_RR if is_real_time else os.SCHED_OTHER
        number = _LOWEST_REAL_TIME if is_real_time else 0
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, policy | os.SCHED_RESET_ON_FORK, os.sched_param(number))
            return True
        return False
