"""What a daemon that runs beside a load asks of interpreter and kernel: no pauses, no threads that spin."""

from __future__ import annotations

import ctypes
import gc
import os

NET_OBJECTS = 100_000
_PR_SET_TIMERSLACK = 29  # linux/prctl.h
_SLACK_NS = 1000


def one_thread_for_numpy() -> None:
    """Keep numpy from starting a pool of threads; before it is imported, and unless the user has said."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def spare_collections() -> None:
    """Leave what is there now out of every later collection of cycles, and collect rarely.

    Tens of thousands of messages in flight hold no cycles, but each collection would walk over all of
    them: a fifth of a producer's CPU at full speed, and pauses. What grows by NET_OBJECTS still is looked at.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(NET_OBJECTS, 20, 50)


def wake_on_time() -> None:
    """Have the kernel end this thread's sleeps when they are due, not up to 50 us later.

    It puts a thread's wake-ups off to save power: at 10,000/s a sixth of the schedule lag. A kernel that
    refuses leaves it at that.
    """
    ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, _SLACK_NS, 0, 0, 0)
