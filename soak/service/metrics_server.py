"""An HTTP server for a Prometheus page that never looks up a name in the DNS.

The server of the standard library looks up its own address, and a resolver that is down would delay the start
of a daemon for a name that is never used.
"""

from __future__ import annotations

import contextlib
import socket
import socketserver
import threading
from collections.abc import Callable
from wsgiref.simple_server import WSGIRequestHandler, make_server

from prometheus_client import CollectorRegistry, ProcessCollector, make_wsgi_app
from prometheus_client.exposition import ThreadingWSGIServer
from prometheus_client.registry import Collector

_IDLE_SECONDS = 3600.0  # between two checks for the end, which closing the socket makes at once

CLIENT_TIMEOUT_SECONDS = 30.0
"""A client that sends no request, or does not read the answer, holds a thread no longer than this."""


class _Server(ThreadingWSGIServer):
    def server_bind(self) -> None:
        socketserver.TCPServer.server_bind(self)
        self.server_name = str(self.server_address[0])  # the numeric address, without a DNS query
        self.server_port = self.server_address[1]
        self.setup_environ()


class _Server6(_Server):
    address_family = socket.AF_INET6


class _SilentHandler(WSGIRequestHandler):
    """Logs no requests."""

    def handle(self) -> None:
        with contextlib.suppress(TimeoutError):
            super().handle()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # name of the base class
        """Log nothing."""


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
