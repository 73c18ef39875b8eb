"""A web server handler that keeps what is posted to it, as an Alertmanager would."""

from __future__ import annotations

import json
from http.server import BaseHTTPRequestHandler
from typing import Any


class Receiver:
    """Keeps what is posted, and answers as it is told."""

    def __init__(self, status: int = 200, body: bytes = b"") -> None:
        self.posts: list[tuple[str, str | None, Any]] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                raw = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.posts.append((self.path, self.headers["Authorization"], json.loads(raw)))
                self.send_response(status)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the library's
                """Say nothing."""

        self.handler = Handler
