"""A thread for what may block, so that a reading returns at once and a hung thread cannot hold the daemon.

An error in the thread is raised from the next `check`, in the thread that reads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable


class Stop:
    """Tells one thread to end. As `threading.Event`, but a wait is one call of the interpreter's own.

    At a few waits a second, what an event does in Python costs as much as the work between them.
    """

    def __init__(self) -> None:
        self._held = threading.Lock()
        self._held.acquire()
        self._is_set = False

    def set(self) -> None:
        if not self._is_set:
            self._is_set = True
            self._held.release()

    def is_set(self) -> bool:
        return self._is_set

    def wait(self, timeout_seconds: float) -> bool:
        """Wait until it is set, at most this long, not at all below 0; return whether it is."""
        if self._held.acquire(timeout=max(0.0, timeout_seconds)):
            self._held.release()
        return self._is_set


Body = Callable[[Stop], None]


class Worker:
    """Runs `body(stop)` on a daemon thread from the first `check` on, and again after it has ended."""

    def __init__(self, name: str, body: Body) -> None:
        self._name = name
        self._body = body
        self._stop = Stop()
        self._lock = threading.Lock()
        self._error: Exception | None = None
        self._thread: threading.Thread | None = None

    def check(self) -> bool:
        """Raise what went wrong since the last call; else start the thread unless it runs.

        Returns:
            True when the thread was started by this call.
        """
        with self._lock:
            error, self._error = self._error, None
        if error is not None:
            raise error
        if self._stop.is_set() or (self._thread is not None and self._thread.is_alive()):
            return False
        self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        self._thread.start()
        return True

    def note(self, error: Exception) -> None:
        """Keep an error for `check` while the thread goes on; a newer one takes its place."""
        with self._lock:
            self._error = error

    def wait(self, timeout_seconds: float) -> None:
        """Wait for the thread to end, at most this long."""
        if self._thread is not None:
            self._thread.join(timeout_seconds)

    def close(self, timeout_seconds: float = 1.0) -> None:
        """Ask the thread to end; one that hangs in the kernel is left behind."""
        self._stop.set()
        self.wait(timeout_seconds)

    def _run(self) -> None:
        try:
            self._body(self._stop)
        except Exception as error:  # noqa: BLE001  # raised again where the reading is made
            self.note(error)
