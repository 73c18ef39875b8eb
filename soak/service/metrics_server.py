"""An HTTP server for a Prometheus page: few connections at a time, and no look-up of names.

Anybody who reaches the port may connect, so what a connection holds, a thread and a descriptor, is bounded:
the daemon needs descriptors for its own work. The server of the standard library looks up its own address
besides, and a resolver that is down would delay the start of a daemon for a name that is never used.
"""

from __future__ import annotations

import contextlib
import io
import socket
import socketserver
import threading
from collections.abc import Callable
from typing import Any, TextIO
from wsgiref.simple_server import WSGIRequestHandler, make_server

from prometheus_client import CollectorRegistry, ProcessCollector, make_wsgi_app
from prometheus_client.exposition import ThreadingWSGIServer
from prometheus_client.registry import Collector

from soak.service.accept_pause import PausingServer

_IDLE_SECONDS = 3600.0  # between two checks for the end, which closing the socket makes at once

CLIENT_TIMEOUT_SECONDS = 10.0
"""How long a client may take to ask and to read the answer, both together."""
MAX_CONNECTIONS = 8
"""Of more, the oldest is closed: a scraper asks at once and is served, however many others stay connected."""


class _Server(PausingServer, ThreadingWSGIServer):
    client_timeout_seconds = CLIENT_TIMEOUT_SECONDS
    request_queue_size = 128  # with the library's 5, a flood makes a scraper wait for seconds

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401  # those of the library
        self._open: dict[socket.socket, None] = {}  # the oldest first
        self._lock = threading.Lock()
        super().__init__(*args, **kwargs)

    def process_request(self, request: Any, client_address: Any) -> None:  # noqa: ANN401  # as above
        with self._lock:
            for oldest in list(self._open)[: len(self._open) + 1 - MAX_CONNECTIONS]:
                _shut_down(oldest)
            is_full = len(self._open) >= 2 * MAX_CONNECTIONS  # threads that have not ended yet
            if not is_full:
                self._open[request] = None
        if is_full:
            self.shutdown_request(request)
        else:
            super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:  # noqa: ANN401  # as above
        limit = threading.Timer(self.client_timeout_seconds, _shut_down, (request,))
        limit.daemon = True
        try:
            with contextlib.suppress(
                RuntimeError
            ):  # no thread is left: the limit between bytes holds
                limit.start()
            super().process_request_thread(request, client_address)
        finally:
            limit.cancel()

    def shutdown_request(self, request: Any) -> None:  # noqa: ANN401  # as above
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ANN401  # as above
        """Print nothing: a client that goes away is none of our errors."""

    def server_bind(self) -> None:
        socketserver.TCPServer.server_bind(self)
        self.server_name = str(self.server_address[0])  # the numeric address, without a DNS query
        self.server_port = self.server_address[1]
        self.setup_environ()


class _Server6(_Server):
    address_family = socket.AF_INET6


class _SilentHandler(WSGIRequestHandler):
    """Logs no requests, and no errors that they raise in the library: anybody may send them, at any rate."""

    def handle(self) -> None:
        with contextlib.suppress(OSError):  # it went away, or its time is over
            super().handle()

    def get_stderr(self) -> TextIO:
        return io.StringIO()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # name of the base class
        """Log nothing."""


def _shut_down(connection: socket.socket) -> None:
    """End a connection that another thread uses; that thread closes it."""
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def serve(
    page: Collector, address: str, port: int, client_timeout_seconds: float = CLIENT_TIMEOUT_SECONDS
) -> tuple[int, Callable[[], None]]:
    """Serve in threads; return the port and a function that ends it. Port 0 chooses a free one.

    Raises:
        OSError: the port is in use, or this machine does not have the address.
        OverflowError: the port is not below 65536.
    """
    registry = CollectorRegistry()
    registry.register(page)
    ProcessCollector(registry=registry)
    kind = _Server6 if ":" in address else _Server
    handler = type("Handler", (_SilentHandler,), {"timeout": client_timeout_seconds})
    server = make_server(address, port, make_wsgi_app(registry), kind, handler)
    server.client_timeout_seconds = client_timeout_seconds
    thread = threading.Thread(
        target=server.serve_forever, args=(_IDLE_SECONDS,), name="metrics", daemon=True
    )
    thread.start()

    def end() -> None:
        server.socket.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits for a connection
        server.shutdown()
        server.server_close()
        thread.join()

    return server.server_port, end
