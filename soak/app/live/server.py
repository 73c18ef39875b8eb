"""`soak serve`: an HTTP server that shows the runs of a folder and changes nothing.

Python's own server with bounds: so many connections at once, so long and so much for a request, one request a
connection. It answers GET and HEAD alone. Beyond loopback each request needs a token; on loopback the Host
header must name this machine, or a page of another site could read the runs by a name that leads here.
"""

from __future__ import annotations

import io
import ipaddress
import json
import math
import os
import re
import secrets
import socket
import socketserver
import threading
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote_to_bytes, urlsplit

from soak.app.live.folder import ServedFolder, read_served_file
from soak.app.live.jobs import Jobs
from soak.app.live.pages import ASSETS, Pages, run_url
from soak.app.live.run import LiveRun, Snapshot
from soak.app.live.terminal import shown
from soak.core.errors import PlanError, RunFolderError, SoakError
from soak.core.ports import Clock
from soak.core.units import SECOND_NS
from soak.service.accept_pause import PausingServer
from soak.store.run_folder import RunFolder, read_plan, read_run

MAX_CONNECTIONS = 32
REQUEST_SECONDS = 10
"""So long a client may take to ask."""
ANSWER_SECONDS = 120
"""So long it may take to read the answer."""
MAX_REQUEST_BYTES = 16_384
LEAST_TOKEN = 16
COOKIE = "soak_token"
LOOK_NS = SECOND_NS
"""A run is looked at once in this time, however many look at its page."""
_TICK_SECONDS = 0.1  # between two looks for connections that have had their time
_PORTION_BYTES = 24 * 2**20
_MAX_LIVE_RUNS = 16  # so many are ready for the next look; what was read of others is folded
_MAX_FOLDED_BYTES = 64 * 2**20  # more than 500 runs take; beyond it the oldest is read again
_MAX_WATCHED_RUNS = 1000
_PLAIN = "text/plain; charset=utf-8"
_HTML = "text/html; charset=utf-8"
_OWN_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
# A report is a file that anybody may have put there: it gets an origin of its own, so that its program
# cannot read other runs, and the policy that it states itself.
_FOREIGN_POLICY = (
    "sandbox allow-scripts allow-downloads; connect-src 'none'; img-src data:; font-src data:; "
    "frame-src 'none'; worker-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_NO_PROGRAM = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; font-src data:"
_STATED = re.compile(
    rb'<meta http-equiv="Content-Security-Policy" content="([A-Za-z0-9 ;:=+/&#\x27_-]{1,4000})">'
)
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Cache-Control": "no-store",
}
_TYPES = {"soak.css": "text/css; charset=utf-8", "soak.js": "text/javascript; charset=utf-8"}


@dataclass(frozen=True, slots=True)
class Answer:
    """What is sent."""

    body: bytes
    kind: str = _HTML
    status: HTTPStatus = HTTPStatus.OK
    policy: str = _OWN_POLICY
    headers: tuple[tuple[str, str], ...] = ()


def text_answer(status: HTTPStatus, text: str) -> Answer:
    """Return a plain line."""
    return Answer(f"{text}\n".encode(), _PLAIN, status)


@dataclass(slots=True)
class _Watched:
    """A run that somebody looks at; one thread at a time reads it."""

    live: LiveRun | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)
    run: tuple[str, int] = ("", 0)  # a folder of the same name may become another run
    found: Snapshot | None = None
    looked_ns: int = 0
    folded_bytes: int = 0


