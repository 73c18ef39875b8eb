"""HTTP requests with limits on time and size, which never take credentials to another host."""

from __future__ import annotations

import base64
import ssl
from collections.abc import Mapping
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from urllib.parse import urljoin, urlsplit

from soak.clients import client_settings
from soak.core.errors import BrokerError, ProbeError
from soak.core.ports import Clock
from soak.core.units import SECOND_NS

CLIENT_SETTINGS = (
    "username",
    "password",
    "bearer_token",
    "ca_file",
    "cert_file",
    "key_file",
    "key_password",
)
"""What `client` of a target may set."""
SECRET_SETTINGS = ("password", "bearer_token", "key_password")

_OK = 200
_REDIRECTS = (301, 302, 303, 307, 308)
_MAX_REQUESTS = 3
_CHUNK_BYTES = 2**18


def check_url(url: str) -> None:
    """Raise `ValueError` unless it is the address of a page, without a secret in it; never repeats it."""
    if "@" in url.partition("?")[0] or client_settings.is_secret_in_query(url):
        raise ValueError("url holds a password; name it in `client` instead")
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("url is no address of a page; write it like http://host:9644/metrics")
    _ = parts.port  # refuses one that is no number


class HttpClient:
    """Asks one server; its TLS files and secrets are read when it is first asked."""

    def __init__(
        self,
        url: str,
        client: Mapping[str, str],
        clock: Clock,
        *,
        timeout_seconds: float,
        most_bytes: int,
    ) -> None:
        self._origin = _origin(url)
        self._address = url
        self._client = client
        self._clock = clock
        self._timeout_seconds = timeout_seconds
        self._most_bytes = most_bytes
        self._connection: HTTPConnection | None = None
        self._headers: dict[str, str] = {}

    def get(self, url: str) -> bytes:
        """Return the page at a URL of this server.

        Raises:
            ProbeError: no whole page within the limits, or one that is not there, or is elsewhere.
        """
        deadline_ns = self._clock.mono_ns() + round(self._timeout_seconds * SECOND_NS)
        for _ in range(_MAX_REQUESTS):
            is_kept = self._connection is not None
            try:
                answer = self._asked(url, deadline_ns)
            except (OSError, HTTPException) as error:
                self.close()
                if is_kept:  # the server may have closed it since
                    continue
                raise self._error(
                    f"does not answer: {str(error) or type(error).__name__}"
                ) from error
            except ValueError:  # its words may hold a secret
                self.close()
                raise self._error(
                    "cannot be asked: the address or a secret has what no question can carry"
                ) from None
            if answer.status not in _REDIRECTS:
                return self._body(answer, deadline_ns)
            url = self._next(url, answer.getheader("Location", ""))
            self.close()
        raise self._error("sends on and on, or answers no more")

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _asked(self, url: str, deadline_ns: int) -> HTTPResponse:
        connection = self._connection or self._connect()
        self._connection = connection
        left = self._left(deadline_ns)
        connection.timeout = left
        if connection.sock is not None:
            connection.sock.settimeout(left)
        parts = urlsplit(url)
        path = f"{parts.path or '/'}{'?' if parts.query else ''}{parts.query}"
        connection.request("GET", path, headers=self._headers)
        return connection.getresponse()

    def _body(self, answer: HTTPResponse, deadline_ns: int) -> bytes:
        """Return what is behind the headers, all of it."""
        if answer.status != _OK:
            self.close()
            raise self._error(f"says {answer.status} {answer.reason[:80]!r}")
        wanted, chunks, size = answer.length, [], 0
        connection = self._connection
        try:
            while chunk := answer.read1(_CHUNK_BYTES):
                chunks.append(chunk)
                size += len(chunk)
                if size > self._most_bytes:
                    raise self._error(f"gives a page of more than {self._most_bytes} bytes")
                left = self._left(deadline_ns)
                if connection is not None and connection.sock is not None:
                    connection.sock.settimeout(left)
        except (
            OSError,
            HTTPException,
            ValueError,
        ) as error:  # the last: a chunk's size is no number
            self.close()
            raise self._error(f"broke off after {size} bytes: {error}") from error
        except ProbeError:
            self.close()
            raise
        if wanted is not None and size != wanted:
            self.close()
            raise self._error(f"broke off after {size} of {wanted} bytes")
        answer.close()  # only then is the connection free for the next question
        return b"".join(chunks)

    def _left(self, deadline_ns: int) -> float:
        left = (deadline_ns - self._clock.mono_ns()) / SECOND_NS
        if left <= 0:
            raise TimeoutError(f"not within {self._timeout_seconds:g} s")
        return left

    def _next(self, url: str, location: str) -> str:
        """Return where a page has moved to on the same server: what we are asked with is for it alone."""
        try:
            there = urljoin(url, location)
            is_here = _origin(there) == self._origin
        except ValueError:  # no address at all
            there, is_here = location, False
        if not is_here:
            self.close()
            raise self._error(
                f"sends on to {there[:200]!r}; name that address if it is the right one"
            )
        return there

    def _connect(self) -> HTTPConnection:
        try:
            settings = client_settings.resolve_secrets(self._client)
        except BrokerError as error:
            raise ProbeError(str(error)) from error
        self._headers = _headers(settings)
        scheme, host, port = self._origin
        if scheme == "http":
            return HTTPConnection(host, port)
        try:
            context = ssl.create_default_context(cafile=settings.get("ca_file"))
            if "cert_file" in settings:
                context.load_cert_chain(
                    settings["cert_file"], settings.get("key_file"), settings.get("key_password")
                )
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            raise ProbeError(f"cannot use the TLS files of {self._address}: {error}") from error
        return HTTPSConnection(host, port, context=context)

    def _error(self, what: str) -> ProbeError:
        return ProbeError(f"{self._address} {what}")


def _origin(url: str) -> tuple[str, str, int]:
    parts = urlsplit(url)
    return (
        parts.scheme,
        parts.hostname or "",
        parts.port or (443 if parts.scheme == "https" else 80),
    )


def _headers(settings: Mapping[str, str]) -> dict[str, str]:
    found = {"Accept": "text/plain;version=0.0.4", "User-Agent": "soakd"}
    if "bearer_token" in settings:
        found["Authorization"] = f"Bearer {settings['bearer_token']}"
    elif "username" in settings:
        both = f"{settings['username']}:{settings.get('password', '')}"
        found["Authorization"] = f"Basic {base64.b64encode(both.encode()).decode('ascii')}"
    return found
