"""Whoever reaches the port of a metrics page: the daemon keeps its descriptors, and a scraper is served."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from soak.core.model import Column
from soak.service.metrics import MetricsPage
from soak.service.metrics_server import MAX_CONNECTIONS, serve
from tests.support.fakes import FakeClock
from tests.support.hostile_servers import rounds

IDLE = 300


@pytest.fixture
def port() -> Iterator[int]:
    page = MetricsPage(FakeClock(), {"daemon": "alert"})
    page.show([(Column("sent_messages", (), "messages"), 23.0)])
    found, end = serve(page, "127.0.0.1", 0, client_timeout_seconds=0.5)
    yield found
    end()


def descriptors_open() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def scraped(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        text: str = answer.read().decode()
    return text


@pytest.mark.long
def test_idle_connections_cost_few_descriptors_and_no_scrape(port: int) -> None:
    """A connection that asks for nothing makes room for one that does."""
    before = descriptors_open()
    with contextlib.ExitStack() as held:
        for _ in range(IDLE):
            held.enter_context(socket.create_connection(("127.0.0.1", port), timeout=10))
        text = scraped(port)
        descriptors = descriptors_open() - before - IDLE
        threads = sum(one.name.startswith("Thread-") for one in threading.enumerate())

    assert "soak_sent_messages_total 23.0" in text
    assert descriptors <= 2 * MAX_CONNECTIONS
    assert threads <= 4 * MAX_CONNECTIONS + 2  # each has one that watches the time


@pytest.mark.parametrize("sent", [b"", b"GET /metrics HTTP/1.0\r\n", b"G"])
def test_a_client_that_drips_its_request_is_closed_in_time(port: int, sent: bytes) -> None:
    """The limit is one on all of the request, not between two bytes of it."""
    begin = time.monotonic()
    with socket.create_connection(("127.0.0.1", port), timeout=0.1) as client:
        client.sendall(sent)
        while time.monotonic() - begin < 20.0:
            try:
                if not client.recv(1):
                    break
            except TimeoutError:
                client.sendall(b"x")
            except OSError:
                break

    assert time.monotonic() - begin < 10.0


@pytest.mark.parametrize("data", [b"x" * 65536, b"X: y\r\n" * 10_000, b"\x00\xff\r\n" * 1000])
def test_a_request_without_an_end_is_closed(port: int, data: bytes) -> None:
    with (
        socket.create_connection(("127.0.0.1", port), timeout=10) as client,
        contextlib.suppress(OSError),
    ):
        client.sendall(b"GET / HTTP/1.1\r\n")
        for _ in range(1000):
            client.sendall(data)

    assert "soak_sent_messages_total 23.0" in scraped(port)


@pytest.mark.parametrize("version", ["x", "", "1.0.0.x", "\u0661", "9" * 5000])
def test_an_error_that_a_request_raises_is_not_logged(
    port: int, capfd: pytest.CaptureFixture[str], version: str
) -> None:
    """Anybody may send it, thousands of times a second: the log is for what the daemon has to say."""
    accept = f"application/openmetrics-text;version={version}".encode()
    with socket.create_connection(("127.0.0.1", port), timeout=10) as client:
        client.sendall(b"GET / HTTP/1.0\r\nAccept: " + accept + b"\r\n\r\n")
        answer = b"".join(iter(lambda: client.recv(65536), b""))

    assert answer.startswith((b"HTTP/1.0 200 ", b"HTTP/1.0 500 "))
    assert capfd.readouterr().err == ""


def test_any_request_leaves_the_page_as_it_is(port: int, capfd: pytest.CaptureFixture[str]) -> None:
    """Parts of requests in any order: nothing is printed, and the next scrape is served."""
    parts = (
        *(b"GET /metrics HTTP/1.1\r\n", b"POST / HTTP/1.0\r\n", b"GET /\r\n", b"\r\n", b"\r\n\r\n"),
        *(b"GET http://x/ HTTP/9.9\r\n", b"Content-Length: -1\r\n", b"Content-Length: 9e9\r\n"),
        *(
            b"GET /?name[]=x HTTP/1.1\r\n",
            b"Accept: \xff\r\n",
            b"\x1b[2J\x00",
            b"Expect: 100-continue\r\n",
        ),
        *(
            b"Accept-Encoding: gzip\r\n",
            b"Accept: application/openmetrics-text;version=x\r\n",
            b": \r\n",
            b"OPTIONS * HTTP/1.1\r\n",
            b"Host: \xe2\x80\xae\r\n",
        ),
    )
    for source in rounds("requests to /metrics", 60):
        with (
            socket.create_connection(("127.0.0.1", port), timeout=10) as client,
            contextlib.suppress(OSError),
        ):
            client.sendall(b"".join(source.choices(parts, k=source.randint(1, 8))))
            client.shutdown(socket.SHUT_WR)
            while client.recv(65536):
                pass

    assert "soak_sent_messages_total 23.0" in scraped(port)
    assert capfd.readouterr().err == ""
