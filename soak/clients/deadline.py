"""A deadline for a whole conversation over a socket.

A socket timeout restarts with each byte that a slow server sends.
"""

from __future__ import annotations

import _thread
import contextlib
import socket
import threading
from types import TracebackType
from typing import Self

DEADLINE_SECONDS = 60.0
_POLL_SECONDS = 0.5


class Deadline:
    """Shuts a connection down once the deadline has passed; use it in a `with` block."""

    def __init__(self, seconds: float = DEADLINE_SECONDS) -> None:
        self.seconds = seconds
        self.is_over = False
        self._connection: socket.socket | None = None
        self._done = threading.Event()

    def __enter__(self) -> Self:
        # `Thread.start` waits for the thread to report, which never happens when it finds no memory.
        _thread.start_new_thread(self._watch, ())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._done.set()

    def covers(self, connection: socket.socket | None) -> None:
        """Set the connection to shut down; TLS replaces the first one by another."""
        self._connection = connection

    def _watch(self) -> None:
        is_done = self._done.wait(self.seconds)
        while not is_done:
            self.is_over = True
            if self._connection is not None:
                with contextlib.suppress(OSError):  # not connected any more
                    # that of the base class: an SSLSocket would unwrap the encryption first
                    socket.socket.shutdown(self._connection, socket.SHUT_RDWR)
            is_done = self._done.wait(_POLL_SECONDS)