class Site:
    """What is at which address. Many threads may ask at once."""

    def __init__(self, folder: ServedFolder, jobs: Jobs, clock: Clock) -> None:
        self._folder = folder
        self._jobs = jobs
        self._clock = clock
        self._pages = Pages()
        self._lock = threading.Lock()
        self._watched: OrderedDict[Path, _Watched] = OrderedDict()

    def answer(self, path: str, query: str) -> Answer:
        """Return the answer to a request for a path, as it stands in the request, and its query."""
        parts = path.split("/")[1:]
        try:
            match parts:
                case [""]:
                    return self._list(query)
                case [("soak.css" | "soak.js") as name]:
                    return Answer((ASSETS / name).read_bytes(), _TYPES[name])
                case ["compare"]:
                    return self._compare(query)
                case ["run", name, *rest]:
                    return self._run(unquote_to_bytes(name), rest)
                case _:
                    return _not_found()
        except (SoakError, OSError, ValueError, OverflowError) as error:
            page = self._pages.message("This cannot be shown", [str(error)])
            return Answer(page.encode(errors="replace"), status=HTTPStatus.INTERNAL_SERVER_ERROR)

    # --- The pages.

    def _list(self, query: str) -> Answer:
        if self._folder.is_run:
            (key,) = self._folder.keys()
            return _redirect(run_url(key))
        runs, left_out = self._folder.runs(self._clock.wall_ns())
        key = _parameter(query, "with")
        baseline = next((one for one in runs if key and one.key == key), None)
        page = self._pages.runs(str(self._folder.root), runs, baseline, left_out)
        return Answer(page.encode(errors="replace"))

    def _run(self, key: bytes, rest: list[str]) -> Answer:
        folder = self._folder.find(key)
        if folder is None:
            return _not_found()
        if not rest:
            return _redirect(run_url(key))
        shows: dict[str, Callable[[RunFolder], Answer]] = {
            "": self._whole_page,
            "now": self._main_part,
            "now.json": lambda run: Answer(_json(self._look(run)), "application/json"),
            "report": lambda run: _report(read_served_file(run.report)),
            "summary.json": lambda run: Answer(read_served_file(run.summary), "application/json"),
        }
        show = shows.get("/".join(rest))
        return _not_found() if show is None else show(folder)

    def _whole_page(self, run: RunFolder) -> Answer:
        found, now_ns = self._look(run), self._clock.wall_ns()
        has_home = not self._folder.is_run
        renewal = self._renewal(run, found, now_ns)
        page = self._pages.run(found, now_ns, renewal, has_home=has_home)
        return Answer(page.encode(errors="replace"))

    def _main_part(self, run: RunFolder) -> Answer:
        found, now_ns = self._look(run), self._clock.wall_ns()
        page = self._pages.now(found, now_ns, self._renewal(run, found, now_ns))
        return Answer(page.encode(errors="replace"))

    def _renewal(self, folder: RunFolder, found: Snapshot, now_ns: int) -> str:
        if found.awaits_report(now_ns):
            return "The run has ended. This page shows its report when it is there."
        if found.is_over:
            is_there = found.report is not None
            return "" if is_there else "There is no report: `soak report` with its folder makes it."
        self._jobs.watch(folder)
        return self._jobs.renewal_text(folder)

    def _look(self, folder: RunFolder) -> Snapshot:
        watched = self._watch(folder)
        with watched.lock:
            now_ns = self._clock.mono_ns()
            if watched.found is None or now_ns - watched.looked_ns >= LOOK_NS:
                watched.found = self._look_anew(watched, folder)
                watched.looked_ns = self._clock.mono_ns()
            found = watched.found
        self._make_room()
        return found

    def _look_anew(self, watched: _Watched, folder: RunFolder) -> Snapshot:
        run = read_run(folder)
        live, watched.live = watched.live, None  # after an error all is read again
        watched.folded_bytes = 0
        if live is None or watched.run != (run.id, run.start_wall_ns):
            live = LiveRun(folder, run, read_plan(folder), self._clock)
            watched.run = run.id, run.start_wall_ns
        found = live.look(_PORTION_BYTES)
        watched.live = live
        return found

    def _watch(self, folder: RunFolder) -> _Watched:
        with self._lock:
            known = self._watched.setdefault(folder.path, _Watched())
            self._watched.move_to_end(folder.path)
        return known

    def _make_room(self) -> None:
        """Fold what was read of runs that were not looked at of late: pages that take turns keep it."""
        with self._lock:
            older = list(self._watched.values())[:-_MAX_LIVE_RUNS]
        for one in older:
            if one.live is None or one.folded_bytes or not one.lock.acquire(blocking=False):
                continue
            try:
                if one.live is not None:
                    one.folded_bytes, one.found = one.live.fold(), None
            finally:
                one.lock.release()
        with self._lock:
            folded = sum(one.folded_bytes for one in self._watched.values())
            while folded > _MAX_FOLDED_BYTES or len(self._watched) > _MAX_WATCHED_RUNS:
                folded -= self._watched.popitem(last=False)[1].folded_bytes

    def _compare(self, query: str) -> Answer:
        before, after = (self._folder.find(_parameter(query, name)) for name in "ab")
        if before is None or after is None:
            return _not_found()
        found = self._jobs.comparison(before, after)
        title = f"{shown(before.path.name, 60)} against {shown(after.path.name, 60)}"
        if found is None:
            lines = ["The runs are being compared. This page shows the result when it is there."]
            page = self._pages.message(title, lines, again_seconds=2)
            return Answer(page.encode(errors="replace"), status=HTTPStatus.ACCEPTED)
        if found.why:
            page = self._pages.message(title, ["These runs cannot be compared.", found.why])
            return Answer(page.encode(errors="replace"))
        return _report(found.page)


def _report(body: bytes) -> Answer:
    """Return a page that was not made here, with the policy that it states; one without runs no program."""
    stated = _STATED.search(body[:16_384])
    policy = _NO_PROGRAM if stated is None else stated[1].decode().replace("&#39;", "'")
    return Answer(body, policy=f"{policy}, {_FOREIGN_POLICY}")  # two policies: both hold


