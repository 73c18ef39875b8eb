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

from soak.core.clock import SystemClock
from soak.core.units import SECOND_NS

DEADLINE_SECONDS = 60.0
_POLL_SECONDS = 0.5


class Deadline:
    """Shuts a connection down once the deadline has passed; use it in a `with` block."""

    def __init__(self, seconds: float = DEADLINE_SECONDS) -> None:
        self.seconds = seconds
        self.is_over = False
        self._end_ns = SystemClock().mono_ns() + int(seconds * SECOND_NS)
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

    def remaining_seconds(self) -> float:
        """Return how long the conversation may still take.

        Raises:
            TimeoutError: it is over.
        """
        remaining = (self._end_ns - SystemClock().mono_ns()) / SECOND_NS
        if remaining <= 0.0:
            raise TimeoutError(f"not finished after {self.seconds:g} s")
        return remaining

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


def connect_within(
    deadline: Deadline, host: str, port: int, timeout_seconds: float | None = None
) -> socket.socket:
    """Return a connection to the first address of a host that takes one, all of them within the deadline.

    Its operations have `timeout_seconds`, or what the deadline left when it was made, whichever is less.

    Raises:
        OSError: there is none.
    """
    error: OSError = OSError(f"{host} has no address")
    try:
        host.encode("idna")
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except UnicodeError as wrong:
        raise OSError(f"{host[:80]!r} is no name of a host") from wrong
    for family, kind, protocol, _, address in addresses:
        connection = socket.socket(family, kind, protocol)
        try:
            connection.settimeout(_least(deadline.remaining_seconds(), timeout_seconds))
            connection.connect(address)
            connection.settimeout(_least(deadline.remaining_seconds(), timeout_seconds))
        except OSError as failed:
            connection.close()
            error = failed
        else:
            return connection
    raise error


def _least(remaining: float, limit: float | None) -> float:
    return remaining if limit is None else min(remaining, limit)
