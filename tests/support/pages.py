"""Pages on loopback, for what asks a cluster over HTTP."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@contextmanager
def pages(bodies: Mapping[str, str | int]) -> Iterator[str]:
    """Serve pages on loopback by their paths, a number being the status of a refusal; yields the address."""

    class Page(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"  # as brokers do: a connection is kept

        def do_GET(self) -> None:
            found = bodies.get(self.path, 404)
            body = b"" if isinstance(found, int) else found.encode()
            self.send_response(found if isinstance(found, int) else 200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the library's
            """Say nothing."""

    with serving(Page) as address:
        yield address


@contextmanager
def serving(
    handler: type[BaseHTTPRequestHandler], tls: ssl.SSLContext | None = None
) -> Iterator[str]:
    """Serve on a free port of loopback; yields the address."""
    server = _Server(("127.0.0.1", 0), handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"{'https' if tls else 'http'}://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Server(ThreadingHTTPServer):
    """Remembers what it accepted: over a connection that is kept it would answer after its end."""

    daemon_threads = False  # so that they are waited for

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        super().__init__(address, handler)
        self._accepted: list[socket.socket] = []

    def get_request(self) -> tuple[socket.socket, tuple[str, int]]:
        accepted, peer = super().get_request()
        self._accepted.append(accepted)
        return accepted, peer

    def server_close(self) -> None:
        for accepted in self._accepted:
            with suppress(OSError):  # it has ended already
                accepted.shutdown(socket.SHUT_RDWR)
        super().server_close()
