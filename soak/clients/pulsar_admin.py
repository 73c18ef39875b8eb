"""Requests to the admin interface of a Pulsar cluster, which the client library does not have."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import closing
from typing import Any
from urllib.parse import quote, urlsplit

from soak.clients.client_settings import may_be_unencrypted
from soak.clients.http import (
    Access,
    Answer,
    HttpClient,
    HttpError,
    bearer,
    clock_ahead_seconds,
    is_https,
    tls_context,
)
from soak.core import json_text
from soak.core.errors import BrokerError
from soak.core.ports import Clock

NOT_FOUND = 404
CONFLICT = 409
ADMIN_HOSTS = "admin_hosts"
"""The setting with the hosts to which the admin interface may redirect, in addition to its own."""
_JSON = "application/json"
_MAX_REASON = 400  # characters
_MAX_BYTES = 2**28  # the statistics of a topic with a thousand partitions take some megabytes


class RefusedError(BrokerError):
    """The cluster refused a request; `status` is that of HTTP."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class Admin:
    """The admin interface at one URL, for any thread.

    Follows redirects to the broker that owns a topic, on the same host or one of `hosts`.
    """

    def __init__(
        self, url: str, timeout_seconds: float, access: Access, hosts: Collection[str] = ()
    ) -> None:
        self._url = url.rstrip("/")
        self._hosts = hosts
        self._timeout_seconds = timeout_seconds
        self._access = access

    def get(self, path: str) -> Any:  # noqa: ANN401  # what the cluster answers
        """Return the answer, parsed if it is JSON.

        Raises:
            RefusedError: the cluster refused the request.
            BrokerError: it did not answer in time.
        """
        return _parsed(self._once("GET", path))

    def get_each(self, paths: Iterable[str]) -> Iterator[Any]:
        """Yield the answers to many requests, over one connection; raises as `get`.

        What fails is requested once more, over a new connection.
        """
        with closing(self._client()) as client:
            for path in paths:
                try:
                    text = self._ask(client, "GET", path)
                except BrokerError:
                    client.close()
                    text = self._ask(client, "GET", path)
                yield _parsed(text)

    def clock_ahead_seconds(self, clock: Clock) -> float | None:
        """Return how far the clock of the server is ahead of this host's; as the function of that name."""
        with closing(self._client()) as client:
            return clock_ahead_seconds(client, self._url, clock)

    def put(self, path: str, body: object, kind: str = _JSON) -> None:
        """Create something; `kind` is the content type of the body; raises as `get`."""
        self._once("PUT", path, _content(body), kind)

    def post(self, path: str, body: object = None) -> None:
        """Change something; raises as `get`."""
        self._once("POST", path, _content(body))

    def delete(self, path: str) -> None:
        """Delete something; raises as `get`."""
        self._once("DELETE", path)

    def _once(self, method: str, path: str, content: bytes | None = None, kind: str = _JSON) -> str:
        with closing(self._client()) as client:
            return self._ask(client, method, path, content, kind)

    def _client(self) -> HttpClient:
        return HttpClient(
            self._url,
            access=lambda: self._access,
            timeout_seconds=self._timeout_seconds,
            max_bytes=_MAX_BYTES,
            redirect_hosts=self._hosts,
        )

    def _ask(
        self,
        client: HttpClient,
        method: str,
        path: str,
        content: bytes | None = None,
        kind: str = _JSON,
    ) -> str:
        try:
            answer = client.request(method, f"{self._url}{path}", content, {"Content-Type": kind})
        except HttpError as error:
            raise BrokerError(f"the Pulsar admin interface at {error}") from error
        text = answer.body.decode("utf-8", errors="replace")
        if answer.status // 100 != 2:  # noqa: PLR2004  # RFC 9110, 15.3: successful
            raise RefusedError(_reason(text, answer), answer.status)
        return text


def connect_admin(
    url: str, timeout_seconds: float, token: str, settings: Mapping[str, Any]
) -> Admin:
    """Return the admin interface as a client with this token ("": none) and these TLS settings reaches it.

    Raises:
        BrokerError: a file of certificates cannot be read.
    """
    headers = {"Authorization": bearer(token)} if token else {}
    is_allowed = may_be_unencrypted(settings)
    hosts = {host_of(url), *hosts_in(settings.get(ADMIN_HOSTS, ""))}
    if not is_https(url):
        access = Access(headers, may_be_unencrypted=is_allowed)
        return Admin(url, timeout_seconds, access, hosts)
    tls = tls_context(
        settings.get("tls_trust_certs_file_path"),
        settings.get("tls_certificate_file_path"),
        settings.get("tls_private_key_file_path"),
        is_verifying=not settings.get("tls_allow_insecure_connection"),
    )
    return Admin(url, timeout_seconds, Access(headers, lambda: tls), hosts)


def hosts_in(text: str) -> list[str]:
    """Return the names of hosts in a text, between commas."""
    return [one.strip().lower() for one in text.split(",") if one.strip()]


def host_of(url: str) -> str:
    """Return the host of a URL, "" if it has none."""
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def topic_path(topic: str) -> str:
    """Return the path of a topic, named in full, in the admin interface."""
    return f"/admin/v2/{quote(topic.replace('://', '/'))}"


def _content(body: object) -> bytes:
    return b"" if body is None else json.dumps(body).encode()


def _parsed(text: str) -> Any:  # noqa: ANN401  # what the cluster answers
    """Return the value of JSON, and any other text as it is."""
    try:
        return json_text.loads(text)
    except ValueError:
        return text


def _reason(text: str, answer: Answer) -> str:
    """Return the reason that the cluster gives, without the stack trace that some answers carry."""
    try:
        reason = json_text.loads(text)["reason"]
    except (ValueError, KeyError, TypeError):
        reason = text.strip()
    lines = str(reason or answer.reason).strip().splitlines()
    return f"{lines[0][:_MAX_REASON] if lines else 'refused'} (HTTP {answer.status})"
