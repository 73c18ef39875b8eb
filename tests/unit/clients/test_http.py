"""HTTP requests: limits on time and size, kept connections, credentials, and redirects to other hosts."""

from __future__ import annotations

import contextlib
import gzip
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest

from soak.clients.http import HttpClient, HttpError, access_of
from tests.support.pages import serving

HEAD = b"HTTP/1.1 200 OK\r\n"
Respond = Callable[[socket.socket, bytes], None]


@contextmanager
def server(respond: Respond) -> Iterator[str]:
    """Answer each request by `respond`, which may break the protocol; yields the address of a page."""
    listener = socket.create_server(("127.0.0.1", 0))
    ended = threading.Event()

    def serve() -> None:
        while not ended.is_set():
            connection, _ = listener.accept()
            with connection, contextlib.suppress(OSError):  # the client has closed it
                while request := connection.recv(65536):
                    respond(connection, request)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    port = listener.getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}/metrics"
    finally:
        ended.set()
        with socket.create_connection(("127.0.0.1", port)):
            pass
        thread.join(5.0)
        listener.close()


@contextmanager
def client(
    url: str, settings: dict[str, str] | None = None, *, timeout_seconds: float = 5.0, **more: Any
) -> Iterator[HttpClient]:
    made = HttpClient(
        url,
        access=lambda: access_of(settings or {}),
        timeout_seconds=timeout_seconds,
        max_bytes=100_000,
        **more,
    )
    with contextlib.closing(made):
        yield made


def whole(body: bytes) -> bytes:
    return HEAD + b"Content-Length: %d\r\n\r\n%s" % (len(body), body)


def chunked(connection: socket.socket, *chunks: bytes) -> None:
    connection.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
    for chunk in chunks:
        connection.sendall(b"%x\r\n%s\r\n" % (len(chunk), chunk))


def redirect(location: bytes) -> bytes:
    return b"HTTP/1.1 307 Elsewhere\r\nLocation: %s\r\nContent-Length: 0\r\n\r\n" % location


def test_requests_share_one_connection() -> None:
    """With a length, in chunks, and again after the server has closed the connection."""
    requests: list[bytes] = []

    def respond(connection: socket.socket, request: bytes) -> None:
        requests.append(request)
        if len(requests) == 2:
            chunked(connection, b"a 2\n", b"")
            return
        connection.sendall(whole(b"a %d\n" % len(requests)))
        if len(requests) == 3:
            connection.shutdown(socket.SHUT_RDWR)

    with server(respond) as url, client(url) as http:
        bodies = [http.get(url) for _ in range(4)]

    assert bodies[:3] == [b"a 1\n", b"a 2\n", b"a 3\n"]
    assert bodies[3] in (
        b"a 4\n",
        b"a 5\n",
    )  # a request on the closed connection may have been read
    assert requests[0].startswith(b"GET /metrics HTTP/1.1\r\n")


