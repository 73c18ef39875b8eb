"""A server that pauses after a connection could not be accepted, instead of trying again at once.

What fails an accept, such as too many open files, stays for a while, and the connection waits meanwhile: the
loop of the standard library would use a whole processor. It imports nothing of a page, so every server may
use it.
"""

from __future__ import annotations

import socket
import socketserver
import threading
from typing import Any

_PAUSE_SECONDS = 0.5


class PausingServer(socketserver.TCPServer):
    """A base of servers; `shutdown` ends a pause."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401  # those of the base class
        self._has_ended = threading.Event()
        super().__init__(*args, **kwargs)

    def get_request(self) -> tuple[socket.socket, Any]:
        """Return the next connection; raises `OSError`, after a pause, where it cannot be accepted."""
        try:
            return super().get_request()
        except OSError:
            self._has_ended.wait(_PAUSE_SECONDS)
            raise

    def shutdown(self) -> None:
        """End the loop that serves."""
        self._has_ended.set()
        super().shutdown()
