"""Flushes files to the drive from a thread of its own: who writes them never waits for the drive."""

from __future__ import annotations

import contextlib
import os
import threading
from queue import SimpleQueue

MOST_WAITING = 2  # behind one that hangs: what they would flush, they flush
CLOSE_SECONDS = 10.0


class BackgroundSync:
    """One flush at a time, in the order in which they were asked for."""

    def __init__(self) -> None:
        self._waiting: SimpleQueue[int | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="journal-sync", daemon=True)

    def ask(self, descriptor: int) -> None:
        """Have flushed what was written so far; the descriptor may be closed at once.

        Raises:
            OSError: no descriptor is left.
        """
        if self._waiting.qsize() >= MOST_WAITING:
            return
        self._waiting.put(os.dup(descriptor))
        if not self._thread.is_alive():
            self._thread.start()

    def close(self) -> None:
        """Let the thread end after what was asked for; a flush that hangs so long is left to itself."""
        self._waiting.put(None)
        if self._thread.ident is not None:
            self._thread.join(CLOSE_SECONDS)

    def _work(self) -> None:
        while (descriptor := self._waiting.get()) is not None:
            with contextlib.suppress(OSError):  # the next flush tries again
                os.fdatasync(descriptor)
            os.close(descriptor)
