"""HTTP requests with limits on time and size, which never take credentials to another host.

One request at a time goes over a connection that is kept. Proxies of the environment are not used: what is
asked are brokers, exporters and receivers of alerts, by the address that a plan names.
"""

from __future__ import annotations

import base64
import socket
import ssl
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from functools import partial
from http.client import HTTPException, InvalidURL
from pathlib import Path
from typing import Literal
from urllib.parse import urlencode, urljoin, urlsplit

from urllib3 import BaseHTTPResponse
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import HTTPError

from soak.clients import client_settings
from soak.clients.deadline import Deadline, connect_within
from soak.core.errors import BrokerError, SoakError
from soak.core.ports import Clock
from soak.core.units import SECOND_NS

OK = 200
CLIENT_SETTINGS = (
    "username",
    "password",
    "bearer_token",
    "ca_file",
    "cert_file",
    "key_file",
    "key_password",
    client_settings.UNENCRYPTED,
)
"""What a plan may set of the client of a metrics page or a Prometheus server."""
SECRET_SETTINGS = ("password", "bearer_token", "key_password")

Redirects = Literal["none", "same_host"]

_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_MAX_REDIRECTS = 10
_CHUNK_BYTES = 2**18
_FAILURES = (OSError, HTTPException, HTTPError)

_Origin = tuple[str, str, int]


class _PlainConnection(HTTPConnection):
    """A connection that is made within the time that the whole request has left.

    The library gives each address of a name, and then the handshake of TLS, the full time.
    """

    deadline: Deadline

    def _new_conn(self) -> socket.socket:
        connection = connect_within(self.deadline, self.host, self.port)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.timeout = connection.gettimeout()
        return connection


class _TlsConnection(_PlainConnection, HTTPSConnection):
    """The same with TLS."""


_Connection = _PlainConnection


class HttpError(SoakError):
    """A request has no complete answer, or one that is not OK; `status` is that of the answer, else 0.

    `is_sent`: the server may have acted on it all the same.
    """

    def __init__(self, message: str, *, is_sent: bool = False, status: int = 0) -> None:
        super().__init__(message)
        self.is_sent = is_sent
        self.status = status


@dataclass(frozen=True, slots=True)
class Access:
    """How a client identifies itself, and which servers it trusts."""

    headers: Mapping[str, str] = field(default_factory=dict)
    tls: Callable[[], ssl.SSLContext] = ssl.create_default_context  # called for https alone
    may_be_unencrypted: bool = False  # what identifies the client, on the way to another machine


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    reason: str
    body: bytes
    location: str = ""  # of a redirect
    date: str = ""  # by the clock of the server
    is_whole: bool = False  # the server sent the length of the body, so no part of it is missing


@dataclass(frozen=True, slots=True)
class _Request:
    method: str
    body: bytes | None
    headers: Mapping[str, str]
    is_repeatable: bool  # the server changes nothing by it


