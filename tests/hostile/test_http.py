"""Whatever a server answers, one request takes bounded time and memory, and tells nobody else a secret."""

from __future__ import annotations

import contextlib
import gzip
import random
import socket

import pytest

from soak.clients.http import Access, HttpClient, HttpError
from tests.support.hostile_servers import (
    Serve,
    drip,
    flood,
    measured,
    rounds,
    serving,
    wait_for_end,
)

TIMEOUT_SECONDS = 0.3
SLACK_SECONDS = 2.0
"""For a machine that is busy; without a limit each of these answers goes on for ever."""
MAX_BYTES = 100_000
MAX_PEAK_BYTES = 4 * 2**20
OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
ZEROS = gzip.compress(bytes(64 * 2**20))


def asked(connection: socket.socket) -> None:
    """Read one request."""
    connection.settimeout(5.0)
    connection.recv(65536)
    connection.settimeout(None)


def dripping(data: bytes) -> Serve:
    def serve(connection: socket.socket) -> None:
        asked(connection)
        drip(connection, data)

    return serve


def flooding(head: bytes, data: bytes) -> Serve:
    def serve(connection: socket.socket) -> None:
        asked(connection)
        connection.sendall(head)
        flood(connection, data)

    return serve


def slowly(head: bytes, data: bytes) -> Serve:
    """Send the same again and again, with a pause that no limit between two bytes would see."""

    def serve(connection: socket.socket) -> None:
        asked(connection)
        connection.sendall(head)
        while not wait_for_end(connection, 0.02):
            connection.sendall(data)

    return serve


def silent(connection: socket.socket) -> None:
    while not wait_for_end(connection, 60.0):
        pass


