"""Requests to the admin interface: redirected to the owner of the topic, cut off, refused."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from soak.clients.pulsar_admin import Admin, RefusedError, connect_admin
from soak.core.errors import BrokerError
from tests.support.certificate import certificate
from tests.support.pages import serving

Asked = tuple[str, str, bytes, str | None]
"""Method, path, body and authorization of a request."""
Answer = tuple[int, dict[str, str], bytes]


@contextmanager
def web(
    answer_to: Callable[[Asked], Answer], context: ssl.SSLContext | None = None
) -> Iterator[str]:
    """Answer on loopback by the function; yields the address."""

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
            asked = self.command, self.path, body, self.headers.get("Authorization")
            status, headers, content = answer_to(asked)
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        do_PUT = do_POST = do_GET  # noqa: N815  # the library's

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the library's
            """Say nothing."""

    with serving(Page, context) as address:
        yield address


def admin_at(url: str) -> Admin:
    return connect_admin(url, 10, "t", {})


@pytest.mark.parametrize("status", [307, 308])
@pytest.mark.parametrize("method", ["get", "put", "post"])
def test_a_redirect_to_the_owner_of_the_topic_is_followed(method: str, status: int) -> None:
    """With the same method, body and authorization."""
    asked: list[Asked] = []

    def owner(one: Asked) -> Answer:
        asked.append(one)
        return 200, {}, b"7"

    with (
        web(owner) as there,
        web(lambda one: (status, {"Location": f"{there}{one[1]}"}, b"")) as here,
    ):
        arguments = () if method == "get" else ({"a": 1},)
        found = getattr(admin_at(here), method)("/admin/v2/x?a=b", *arguments)

    body = b"" if method == "get" else b'{"a": 1}'
    assert asked == [(method.upper(), "/admin/v2/x?a=b", body, "Bearer t")]
    assert found == (7 if method == "get" else None)


def test_redirects_in_a_circle_end() -> None:
    with (
        web(lambda one: (307, {"Location": one[1]}, b"")) as here,
        pytest.raises(RefusedError, match="HTTP 307"),
    ):
        admin_at(here).post("/admin/v2/x")


@pytest.mark.long
@pytest.mark.parametrize("scheme", ["https", "HTTPS"])
def test_a_redirect_from_tls_to_an_open_connection_is_refused(scheme: str, tmp_path: Path) -> None:
    """The token would be readable on the way."""
    ca, key = certificate(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(ca, key)
    asked: list[Asked] = []

    def open_page(one: Asked) -> Answer:
        asked.append(one)
        return 200, {}, b"7"

    with (
        web(open_page) as there,
        web(lambda _: (307, {"Location": f"{there}/x"}, b""), context) as here,
    ):
        url = here.replace("https", scheme)
        admin = connect_admin(url, 10, "t", {"tls_trust_certs_file_path": str(ca)})
        with pytest.raises(BrokerError, match=f"redirects to '{there}/x'"):
            admin.get("/x")

    assert asked == []


def test_a_redirect_to_another_protocol_is_refused() -> None:
    with (
        web(lambda _: (307, {"Location": "ftp://a/x"}, b"")) as here,
        pytest.raises(BrokerError, match="redirects to 'ftp://a/x'"),
    ):
        admin_at(here).get("/x")


@pytest.mark.parametrize("status", [200, 500])
def test_an_incomplete_answer_is_an_error(status: int) -> None:
    """Whether it is an answer or a refusal."""
    with (
        web(lambda _: (status, {"Content-Length": "100"}, b"half")) as here,
        pytest.raises(BrokerError),
    ):
        admin_at(here).get("/admin/v2/x")


def test_many_requests_use_one_connection() -> None:
    """With TLS each connection costs a handshake."""
    connections: set[object] = set()

    class Page(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"  # as brokers do: a connection is kept

        def do_GET(self) -> None:
            connections.add(self.client_address)
            body = b"[%d]" % len(self.path)
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the library's
            """Say nothing."""

    with serving(Page) as here:
        found = list(admin_at(f"{here}/a").get_each(["/b", "/bc", "/bcd"]))

    assert found == [[4], [5], [6]]
    assert len(connections) == 1


def test_many_requests_are_answered_by_a_server_that_keeps_no_connection() -> None:
    with web(lambda one: (200, {}, one[1].encode())) as here:
        found = list(admin_at(here).get_each(["/1", "/2"]))

    assert found == ["/1", "/2"]


def test_one_of_many_requests_is_redirected_and_one_is_refused() -> None:
    """As if they were sent one by one."""
    answers = {"/sent-on": (307, {"Location": "/here"}, b""), "/here": (200, {}, b"7")}

    with web(lambda one: answers.get(one[1], (403, {}, b"no"))) as here:
        found = admin_at(here).get_each(["/sent-on", "/refused"])
        first = next(found)
        with pytest.raises(RefusedError, match="HTTP 403"):
            next(found)

    assert first == 7


def test_one_of_many_requests_is_repeated_once_after_a_failure() -> None:
    """Cut off or refused, as while a broker restarts; also the first, on a new connection."""
    answers = [
        (200, {"Content-Length": "100"}, b"half"),
        (200, {}, b"7"),
        (503, {}, b"not yet"),
        (200, {}, b"8"),
    ]

    with web(lambda _: answers.pop(0)) as here:
        assert list(admin_at(here).get_each(["/a", "/b"])) == [7, 8]


def test_threads_share_an_admin_interface() -> None:
    """A request that ends leaves another one that is being answered alone."""
    has_begun, may_end = threading.Event(), threading.Event()

    class Page(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self.wfile.write(b"1\r\n4\r\n")
            if self.path == "/slow":
                has_begun.set()
                may_end.wait(10)
            self.wfile.write(b"1\r\n2\r\n0\r\n\r\n")

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the library's
            """Say nothing."""

    with serving(Page) as here, ThreadPoolExecutor(1) as threads:
        admin = admin_at(here)
        slow = threads.submit(admin.get, "/slow")
        has_begun.wait(10)
        try:
            quick = admin.get("/quick")
        finally:
            may_end.set()

        assert (quick, slow.result()) == (42, 42)


def test_many_requests_without_a_server_are_an_error() -> None:
    for address in ("http://127.0.0.1:1", "http://a:b"):
        with pytest.raises(BrokerError, match=f"the Pulsar admin interface at {address}"):
            list(admin_at(address).get_each(["/admin/v2/x"]))


def test_an_invalid_address_is_an_error() -> None:
    with pytest.raises(BrokerError, match="the Pulsar admin interface at http://a:b"):
        admin_at("http://a:b").get("/admin/v2/x")
