"""Pages on loopback, for what asks a cluster over HTTP."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer


@contextmanager
def pages(bodies: Mapping[str, str | int]) -> Iterator[str]:
    """Serve pages on loopback by their paths, a number being the status of a refusal; yields the address."""

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = bodies.get(self.path, 404)
            self.send_response(found if isinstance(found, int) else 200)
            self.end_headers()
            self.wfile.write(b"" if isinstance(found, int) else found.encode())

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the library's
            """Say nothing."""

    with serving(Page) as address:
        yield address


@contextmanager
def serving(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """Serve on a free port of loopback; yields the address."""
    server = HTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