def _json(found: Snapshot) -> bytes:
    """Return how a run is as JSON, without its history; null is not measured."""
    kept = (
        *(
            "name",
            "run_id",
            "state",
            "phase",
            "k",
            "total_seconds",
            "sent",
            "acknowledged",
            "failed",
        ),
        *(
            "publish",
            "subscriptions",
            "totals",
            "troubles",
            "retention",
            "invalid",
            "unread",
            "read_ratio",
        ),
    )
    body = {name: value for name, value in asdict(found).items() if name in kept}
    for one in body["subscriptions"]:
        del one["p99_history"]
    body["incidents"] = [
        {"key": one.key, "kind": one.kind, "state": one.state, "cause": one.cause}
        for one in found.findings
    ]
    return json.dumps(_finite(body), allow_nan=False).encode()


def _finite(value: Any) -> Any:  # noqa: ANN401  # JSON
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _parameter(query: str, name: str) -> bytes:
    """Return a parameter as bytes: the name of a folder may hold any; empty where it is missing."""
    found = parse_qs(query, encoding="latin-1", max_num_fields=8).get(name, [""])
    return found[0].encode("latin-1")


def _redirect(to: str, *headers: tuple[str, str]) -> Answer:
    return Answer(b"", _PLAIN, HTTPStatus.SEE_OTHER, headers=(("Location", to), *headers))


def _not_found() -> Answer:
    return text_answer(HTTPStatus.NOT_FOUND, "There is nothing here.")


# --- Who may ask.


@dataclass(frozen=True, slots=True)
class Access:
    """Which requests are answered: those with the token; without a token, those from this machine."""

    address: str
    token: str = ""

    def refusal(self, path: str, query: str, headers: Any) -> Answer | None:  # noqa: ANN401  # a message of http
        """Return why a request is not answered, or how it gets its cookie; None: it is answered."""
        if not self.token:
            if _host_name(headers.get("Host", "")) in {"localhost", self.address, *_LOOPBACK}:
                return None
            text = "This server is for this machine: ask for it as localhost."
            return text_answer(HTTPStatus.MISDIRECTED_REQUEST, text)
        try:
            given = parse_qs(query, max_num_fields=8).get("token", [""])[0] if query else ""
        except ValueError as error:
            return text_answer(HTTPStatus.BAD_REQUEST, str(error))
        if given and self._is_token(given):
            cookie = f"{COOKIE}={self.token}; Path=/; HttpOnly; SameSite=Strict"
            # The token does not stay in the address, where others may read it.
            return _redirect(
                path if path.startswith("/") and path[1:2] != "/" else "/", ("Set-Cookie", cookie)
            )
        bearer = headers.get("Authorization", "").removeprefix("Bearer ")
        if self._is_token(bearer) or self._is_token(_cookie(headers.get("Cookie", ""))):
            return None
        text = "This needs its token: open the address that `soak serve` printed."
        return text_answer(HTTPStatus.UNAUTHORIZED, text)

    def _is_token(self, given: str) -> bool:
        return secrets.compare_digest(given.encode(errors="replace"), self.token.encode())


_LOOPBACK = frozenset({"127.0.0.1", "::1"})


def _host_name(host: str) -> str:
    """Return the name in a Host header without its port."""
    with suppress(ValueError):
        return urlsplit(f"//{host}").hostname or ""
    return ""


def _cookie(text: str) -> str:
    with suppress(CookieError):
        found = SimpleCookie(text).get(COOKIE)
        return "" if found is None else found.value
    return ""


def is_loopback(address: str) -> bool:
    """True for an address that only this machine reaches."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"


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

    def __init__(self, address: str, port: int, site: Site, access: Access, clock: Clock) -> None:
        self.site = site
        self.access = access
        self.clock = clock
        self._room = threading.BoundedSemaphore(MAX_CONNECTIONS)
        self._lock = threading.Lock()
        self._end_by_ns: dict[socket.socket, int] = {}
        super().__init__((address, port), _Handler)

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
    timeout = REQUEST_SECONDS  # of one read or write

    def setup(self) -> None:
        super().setup()
        self.rfile = io.BufferedReader(_Limited(self.connection, MAX_REQUEST_BYTES))

    def do_GET(self) -> None:  # as the base class calls it
        self.server.allow(self.connection, ANSWER_SECONDS)
        address = urlsplit(self.path) if self.path.startswith("/") else None
        if address is None or self.path.startswith("//"):
            self._send(_not_found())
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
        for name, value in (*_HEADERS.items(), *answer.headers):
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
        server = kind(address, port, Site(folder, jobs, clock), Access(address, token), clock)
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
