"""Servers on loopback that say what they like, and how often an attack is repeated."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tests.support.hostile import INPUTS, SEED

Serve = Callable[[socket.socket], None]


def rounds(gate: str, usual: int) -> Iterator[random.Random]:
    """Yield sources of randomness, so many as usual or twenty times as many from HOSTILE_SEED on.

    Each counts as an input of the gate. A test that fails prints the last seed.
    """
    first = os.environ.get("HOSTILE_SEED")
    begin, number = (0, usual) if first is None else (int(first), 20 * usual)
    for seed in range(begin, begin + number):
        SEED[:] = [seed]
        INPUTS[gate] += 1
        yield random.Random(seed)


@contextmanager
def serving(serve: Serve) -> Iterator[tuple[str, int]]:
    """Serve each connection in a thread; yields host and port. An error of a socket ends a connection."""
    listener = socket.create_server(("127.0.0.1", 0))
    connections: list[socket.socket] = []

    def talk(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            serve(connection)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                connections.append(connection)
                threading.Thread(target=talk, args=(connection,), daemon=True).start()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield listener.getsockname()[:2]
    finally:
        for one in (listener, *connections):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        thread.join(5.0)


def drip(connection: socket.socket, data: bytes, every_seconds: float = 0.02) -> None:
    """Send byte for byte, so that no wait between two of them is long."""
    for at in range(len(data)):
        connection.sendall(data[at : at + 1])
        if wait_for_end(connection, every_seconds):
            return


def flood(connection: socket.socket, data: bytes) -> None:
    """Send the same without an end."""
    while True:
        connection.sendall(data)


def wait_for_end(connection: socket.socket, seconds: float) -> bool:
    """Return whether the client hung up within so many seconds; what it says is ignored."""
    connection.settimeout(seconds)
    try:
        return not connection.recv(65536)
    except TimeoutError:
        return False
    finally:
        connection.settimeout(None)


@contextmanager
def measured() -> Iterator[Callable[[], tuple[float, int]]]:
    """Yield a function that returns the seconds and the peak of bytes since the beginning."""
    tracemalloc.start()
    begin = time.monotonic()
    try:
        yield lambda: (time.monotonic() - begin, tracemalloc.get_traced_memory()[1])
    finally:
        tracemalloc.stop()