@pytest.mark.parametrize(
    ("settings", "header"),
    [
        ({"bearer_token": "${env:SOAK_TEST_SECRET}"}, b"Authorization: Bearer swordfish"),
        (
            {"username": "u", "password": "${env:SOAK_TEST_SECRET}"},
            b"Authorization: Basic dTpzd29yZGZpc2g=",
        ),
    ],
)
def test_secrets_are_read_where_the_plan_says(
    settings: dict[str, str], header: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A token or a password is sent to this server."""
    monkeypatch.setenv("SOAK_TEST_SECRET", "swordfish")
    requests: list[bytes] = []

    def respond(connection: socket.socket, request: bytes) -> None:
        requests.append(request)
        connection.sendall(whole(b"\n"))

    with server(respond) as url, client(url, settings) as http:
        http.get(url)

    assert header in requests[0].split(b"\r\n")


def test_a_missing_secret_is_an_error_that_names_the_setting() -> None:
    url = "http://127.0.0.1:1/metrics"

    with (
        client(url, {"bearer_token": "${env:SOAK_NO_SUCH_SECRET}"}) as http,
        pytest.raises(HttpError, match="bearer_token: there is no environment variable"),
    ):
        http.get(url)


@pytest.mark.parametrize("secret", ["sword\nfish", "swördfish→"])
def test_a_secret_that_no_header_can_hold_is_not_repeated(
    secret: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error would end in the journal."""
    monkeypatch.setenv("SOAK_TEST_SECRET", secret)

    with (
        server(lambda connection, _: connection.sendall(whole(b"\n"))) as url,
        client(url, {"bearer_token": "${env:SOAK_TEST_SECRET}"}) as http,
        pytest.raises(HttpError, match=r"characters that (no header|HTTP) can") as caught,
    ):
        http.get(url)

    assert "fish" not in f"{caught.value}{caught.value.__cause__}"


def test_a_redirect_is_followed_on_the_same_host_only() -> None:
    """Pulsar redirects /metrics to /metrics/; another host would receive the token."""
    asked: list[bytes] = []

    def respond(connection: socket.socket, request: bytes) -> None:
        asked.append(request.split()[1])
        away = b"http://127.0.0.2:1/metrics" if asked[-1] == b"/away" else b"/metrics/"
        connection.sendall(whole(b"a 1\n") if asked[-1] == b"/metrics/" else redirect(away))

    with server(respond) as url, client(url) as http:
        found = http.get(url)
        with pytest.raises(HttpError, match=r"redirects to 'http://127\.0\.0\.2:1/metrics'; name"):
            http.get(url.replace("/metrics", "/away"))

    assert found == b"a 1\n"
    assert asked == [b"/metrics", b"/metrics/", b"/away"]


def test_a_form_follows_a_redirect_on_the_same_host_only() -> None:
    """The query goes along, and neither it nor a token to another host."""
    asked: list[tuple[str, bytes]] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            asked.append((self.path, self.rfile.read(int(self.headers["Content-Length"]))))
            there = {"/query": "/there", "/away": "http://127.0.0.2:1/query"}.get(self.path, "")
            self.send_response(308 if there else 200)
            self.send_header("Location", there)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the library's
            """Say nothing."""

    with serving(Handler) as url, client(url) as http:
        http.post_form(f"{url}/query", {"q": "a b"})
        with pytest.raises(HttpError, match=r"redirects to 'http://127\.0\.0\.2:1/query'; name"):
            http.post_form(f"{url}/away", {"q": "a b"})

    assert asked == [("/query", b"q=a+b"), ("/there", b"q=a+b"), ("/away", b"q=a+b")]


def test_a_form_is_sent_again_where_a_kept_connection_ends() -> None:
    """It changes nothing at the server, which may have read it and closed the connection."""
    requests: list[bytes] = []

    def respond(connection: socket.socket, request: bytes) -> None:
        if b"POST " not in request:  # the body alone
            return
        requests.append(request)
        if len(requests) == 2:
            connection.shutdown(socket.SHUT_RDWR)
        else:
            connection.sendall(whole(b"23"))

    with server(respond) as url, client(url) as http:
        bodies = [http.post_form(url, {"q": "a"}) for _ in range(2)]

    assert bodies == [b"23", b"23"]
    assert len(requests) == 3


def test_without_redirects_the_answer_is_returned_as_it_is() -> None:
    with (
        server(lambda connection, _: connection.sendall(redirect(b"/there"))) as url,
        client(url, redirects="none") as http,
    ):
        answer = http.request("POST", url, b"{}")

    assert (answer.status, answer.reason, answer.location) == (307, "Elsewhere", "/there")


def test_redirects_in_a_circle_end_with_the_last_answer() -> None:
    with (
        server(lambda connection, _: connection.sendall(redirect(b"/metrics"))) as url,
        client(url) as http,
        pytest.raises(HttpError, match="answers 307"),
    ):
        http.get(url)


@pytest.mark.parametrize("encoding", [b"gzip", b"x-gzip"])
def test_an_answer_that_is_compressed_all_the_same_is_unpacked(encoding: bytes) -> None:
    """Some servers ignore that it was not asked for."""
    packed = gzip.compress(b"a 1\n")
    head = HEAD + b"Content-Encoding: %s\r\nContent-Length: %d\r\n\r\n" % (encoding, len(packed))

    with (
        server(lambda connection, _: connection.sendall(head + packed)) as url,
        client(url) as http,
    ):
        assert http.get(url) == b"a 1\n"


def unframed(connection: socket.socket, _: bytes) -> None:
    connection.sendall(HEAD + b"\r\na 1")
    connection.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize(
    ("respond", "is_whole"),
    [
        (lambda connection, _: connection.sendall(whole(b"a 1")), True),
        (lambda connection, _: chunked(connection, b"a 1", b""), True),
        (unframed, False),
    ],
)
def test_an_answer_of_known_length_is_whole(respond: Respond, *, is_whole: bool) -> None:
    """One that ends with its connection may have been cut."""
    with server(respond) as url, client(url) as http:
        answer = http.get_answer(url)

    assert (answer.body, answer.is_whole) == (b"a 1", is_whole)


@pytest.mark.parametrize("location", [b"http://[", b"http://h:99999/", b"/caf\xe9"])
def test_a_redirect_to_an_invalid_address_is_an_error(location: bytes) -> None:
    with (
        server(lambda connection, _: connection.sendall(redirect(location))) as url,
        client(url) as http,
        pytest.raises(HttpError, match=r"redirects to|holds characters"),
    ):
        http.get(url)


def endless(connection: socket.socket, _: bytes) -> None:
    connection.sendall(HEAD + b"\r\n")
    while True:
        connection.sendall(b"a 1\n" * 1000)


def endless_chunks(connection: socket.socket, _: bytes) -> None:
    while True:
        chunked(connection, b"a 1\n" * 1000)


def cut(connection: socket.socket, _: bytes) -> None:
    connection.sendall(HEAD + b"Content-Length: 100\r\n\r\na 1\na 2\n")
    connection.shutdown(socket.SHUT_RDWR)


def cut_chunk(connection: socket.socket, _: bytes) -> None:
    chunked(connection, b"a 1\n")
    connection.sendall(b"ff\r\na 2\n")
    connection.shutdown(socket.SHUT_RDWR)


def no_chunk(connection: socket.socket, _: bytes) -> None:
    connection.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\nzzz\r\n")


def no_http(connection: socket.socket, _: bytes) -> None:
    connection.sendall(b"220 mail.example.org ESMTP\r\n")
    connection.shutdown(socket.SHUT_RDWR)


def refused(connection: socket.socket, _: bytes) -> None:
    connection.sendall(b"HTTP/1.1 401 \x1b[31mNo\r\nContent-Length: 0\r\n\r\n")


@pytest.mark.parametrize(
    ("respond", "message"),
    [
        (endless, "more than 100000 bytes"),
        (endless_chunks, "more than 100000 bytes|broke off"),
        (cut, "broke off after 8 bytes"),
        (cut_chunk, "broke off"),
        (no_chunk, "broke off"),
        (no_http, "does not answer"),
        (refused, r"answers 401 '\\x1b\[31mNo'"),
    ],
)
def test_an_incomplete_or_damaged_answer_is_an_error(respond: Respond, message: str) -> None:
    """A part of a page is never returned as a page."""
    with (
        server(respond) as url,
        client(url) as http,
        pytest.raises(HttpError, match=message),
    ):
        http.get(url)


def test_an_answer_is_cut_where_the_caller_wants_its_beginning_only() -> None:
    with server(endless) as url, client(url, is_cut=True) as http:
        body = http.get(url)

    assert body == b"a 1\n" * 25_000


def halting_body(connection: socket.socket, _: bytes) -> None:
    connection.sendall(HEAD + b"\r\na 1\n")
    connection.recv(1)  # until the client gives up


def slow_header(connection: socket.socket, _: bytes) -> None:
    connection.sendall(HEAD)
    while True:
        connection.sendall(b"x: y\r\n")
        connection.settimeout(0.02)
        with contextlib.suppress(TimeoutError):
            if not connection.recv(1):
                return


@pytest.mark.parametrize("respond", [halting_body, slow_header])
def test_the_limit_on_time_covers_the_whole_answer(respond: Respond) -> None:
    """A server that halts, or that sends a little again and again, is given up at the limit."""
    with (
        server(respond) as url,
        client(url, timeout_seconds=0.15) as http,
        pytest.raises(HttpError, match=r"no complete answer within 0\.15 s|timed out") as caught,
    ):
        http.get(url)

    assert caught.value.is_sent


def test_an_address_where_nobody_listens_is_an_error() -> None:
    """The error names the address and what the system says; nothing was sent."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/metrics"

    with (
        client(url) as http,
        pytest.raises(HttpError, match=f"{url} does not answer: .*refused") as caught,
    ):
        http.get(url)

    assert not caught.value.is_sent
