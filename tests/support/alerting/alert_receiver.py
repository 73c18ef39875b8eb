"""A message about a finding, and a web server handler that keeps what is posted to it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler
from typing import Any

from soak.core.ports import Message
from soak.core.units import SECOND_NS

BEGIN = 1_790_000_000 * SECOND_NS
LABELS = {"finding": "r1-130", "plan": "demo", "run": "r1", "metric": "m", "source": "s@h"}


def message(kind: str = "confirmed", begin_ns: int = BEGIN, end_ns: int | None = None) -> Message:
    return Message(
        key=f"r1-130.{kind}",
        subject=f"p99 end-to-end latency {kind}",
        text="what 4.1 ms -> 61 ms\n",
        at_wall_ns=begin_ns + SECOND_NS,
        labels=LABELS,
        begin_wall_ns=begin_ns,
        end_wall_ns=end_ns,
    )


class Receiver:
    """Keeps the posts, and replies with one status, also to what is only requested."""

    def __init__(
        self, status: int = 200, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> None:
        self.posts: list[tuple[str, str | None, Any]] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                raw = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.posts.append((self.path, self.headers["Authorization"], json.loads(raw)))
                self._answer()

            def do_GET(self) -> None:
                self._answer()

            def _answer(self) -> None:
                self.send_response(status)
                for name, value in (headers or {}).items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the library's
                """Say nothing."""

        self.handler = Handler