class HttpClient:
    """Asks one server, for one thread.

    `access` is called for each new connection, so secrets and certificates may change. Redirects are followed
    to the same scheme, host and port, and to the hosts in `redirect_hosts`, on any port; the credentials go
    along, though never from TLS to an open connection. The limits hold for a whole request with connecting,
    TLS and redirects; only the resolver has a limit of its own. An answer of more than `max_bytes` is an
    error, or is cut there if `is_cut`. Errors call the server `name`, by default the URL.
    """

    def __init__(
        self,
        url: str,
        *,
        timeout_seconds: float,
        max_bytes: int,
        access: Callable[[], Access] = Access,
        redirects: Redirects = "same_host",
        redirect_hosts: Collection[str] = (),
        is_cut: bool = False,
        name: str = "",
    ) -> None:
        self._url = url
        self._name = name or url
        self._access = access
        self._timeout_seconds = timeout_seconds
        self._max_bytes = max_bytes
        self._redirects = redirects
        self._redirect_hosts = frozenset(one.lower() for one in redirect_hosts)
        self._is_cut = is_cut
        self._connection: _Connection | None = None
        self._headers: Mapping[str, str] = {}

    def get(self, url: str) -> bytes:
        """Return the body of an answer with status 200; raises as `get_answer`."""
        return self.get_answer(url).body

    def get_answer(self, url: str) -> Answer:
        """Return an answer with status 200.

        Raises:
            HttpError: there is no such answer within the limits.
        """
        return self._accepted(self.request("GET", url))

    def post_form(self, url: str, fields: Mapping[str, str]) -> bytes:
        """Return the body of the answer to a query that changes nothing; raises as `get_answer`.

        A form has no limit on its length. Servers and proxies refuse addresses of more than some 8 KiB.
        """
        headers = {"Content-Type": "application/x-www-form-urlencoded"}
        body = urlencode(fields).encode("ascii")
        query = _Request("POST", body, headers, is_repeatable=True)
        return self._accepted(self._answer(query, url)).body

    def request(
        self,
        method: str,
        url: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """Return the answer, whatever its status; of too many redirects the last.

        Raises:
            HttpError: there is no complete answer within the limits, or a redirect that is not followed.
        """
        is_repeatable = method == "GET"
        return self._answer(_Request(method, body, headers or {}, is_repeatable), url)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _answer(self, request: _Request, url: str) -> Answer:
        with Deadline(self._timeout_seconds) as deadline:
            answer = self._exchange(request, url, deadline)
            for _ in range(_MAX_REDIRECTS):
                if self._redirects == "none" or answer.status not in _REDIRECTS:
                    break
                url = self._next(url, answer.location)
                answer = self._exchange(request, url, deadline)
        return answer

    def _accepted(self, answer: Answer) -> Answer:
        if answer.status != OK:
            self.close()
            what = f"answers {answer.status} {answer.reason[:80]!r}"
            raise HttpError(f"{self._name} {what}", status=answer.status)
        return answer

    def _exchange(self, request: _Request, url: str, deadline: Deadline) -> Answer:
        """Return the answer to one request; a repeatable one is sent again if a kept connection ended."""
        kept = self._kept(url)
        connection = kept or self._connect(url, deadline)
        try:
            deadline.covers(connection.sock)
            parts = urlsplit(url)
            target = f"{parts.path or '/'}{'?' if parts.query else ''}{parts.query}"
            connection.request(
                request.method,
                target,
                request.body,
                {**self._headers, **request.headers},
                preload_content=False,
                decode_content=not self._is_cut,  # a status counts, even with damaged words
            )
            response = connection.getresponse()
        except (InvalidURL, ValueError):  # its words may hold a secret
            self._drop(connection)
            raise self._error(
                "cannot be asked: the address or a header holds characters that HTTP cannot carry"
            ) from None
        except _FAILURES as error:
            self._drop(connection)
            if kept is not None and request.is_repeatable and not deadline.is_over:
                return self._exchange(request, url, deadline)
            raise self._failed("does not answer", error, deadline, is_sent=True) from error
        has_length = response.chunked or response.length_remaining is not None
        is_whole = has_length and "Content-Encoding" not in response.headers
        content = self._content(connection, response, deadline)
        if connection is not self._connection:
            connection.close()
        location, date = (response.headers.get(name, "") for name in ("Location", "Date"))
        return Answer(response.status, response.reason or "", content, location, date, is_whole)

    def _content(
        self, connection: _Connection, response: BaseHTTPResponse, deadline: Deadline
    ) -> bytes:
        """Return all that follows the headers, unpacked: some servers compress without being asked to."""
        chunks, size = [], 0
        try:
            while chunk := response.read1(_CHUNK_BYTES):
                chunks.append(chunk)
                size += len(chunk)
                if size > self._max_bytes:
                    break
        except (*_FAILURES, ValueError) as error:  # the last: the size of a chunk is no number
            self._drop(connection)
            what = f"broke off after {size} bytes"
            raise self._failed(what, error, deadline, is_sent=True) from error
        if deadline.is_over:  # it ended the connection, which looks like the end of the body
            self._drop(connection)
            raise self._failed(f"broke off after {size} bytes", None, deadline, is_sent=True)
        if size > self._max_bytes:
            self._drop(connection)
            if not self._is_cut:
                raise self._error(f"gives more than {self._max_bytes} bytes", is_sent=True)
        return b"".join(chunks)[: self._max_bytes]

    def _kept(self, url: str) -> _Connection | None:
        """Return the kept connection if this URL can use it; forget one that the server has closed."""
        if self._connection is None or self._origin(url) != self._origin(self._url):
            return None
        if not self._connection.is_connected:
            self.close()
        return self._connection

    def _connect(self, url: str, deadline: Deadline) -> _Connection:
        """Return a connection; the one to the client's own server is kept."""
        scheme, host, port = self._origin(url)
        try:
            access = self._access()
            tls = access.tls() if scheme == "https" else None
        except (BrokerError, OSError, ValueError) as error:
            raise HttpError(f"{self._name}: {error}") from error
        self._headers = {"User-Agent": "soakd", **access.headers}
        is_protected = access.may_be_unencrypted or client_settings.is_protected(url)
        if "Authorization" in access.headers and not is_protected:
            raise self._error(
                "needs a token or password, which is not sent unencrypted: use https, or set "
                f"{client_settings.UNENCRYPTED}: true"
            )
        connection: _Connection = _PlainConnection(host, port)
        if tls is not None:
            connection = _TlsConnection(host, port, ssl_context=tls)
        connection.timeout = self._timeout_seconds
        connection.deadline = deadline
        try:
            connection.connect()
        except (*_FAILURES, ValueError) as error:  # the last: a name that no resolver can take
            connection.close()
            raise self._failed("does not answer", error, deadline, is_sent=False) from error
        if (scheme, host, port) == self._origin(self._url):
            self._connection = connection
        return connection

    def _drop(self, connection: _Connection) -> None:
        connection.close()
        if connection is self._connection:
            self._connection = None

    def _next(self, url: str, location: str) -> str:
        """Return where a redirect leads, if it may be followed there."""
        try:
            there = urljoin(url, location)
            scheme, host, port = _origin_of(there)
        except ValueError:  # no address at all
            there, scheme, host, port = location, "", "", 0
        is_here = (scheme, host, port) == self._origin(self._url)
        is_safe = scheme == "https" or (scheme == "http" and not is_https(self._url))
        if is_here or (host in self._redirect_hosts and is_safe):
            return there
        self.close()
        raise self._error(
            f"redirects to {there[:200]!r}; name that address if it is the right one", is_sent=True
        )

    def _origin(self, url: str) -> _Origin:
        try:
            return _origin_of(url)
        except ValueError as error:
            raise self._error(f"is not an address: {error}") from error

    def _failed(
        self, what: str, error: Exception | None, deadline: Deadline, *, is_sent: bool
    ) -> HttpError:
        why = f"no complete answer within {self._timeout_seconds:g} s"
        if error is not None and not deadline.is_over:
            why = _reason(error)
        return self._error(f"{what}: {why}", is_sent=is_sent)

    def _error(self, what: str, *, is_sent: bool = False) -> HttpError:
        return HttpError(f"{self._name} {what}", is_sent=is_sent)


def clock_ahead_seconds(client: HttpClient, url: str, clock: Clock) -> float | None:
    """Return how many seconds the clock of a server is ahead of this host's at least; negative: behind.

    It is the `Date` of an answer, whose resolution is a second; None where there is no such date.
    """
    asked = clock.wall_ns() / SECOND_NS
    try:
        answer = client.request("HEAD", urljoin(url, "/"))
        date = parsedate_to_datetime(answer.date).timestamp()
    except (HttpError, ValueError, OverflowError):  # a year of twenty digits
        return None
    return max(0.0, date - clock.wall_ns() / SECOND_NS) + min(0.0, date + 1.0 - asked)


def check_url(url: str) -> None:
    """Raise `ValueError` unless it is the address of a page without a secret in it; never repeats it."""
    if "@" in url.partition("?")[0] or client_settings.is_secret_in_query(url):
        raise ValueError("url holds a password; name it in `client` instead")
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("url is no address of a page; write it like http://host:9644/metrics")
    _ = parts.port  # refuses one that is no number


def is_https(url: str) -> bool:
    """Return whether requests to a URL use TLS; False if it is no address."""
    try:
        return urlsplit(url).scheme == "https"
    except ValueError:
        return False


def access_of(client: Mapping[str, str]) -> Access:
    """Return what `CLIENT_SETTINGS` mean, with the secrets that they refer to.

    Raises:
        BrokerError: a secret is not where the plan says.
    """
    settings = client_settings.resolve_secrets(client)
    headers = {"Accept": "text/plain;version=0.0.4"}  # of pages that know several formats
    if "bearer_token" in settings:
        headers["Authorization"] = bearer(settings["bearer_token"])
    elif "username" in settings:
        headers["Authorization"] = basic(settings["username"], settings.get("password", ""))
    tls = partial(
        tls_context,
        settings.get("ca_file"),
        settings.get("cert_file"),
        settings.get("key_file"),
        settings.get("key_password"),
    )
    return Access(headers, tls, client_settings.may_be_unencrypted(settings))


def basic(user: str, password: str) -> str:
    """Return the header `Authorization` of HTTP's basic authentication."""
    return f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode('ascii')}"