ENDLESS: dict[str, Serve] = {
    "nothing at all": silent,
    "100 Continue, fast": flooding(b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "100 Continue, slowly": slowly(b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "103 with headers": flooding(b"", b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"),
    "a dripped status line": dripping(b"HTTP/1.1 200 " + b"O" * 10_000),
    "a dripped header": dripping(OK + b"X: " + b"y" * 10_000),
    "headers without an end": flooding(OK, b"X: y\r\n"),
    "a header line without an end": flooding(OK + b"X: ", b"y" * 65536),
    "a status line without an end": flooding(b"HTTP/1.1 200 ", b"y" * 65536),
    "dripped chunks": slowly(CHUNKED, b"1\r\na\r\n"),
    "a dripped size of a chunk": dripping(CHUNKED + b"0" * 10_000),
    "a size of a chunk without an end": flooding(CHUNKED, b"0" * 65536),
    "an extension of a chunk without an end": flooding(CHUNKED + b"1;", b"x" * 65536),
    "a huge chunk": flooding(CHUNKED + b"7fffffffffffffff\r\n", b"x" * 65536),
    "trailers, fast": flooding(CHUNKED + b"0\r\n", b"X: y\r\n"),
    "trailers, slowly": slowly(CHUNKED + b"0\r\n", b"X: y\r\n"),
    "a trailer without an end": flooding(CHUNKED + b"0\r\nX: ", b"y" * 65536),
    "a dripped body": dripping(OK + b"Content-Length: 10000\r\n\r\n" + b"x" * 10_000),
    "a body without an end": flooding(OK + b"\r\n", b"x" * 65536),
    "a length of the universe": flooding(
        OK + b"Content-Length: " + b"9" * 30 + b"\r\n\r\n", b"x" * 65536
    ),
    "a negative length": flooding(OK + b"Content-Length: -1\r\n\r\n", b"x" * 65536),
    "compressed zeros": flooding(
        OK + b"Content-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"%x\r\n%s\r\n" % (len(ZEROS), ZEROS),
    ),
}


@pytest.mark.parametrize("serve", ENDLESS.values(), ids=ENDLESS)
def test_an_answer_without_an_end_is_given_up(serve: Serve) -> None:
    with serving(serve) as (host, port), measured() as so_far:
        url = f"http://{host}:{port}/metrics"
        client = HttpClient(url, timeout_seconds=TIMEOUT_SECONDS, max_bytes=MAX_BYTES)
        with contextlib.closing(client), pytest.raises(HttpError) as caught:
            client.get(url)
        seconds, peak_bytes = so_far()

    assert seconds < TIMEOUT_SECONDS + SLACK_SECONDS
    assert peak_bytes < MAX_PEAK_BYTES
    assert len(str(caught.value)) < 1000


def test_a_compressed_answer_is_unpacked_up_to_the_limit() -> None:
    """64 MiB of zeros are 64 KiB on the way."""

    def serve(connection: socket.socket) -> None:
        asked(connection)
        head = b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(ZEROS)
        connection.sendall(OK + head + ZEROS)

    with serving(serve) as (host, port), measured() as so_far:
        url = f"http://{host}:{port}/metrics"
        client = HttpClient(url, timeout_seconds=5.0, max_bytes=MAX_BYTES)
        with (
            contextlib.closing(client),
            pytest.raises(HttpError, match=f"more than {MAX_BYTES} bytes"),
        ):
            client.get(url)
        assert so_far()[1] < MAX_PEAK_BYTES


def test_a_name_with_many_dead_addresses_is_given_up_in_the_same_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each address has its share of the limit, not a limit of its own."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        port = full.getsockname()[1]
        queued = []
        for _ in range(8):  # a full queue answers nobody
            one = socket.socket()
            one.setblocking(False)
            one.connect_ex(("127.0.0.1", port))
            queued.append(one)
        address = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [address] * 20)
        client = HttpClient("http://many.test/", timeout_seconds=TIMEOUT_SECONDS, max_bytes=1)
        with measured() as so_far, contextlib.closing(client), pytest.raises(HttpError):
            client.get("http://many.test/")
        seconds, _ = so_far()
        for one in queued:
            one.close()

    assert seconds < TIMEOUT_SECONDS + SLACK_SECONDS


PARTS = (
    *(OK, b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 204 No\r\n", b"HTTP/9.9 999 \x1b[2J\r\n"),
    *(b"Content-Length: 5\r\n", b"Content-Length: 5, 6\r\n", b"Content-Length: x\r\n", b"\r\n"),
    *(b"Transfer-Encoding: chunked\r\n", b"Transfer-Encoding: gzip, chunked\r\n", b"X" * 70_000),
    *(b"Content-Encoding: gzip\r\n", b"Connection: close\r\n", b"5\r\nhello\r\n", b"0\r\n\r\n"),
    *(b"-5\r\n", b"ffffffffffffffffffff\r\n", b"\x00\xff\xfe", b"Location: //[\r\n", b": \r\n"),
    *(b"HTTP/1.1 307 There\r\nLocation: /metrics\r\nContent-Length: 0\r\n\r\n", b" folded\r\n"),
    *(b"Set-Cookie: a=b\r\n", b"Date: never\r\n", b"\n\n", b"HTTP/1.1\r\n", b"hello"),
)
"""What a broken or hostile server may string together."""


@pytest.mark.long
def test_any_answer_is_a_page_or_an_error() -> None:
    """Parts of answers in any order, cut anywhere: an `HttpError` within the limit, or a body."""
    answers: list[bytes] = []

    def serve(connection: socket.socket) -> None:
        connection.settimeout(5.0)
        while connection.recv(65536):
            connection.sendall(answers[-1])
            connection.shutdown(socket.SHUT_WR)

    with serving(serve) as (host, port):
        url = f"http://{host}:{port}/metrics"
        for source in rounds("answers over HTTP", 300):
            answers[:] = [_answer(source)]
            client = HttpClient(url, timeout_seconds=5.0, max_bytes=MAX_BYTES)
            with contextlib.closing(client), contextlib.suppress(HttpError):
                assert len(client.get(url)) <= MAX_BYTES


def _answer(source: random.Random) -> bytes:
    whole = b"".join(source.choices(PARTS, k=source.randint(1, 12)))
    if source.random() < 0.7:
        whole = OK + whole
    return whole[: source.randint(0, len(whole))] if source.random() < 0.3 else whole


@pytest.mark.parametrize("host", ["192.0.2.1", "metrics.example.org", "[2001:db8::1]"])
def test_a_secret_is_not_sent_unencrypted_to_another_machine(host: str) -> None:
    """Before a connection is made; the plan may allow it."""
    url = f"http://{host}/metrics"
    access = Access({"Authorization": "Bearer swordfish"})
    client = HttpClient(url, access=lambda: access, timeout_seconds=0.1, max_bytes=1)

    with pytest.raises(HttpError, match="not sent unencrypted") as caught:
        client.get(url)

    assert "swordfish" not in str(caught.value)


def test_a_secret_does_not_follow_a_redirect() -> None:
    """Neither to another host nor to another port of the same one, unless the plan names the host."""
    heard: list[bytes] = []

    def thief(connection: socket.socket) -> None:
        heard.append(connection.recv(65536))
        connection.sendall(OK + b"Content-Length: 0\r\n\r\n")

    with serving(thief) as (_, there):

        def serve(connection: socket.socket) -> None:
            asked(connection)
            location = b"Location: http://127.0.0.1:%d/\r\nContent-Length: 0\r\n\r\n" % there
            connection.sendall(b"HTTP/1.1 307 There\r\n" + location)

        access = Access({"Authorization": "Bearer swordfish"})
        with serving(serve) as (host, port):
            url = f"http://{host}:{port}/"
            client = HttpClient(url, access=lambda: access, timeout_seconds=5.0, max_bytes=10)
            with contextlib.closing(client), pytest.raises(HttpError, match="redirects to"):
                client.get(url)

    assert heard == []
