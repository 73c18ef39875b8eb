"""Asking for a page with an end to it: time, bytes, and no way to another host."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from soak.clients.http import HttpClient
from soak.core.clock import SystemClock
from soak.core.errors import ProbeError

HEAD = b"HTTP/1.1 200 OK\r\n"
Respond = Callable[[socket.socket, bytes], None]


@contextmanager
def server(respond: Respond) -> Iterator[str]:
    """Have each question answered by `respond`, which may break the rules; yields the address."""
    listener = socket.create_server(("127.0.0.1", 0))
    ended = threading.Event()

    def serve() -> None:
        while not ended.is_set():
            connection, _ = listener.accept()
            with connection, contextlib.suppress(OSError):  # who asked has had enough
                while question := connection.recv(65536):
                    respond(connection, question)

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


def http(
    url: str, client: dict[str, str] | None = None, *, timeout_seconds: float = 5.0
) -> HttpClient:
    return HttpClient(
        url, client or {}, SystemClock(), timeout_seconds=timeout_seconds, most_bytes=100_000
    )


def whole(body: bytes) -> bytes:
    return HEAD + b"Content-Length: %d\r\n\r\n%s" % (len(body), body)


def chunked(connection: socket.socket, *chunks: bytes) -> None:
    connection.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
    for chunk in chunks:
        connection.sendall(b"%x\r\n%s\r\n" % (len(chunk), chunk))


def test_pages_come_over_one_connection() -> None:
    """With a length, in chunks, and again after the server has closed it."""
    questions: list[bytes] = []

    def respond(connection: socket.socket, question: bytes) -> None:
        questions.append(question)
        if len(questions) == 2:
            chunked(connection, b"a 2\n", b"")
            return
        connection.sendall(whole(b"a %d\n" % len(questions)))
        if len(questions) == 3:
            connection.shutdown(socket.SHUT_RDWR)

    with server(respond) as url:
        road = http(url)
        bodies = [road.get(url) for _ in range(4)]
        road.close()

    assert bodies[:3] == [b"a 1\n", b"a 2\n", b"a 3\n"]
    assert bodies[3] in (
        b"a 4\n",
        b"a 5\n",
    )  # a question on the closed connection may have been read
    assert questions[0].startswith(b"GET /metrics HTTP/1.1\r\n")


@pytest.mark.parametrize(
    ("client", "header"),
    [
        ({"bearer_token": "${env:SOAK_TEST_SECRET}"}, b"Authorization: Bearer swordfish"),
        (
            {"username": "u", "password": "${env:SOAK_TEST_SECRET}"},
            b"Authorization: Basic dTpzd29yZGZpc2g=",
        ),
    ],
)
def test_secrets_are_read_from_where_the_plan_says(
    client: dict[str, str], header: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And are sent to this server."""
    monkeypatch.setenv("SOAK_TEST_SECRET", "swordfish")
    questions: list[bytes] = []

    def respond(connection: socket.socket, question: bytes) -> None:
        questions.append(question)
        connection.sendall(whole(b"\n"))

    with server(respond) as url:
        road = http(url, client)
        road.get(url)
        road.close()

    assert header in questions[0].split(b"\r\n")


def test_a_secret_that_is_not_there_is_told_without_it() -> None:
    """The setting is named."""
    url = "http://127.0.0.1:1/metrics"

    with pytest.raises(ProbeError, match="bearer_token: there is no environment variable"):
        http(url, {"bearer_token": "${env:SOAK_NO_SUCH_SECRET}"}).get(url)


def test_a_redirect_is_followed_on_the_same_server_alone() -> None:
    """Pulsar sends from /metrics to /metrics/; another host would get the token."""
    asked: list[bytes] = []

    def respond(connection: socket.socket, question: bytes) -> None:
        asked.append(question.split()[1])
        away = b"http://127.0.0.2:1/metrics" if asked[-1] == b"/away" else b"/metrics/"
        moved = b"HTTP/1.1 302 Found\r\nLocation: %s\r\nContent-Length: 0\r\n\r\n" % away
        connection.sendall(whole(b"a 1\n") if asked[-1] == b"/metrics/" else moved)

    with server(respond) as url:
        road = http(url)
        found = road.get(url)
        with pytest.raises(
            ProbeError, match=r"sends on to 'http://127\.0\.0\.2:1/metrics'; name that"
        ):
            road.get(url.replace("/metrics", "/away"))
        road.close()

    assert found == b"a 1\n"
    assert asked == [b"/metrics", b"/metrics/", b"/away"]


@pytest.mark.parametrize("location", [b"http://[", b"http://h:99999/", b"/caf\xe9"])
def test_a_redirect_to_what_is_no_address_is_an_error(location: bytes) -> None:
    """Whatever listens there must not end the thread that asks."""

    def respond(connection: socket.socket, _: bytes) -> None:
        connection.sendall(
            b"HTTP/1.1 302 Found\r\nLocation: %s\r\nContent-Length: 0\r\n\r\n" % location
        )

    with server(respond) as url:
        road = http(url)
        with pytest.raises(ProbeError, match=r"sends on to|cannot be asked"):
            road.get(url)
        road.close()


@pytest.mark.parametrize("secret", ["sword\nfish", "swördfish→"])
def test_a_secret_that_no_question_can_carry_is_not_told(
    secret: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error would end in the journal, and on the topic."""
    monkeypatch.setenv("SOAK_TEST_SECRET", secret)

    with (
        server(lambda connection, _: connection.sendall(whole(b"\n"))) as url,
        pytest.raises(ProbeError, match="cannot be asked") as caught,
    ):
        http(url, {"bearer_token": "${env:SOAK_TEST_SECRET}"}).get(url)

    assert "fish" not in str(caught.value)
    assert caught.value.__cause__ is None


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
        (endless, "a page of more than 100000 bytes"),
        (endless_chunks, "a page of more than 100000 bytes|broke off"),
        (cut, "broke off after 8 of 100 bytes"),
        (cut_chunk, "broke off"),
        (no_chunk, "broke off"),
        (no_http, "does not answer"),
        (refused, r"says 401 '\\x1b\[31mNo'"),
    ],
)
def test_what_is_no_whole_page_is_an_error(respond: Respond, message: str) -> None:
    """And none of it is taken for one."""
    with server(respond) as url:
        road = http(url)
        with pytest.raises(ProbeError, match=message):
            road.get(url)
        road.close()


def test_a_page_that_comes_to_a_halt_is_given_up() -> None:
    """After the time that the plan gives it."""
    ended = threading.Event()

    def respond(connection: socket.socket, _: bytes) -> None:
        connection.sendall(HEAD + b"\r\na 1\n")
        ended.wait(30.0)

    with server(respond) as url:
        road = http(url, timeout_seconds=0.1)
        with pytest.raises(ProbeError, match=r"broke off after 4 bytes: (timed out|not within)"):
            road.get(url)
        ended.set()
        road.close()


def test_nobody_there_is_an_error() -> None:
    """With the address, and what the system says."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/metrics"

    with pytest.raises(ProbeError, match=f"{url} does not answer: .*refused"):
        http(url).get(url)
