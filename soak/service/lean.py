"""What a daemon that runs beside a load asks of the interpreter: no pauses, no threads that spin."""

from __future__ import annotations

import gc
import os

NET_OBJECTS = 100_000


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
