"""An HTTP server for a Prometheus page that never looks up a name in the DNS.

The standard library's server looks its own address up in the DNS when it is made, which takes as long as a
resolver that is down: a daemon would begin late for a name that nobody reads.
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

_IDLE_SECONDS = 3600.0  # nobody looks in between whether it is to end: that wakes it


class _Server(ThreadingWSGIServer):
    def server_bind(self) -> None:
        socketserver.TCPServer.server_bind(self)
        self.server_name = str(self.server_address[0])  # as asked for, not as the DNS has it
        self.server_port = self.server_address[1]
        self.setup_environ()


class _Server6(_Server):
    address_family = socket.AF_INET6


class _Silent(WSGIRequestHandler):
    timeout = 30.0
    """Who connects and asks nothing, or does not read the answer, holds a thread no longer than this."""

    def handle(self) -> None:
        with contextlib.suppress(TimeoutError):
            super().handle()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # as it is called
        """Log nothing."""


def serve(page: Collector, address: str, port: int) -> tuple[int, Callable[[], None]]:
    """Serve until told to end; return the port and what ends it. Port 0 takes one that is free.

    Raises:
        OSError: the port is taken, or the address is none of this machine's.
        OverflowError: there is no such port.
    """
    registry = CollectorRegistry()
    registry.register(page)
    ProcessCollector(registry=registry)
    kind = _Server6 if ":" in address else _Server
    server = make_server(address, port, make_wsgi_app(registry), kind, _Silent)
    thread = threading.Thread(
        target=server.serve_forever, args=(_IDLE_SECONDS,), name="metrics", daemon=True
    )
    thread.start()

    def end() -> None:
        server.socket.shutdown(socket.SHUT_RDWR)  # wakes who waits for a connection
        server.shutdown()
        server.server_close()
        thread.join()

    return server.server_port, end