def bearer(token: str) -> str:
    """Return the header `Authorization` with a token.

    Raises:
        BrokerError: a header cannot hold it; the token is not repeated.
    """
    if not (token.isascii() and token.isprintable()):
        raise BrokerError("the token holds characters that no header can carry")
    return f"Bearer {token}"


def tls_context(
    ca: str | None = None,
    certificate: str | None = None,
    key: str | None = None,
    key_password: str | None = None,
    *,
    is_verifying: bool = True,
) -> ssl.SSLContext:
    """Return TLS settings from the paths of a CA (a file or folder), a certificate and its key; empty: none.

    Raises:
        BrokerError: one of the files cannot be used.
    """
    try:
        is_folder = bool(ca) and Path(str(ca)).is_dir()
        context = ssl.create_default_context(
            cafile=None if is_folder else ca or None, capath=ca if is_folder else None
        )
        if certificate:
            context.load_cert_chain(certificate, key or None, key_password)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise BrokerError(f"the TLS files cannot be used: {error}") from error
    if not is_verifying:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _origin_of(url: str) -> _Origin:
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return parts.scheme, parts.hostname or "", port


def _reason(error: BaseException) -> str:
    """Return what the system or TLS says, without the words that urllib3 wraps around it."""
    while isinstance(error, HTTPError) and error.__cause__ is not None:
        error = error.__cause__
    return str(error) or type(error).__name__
