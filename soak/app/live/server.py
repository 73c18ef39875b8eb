"""`soak serve`: an HTTP server that shows the runs of a folder and changes nothing.

Python's own server with bounds: so many connections at once, so long and so much for a request, one request a
connection. It answers GET and HEAD alone. Beyond loopback each request needs a token; on loopback the Host
header must name this machine, or a page of another site could read the runs by a name that leads here. What a
browser asks for such a page is refused: it could start comparisons and reports.
"""

from __future__ import annotations

import io
import os
import re
import secrets
import socket
import socketserver
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from soak.app.live.folder import ServedFolder
from soak.app.live.jobs import Jobs
from soak.app.live.site import HEADERS, Answer, Site, not_found, redirect, text_answer
from soak.app.live.terminal import shown
from soak.clients.client_settings import is_loopback
from soak.core.errors import PlanError, RunFolderError
from soak.core.ports import Clock
from soak.core.units import SECOND_NS
from soak.service.accept_pause import PausingServer

MAX_CONNECTIONS = 32
REQUEST_SECONDS = 10
"""So long a client may take to ask."""
ANSWER_SECONDS = 120
"""So long it may take to read the answer."""
MAX_REQUEST_BYTES = 16_384
LEAST_TOKEN = 16
COOKIE = "soak_token"
_TICK_SECONDS = 0.1  # between two looks for connections that have had their time


# --- Which requests are answered.


@dataclass(frozen=True, slots=True)
class Access:
    """Which requests are answered: those with the token; without a token, those from this machine."""

    address: str
    token: str = ""
    port: int = 0

    @property
    def cookie(self) -> str:
        """Return the name of the cookie; browsers send one to every port of a host."""
        return f"{COOKIE}_{self.port}"

    def refusal(self, path: str, query: str, headers: Any) -> Answer | None:  # noqa: ANN401  # a message of http
        """Return why a request is not answered, or how it gets its cookie; None: it is answered."""
        if not self.token:
            return self._refusal_without_token(headers)
        try:
            given = parse_qs(query, max_num_fields=8).get("token", [""])[0] if query else ""
        except ValueError as error:
            return text_answer(HTTPStatus.BAD_REQUEST, str(error))
        if given and self._is_token(given):
            cookie = f"{self.cookie}={self.token}; Path=/; HttpOnly; SameSite=Strict"
            # The token does not stay in the address, where others may read it.
            return redirect(
                path if path.startswith("/") and path[1:2] != "/" else "/", ("Set-Cookie", cookie)
            )
        bearer = headers.get("Authorization", "").removeprefix("Bearer ")
        if self._is_token(bearer) or self._is_token(self._in_cookie(headers)):
            return None
        text = "This needs its token: open the address that `soak serve` printed."
        return text_answer(HTTPStatus.UNAUTHORIZED, text)

    def _refusal_without_token(self, headers: Any) -> Answer | None:  # noqa: ANN401  # as above
        if _host_name(headers.get("Host", "")) not in {"localhost", self.address, *_LOOPBACK}:
            text = "This server is for this machine: ask for it as localhost."
            return text_answer(HTTPStatus.MISDIRECTED_REQUEST, text)
        # Only browsers send this header. With a token the cookie is not sent for a page of another site.
        if headers.get("Sec-Fetch-Site") == "cross-site":
            text = "A page of another site led here: enter this address yourself."
            return text_answer(HTTPStatus.FORBIDDEN, text)
        return None

    def _in_cookie(self, headers: Any) -> str:  # noqa: ANN401  # as above
        """Return our cookie; those of others in the header may have any form."""
        pairs = (one.strip().partition("=") for one in headers.get("Cookie", "").split(";"))
        return next((value for name, _, value in pairs if name == self.cookie), "")

    def _is_token(self, given: str) -> bool:
        return secrets.compare_digest(given.encode(errors="replace"), self.token.encode())


_LOOPBACK = frozenset({"127.0.0.1", "::1"})


def _host_name(host: str) -> str:
    """Return the name in a Host header without its port; "" if there is more in it than both."""
    with suppress(ValueError):
        found = urlsplit(f"//{host}")
        return found.hostname or "" if found.netloc == host else ""
    return ""


# --- The server.


class _Limited(io.RawIOBase):
    """Reads a connection up to so many bytes; behind them is its end."""

    def __init__(self, connection: socket.socket, remaining: int) -> None:
        super().__init__()
        self._connection = connection
        self._remaining = remaining

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:  # noqa: ANN401  # a buffer
        view = memoryview(buffer)[: self._remaining]
        count = self._connection.recv_into(view) if len(view) else 0
        self._remaining -= count
        return count


class _Server(socketserver.ThreadingMixIn, PausingServer):
    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False
    request_queue_size = MAX_CONNECTIONS

    def __init__(self, address: str, port: int, site: Site, token: str, clock: Clock) -> None:
        self.site = site
        self.clock = clock
        self._room = threading.BoundedSemaphore(MAX_CONNECTIONS)
        self._lock = threading.Lock()
        self._end_by_ns: dict[socket.socket, int] = {}
        super().__init__((address, port), _Handler)
        self.access = Access(address, token, int(self.server_address[1]))

    def process_request(self, request: Any, client_address: Any) -> None:  # noqa: ANN401  # as the base class
        if not self._room.acquire(blocking=False):
            with suppress(OSError):
                request.setblocking(False)
                request.send(b"HTTP/1.0 503 Service Unavailable\r\nRetry-After: 1\r\n\r\n")
            self.shutdown_request(request)
            return
        self.allow(request, REQUEST_SECONDS)
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._forget(request)
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:  # noqa: ANN401  # as the base class
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._forget(request)

    def allow(self, request: socket.socket, seconds: int) -> None:
        """Let a connection live for so long from now on."""
        with self._lock:
            self._end_by_ns[request] = self.clock.mono_ns() + seconds * SECOND_NS

    def _forget(self, request: socket.socket) -> None:
        with self._lock:
            self._end_by_ns.pop(request, None)
        self._room.release()

    def service_actions(self) -> None:
        """End connections that have had their time."""
        now_ns = self.clock.mono_ns()
        with self._lock:
            late = [one for one, end_by_ns in self._end_by_ns.items() if end_by_ns < now_ns]
        for request in late:
            with suppress(OSError):
                request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ANN401  # as the base class
        """Say nothing: a client that went away is no error of ours."""


