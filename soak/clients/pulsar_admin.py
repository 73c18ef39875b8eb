"""Questions to a Pulsar cluster over its admin interface, which the client library does not have."""

from __future__ import annotations

import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from http.client import HTTPConnection, HTTPException, HTTPMessage, HTTPSConnection
from typing import IO, Any
from urllib.parse import quote, urlsplit
from urllib.request import HTTPRedirectHandler, HTTPSHandler, Request

from soak.core.errors import BrokerError

OK = 200
NOT_FOUND = 404
CONFLICT = 409
_JSON = "application/json"


class RefusedError(BrokerError):
    """The cluster answered, and the answer was no; `status` is that of HTTP."""

    def __init__(self, said: str, status: int) -> None:
        super().__init__(said)
        self.status = status


class Admin:
    """The admin interface at one URL; a call is one request with an end."""

    def __init__(
        self,
        url: str,
        timeout_seconds: float,
        headers: Mapping[str, str],
        context: ssl.SSLContext | None,
    ) -> None:
        self._url = url.rstrip("/")
        self._timeout_seconds = timeout_seconds
        self._headers = dict(headers)
        self._context = context
        self._opener = urllib.request.build_opener(HTTPSHandler(context=context), RedirectHandler())

    def get(self, path: str) -> Any:  # noqa: ANN401  # what the cluster says
        """Return the answer, parsed if it is JSON.

        Raises:
            RefusedError: the cluster's answer was no.
            BrokerError: it did not answer in time.
        """
        return _parsed(self._ask("GET", path, None))

    def get_each(self, paths: Iterable[str]) -> Iterator[Any]:
        """Give the answers to many questions, over one connection as long as the cluster keeps it.

        Raises as `get`.
        """
        connection = self._connection()
        try:
            for path in paths:
                text = self._plain_answer(connection, path)
                # What is refused, sent on or cut off is asked once more, by itself.
                yield self.get(path) if text is None else _parsed(text)
        finally:
            connection.close()

    def put(self, path: str, body: object, kind: str = _JSON) -> None:
        """Make something; `kind` is the body's, for the header; raises as `get`."""
        self._ask("PUT", path, body, kind)

    def post(self, path: str, body: object = None) -> None:
        """Change something; raises as `get`."""
        self._ask("POST", path, body)

    def delete(self, path: str) -> None:
        """Delete something; raises as `get`."""
        self._ask("DELETE", path, None)

    def _connection(self) -> HTTPConnection:
        parts = urlsplit(self._url)
        host, limit = parts.netloc.rpartition("@")[2], self._timeout_seconds
        try:
            if parts.scheme == "https":
                return HTTPSConnection(host, timeout=limit, context=self._context)
            return HTTPConnection(host, timeout=limit)
        except HTTPException as error:
            raise self._no_answer(error) from error

    def _plain_answer(self, connection: HTTPConnection, path: str) -> str | None:
        """Return the text of a plain answer, and None for any other."""
        try:
            connection.request("GET", f"{urlsplit(self._url).path}{path}", headers=self._headers)
            answer = connection.getresponse()
            text = answer.read().decode("utf-8", errors="replace")
        except (OSError, ValueError, HTTPException):
            connection.close()  # the next question opens it again
            return None
        return text if answer.status == OK else None

    def _no_answer(self, error: Exception) -> BrokerError:
        reason = getattr(error, "reason", error)
        return BrokerError(f"no Pulsar admin interface at {self._url}: {reason}")

    def _ask(self, method: str, path: str, body: object, kind: str = _JSON) -> str:
        content = b"" if body is None else json.dumps(body).encode()
        try:
            request = Request(  # noqa: S310  # the plan names the scheme
                f"{self._url}{path}",
                data=None if method == "GET" else content,
                headers={**self._headers, "Content-Type": kind},
                method=method,
            )
            with self._opener.open(request, timeout=self._timeout_seconds) as answer:
                text: str = answer.read().decode("utf-8", errors="replace")
                return text
        except urllib.error.HTTPError as error:
            raise RefusedError(_reason(error), error.code) from error
        except (OSError, ValueError, HTTPException) as error:  # no answer, no URL, half an answer
            raise self._no_answer(error) from error


def connect_admin(
    url: str, timeout_seconds: float, token: str, settings: Mapping[str, Any]
) -> Admin:
    """Return the admin interface as a client with this token ("": none) and these TLS settings reaches it.

    Raises:
        BrokerError: a file of certificates cannot be read.
    """
    context = _context(settings) if url.startswith("https:") else None
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    return Admin(url, timeout_seconds, headers, context)


class RedirectHandler(HTTPRedirectHandler):
    """Takes a question on to the broker that has the topic: the same method, body and headers.

    The library itself does so for GET alone. Who sends us on has the token already; what may not see
    it is a connection without the TLS of the one before. More than ten steps are refused by the library.
    """

    def redirect_request(
        self,
        req: Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: HTTPMessage,
        newurl: str,
    ) -> Request | None:
        safe = ("https:",) if req.type == "https" else ("https:", "http:")
        if not newurl.startswith(safe):
            raise urllib.error.HTTPError(newurl, code, f"{msg}: sent on to {newurl}", headers, fp)
        return Request(  # noqa: S310  # the scheme of the question, or a safer one
            newurl, data=req.data, headers=req.headers, method=req.get_method()
        )


def _parsed(text: str) -> Any:  # noqa: ANN401  # what the cluster says
    """Return JSON as what it says, and any other text as it is."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def topic_path(topic: str) -> str:
    """Return where the admin interface has a topic, named in full."""
    return f"/admin/v2/{quote(topic.replace('://', '/'))}"


def _reason(error: urllib.error.HTTPError) -> str:
    """Return the cluster's words, without the trace that some of its answers carry."""
    try:
        text = error.read().decode("utf-8", errors="replace").strip()
    except (OSError, HTTPException):  # cut off behind the status
        text = ""
    try:
        said = json.loads(text)["reason"]
    except (ValueError, KeyError, TypeError):
        said = text
    lines = str(said or error.reason).strip().splitlines()
    return f"{lines[0] if lines else 'refused'} (HTTP {error.code})"


def _context(settings: Mapping[str, Any]) -> ssl.SSLContext:
    """Return what the client's TLS settings mean for the admin interface.

    Raises:
        BrokerError: a file of certificates cannot be read.
    """
    try:
        context = ssl.create_default_context(cafile=settings.get("tls_trust_certs_file_path"))
        certificate = settings.get("tls_certificate_file_path")
        if certificate:
            context.load_cert_chain(certificate, settings.get("tls_private_key_file_path"))
    except (OSError, ssl.SSLError) as error:
        raise BrokerError(f"client: the TLS files cannot be used: {error}") from error
    if settings.get("tls_allow_insecure_connection"):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
