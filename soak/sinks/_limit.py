"""One limit over a whole conversation: a time-out begins anew with each byte that a slow server sends."""

from __future__ import annotations

import contextlib
import socket
import threading
from types import TracebackType
from typing import Self

LONGEST_SECONDS = 60.0
_LOOK_SECONDS = 0.5


class Limit:
    """Shuts the connection that it is told of down once its seconds are over; use it in a `with` block."""

    def __init__(self, seconds: float = LONGEST_SECONDS) -> None:
        self.seconds = seconds
        self.is_over = False
        self._connection: socket.socket | None = None
        self._done = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._watch, name="limit", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._done.set()
        if self._thread is not None:
            self._thread.join()

    def covers(self, connection: socket.socket | None) -> None:
        """Take this connection for the one to shut down; TLS puts another in the place of the first."""
        self._connection = connection

    def _watch(self) -> None:
        is_done = self._done.wait(self.seconds)
        while not is_done:
            self.is_over = True
            if self._connection is not None:
                with contextlib.suppress(OSError):  # not connected any more
                    # of the class itself: that of an SSLSocket takes the encryption away first
                    socket.socket.shutdown(self._connection, socket.SHUT_RDWR)
            is_done = self._done.wait(_LOOK_SECONDS)