class _Server6(_Server):
    address_family = socket.AF_INET6


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    server_version = "soak"
    sys_version = ""
    timeout = REQUEST_SECONDS  # of one read

    def setup(self) -> None:
        super().setup()
        self.rfile = io.BufferedReader(_Limited(self.connection, MAX_REQUEST_BYTES))

    def do_GET(self) -> None:  # as the base class calls it
        self.server.allow(self.connection, ANSWER_SECONDS)
        self.connection.settimeout(ANSWER_SECONDS)  # of the whole answer, which is one write
        address = urlsplit(self.path) if self.path.startswith("/") else None
        if address is None or self.path.startswith("//"):
            self._send(not_found())
            return
        refusal = self.server.access.refusal(address.path, address.query, self.headers)
        self._send(refusal or self.server.site.answer(address.path, address.query))

    do_HEAD = do_GET  # noqa: N815  # as the base class calls it

    def send_error(self, code: int, *_: Any) -> None:  # noqa: ANN401  # as the base class
        """Answer what is no request that this server knows."""
        status = HTTPStatus(code)
        if status == HTTPStatus.NOT_IMPLEMENTED:
            status = HTTPStatus.METHOD_NOT_ALLOWED
        self._send(text_answer(status, status.phrase))

    def _send(self, answer: Answer) -> None:
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.kind)
        self.send_header("Content-Length", str(len(answer.body)))
        self.send_header("Content-Security-Policy", answer.policy)
        for name, value in {**HEADERS, **dict(answer.headers)}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # name of the base class
        """Log no requests."""


@dataclass(frozen=True, slots=True)
class Serving:
    """A server that runs in a thread of its own."""

    address: str
    port: int
    token: str
    end: Callable[[], None]

    @property
    def url(self) -> str:
        """Return the address to open, with the token where one is needed."""
        name = {"0.0.0.0": socket.gethostname(), "::": socket.gethostname()}.get(  # noqa: S104  # a comparison
            self.address, f"[{self.address}]" if ":" in self.address else self.address
        )
        return f"http://{name}:{self.port}/" + (f"?token={self.token}" if self.token else "")


def start(
    folder: ServedFolder, jobs: Jobs, clock: Clock, address: str, port: int, token: str
) -> Serving:
    """Serve in a thread; port 0 chooses a free one. Beyond loopback a token is made where none is given.

    Raises:
        RunFolderError: this machine does not have the address, or the port is in use.
    """
    if not token and not is_loopback(address):
        token = secrets.token_urlsafe(32)
    kind = _Server6 if ":" in address else _Server
    try:
        server = kind(address, port, Site(folder, jobs, clock), token, clock)
    except (OSError, OverflowError) as error:
        raise RunFolderError(f"cannot listen on {address}, port {port}: {error}") from error
    thread = threading.Thread(
        target=server.serve_forever, args=(_TICK_SECONDS,), name="serve", daemon=True
    )
    thread.start()

    def end() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return Serving(address, int(server.server_address[1]), token, end)


def run(
    root: Path,
    clock: Clock,
    stop: threading.Event,
    tell: Callable[[str], None],
    *,
    listen: str,
    token: str,
    renew_ns: int,
) -> None:
    """Serve a folder of runs, or the folder of one run, until `stop` is set.

    Raises:
        RunFolderError: there is no such folder, or it cannot be served at this address.
    """
    if not root.is_dir():
        raise RunFolderError(f"{root} is not a folder")
    folder = ServedFolder(Path(os.path.realpath(root)))
    jobs = Jobs(folder.root, clock, renew_ns)
    address, port = parse_listen(listen)
    try:
        serving = start(folder, jobs, clock, address, port, token)
        try:
            tell(f"serving {shown(str(folder.root))} at {serving.url} until Ctrl-C")
            while not stop.wait(0.5):
                jobs.step()
        finally:
            serving.end()
    finally:
        jobs.close()


def parse_listen(text: str) -> tuple[str, int]:
    """Return address and port of `127.0.0.1:8042`, `[::1]:8042` or `8042`.

    Raises:
        PlanError: it is none of these.
    """
    address, colon, port = text.rpartition(":")
    address = address.removeprefix("[").removesuffix("]") if colon else "127.0.0.1"
    if not port.isascii() or not port.isdigit() or not address or int(port) > 65_535:  # noqa: PLR2004  # ports end there
        raise PlanError(f"--listen {text!r} must be ADDRESS:PORT, such as 127.0.0.1:8042")
    return address, int(port)


def read_token(path: Path) -> str:
    """Return the token in a file.

    Raises:
        PlanError: it cannot be read, is too short, or holds blanks or other signs than ASCII.
    """
    try:
        token = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise PlanError(f"cannot read the token in {path}: {error}") from error
    if len(token) < LEAST_TOKEN or not re.fullmatch(r"[A-Za-z0-9._~+/=-]+", token):
        raise PlanError(
            f"the token in {path} must be at least {LEAST_TOKEN} letters, digits or ._~+/=-, without blanks"
        )
    return token
