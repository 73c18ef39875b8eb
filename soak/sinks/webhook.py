"""Notifications as alerts for Prometheus Alertmanager: one POST to its API v2 a message.

A finding is one alert: its labels stay the same, so that the message that it is resolved ends the alert.
Alertmanager expects its clients to post open alerts again and again; it loses them when it restarts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import field
from datetime import UTC, datetime
from typing import Annotated
from urllib.parse import SplitResult, urlsplit

from pydantic.dataclasses import dataclass

from soak.clients.client_settings import SECRET_HELP, is_secret_reference, resolve_secrets
from soak.clients.http import Access, Answer, HttpClient, HttpError, basic, bearer, tls_context
from soak.core.clock import SystemClock
from soak.core.plan.config import STRICT, FormerName
from soak.core.ports import Clock, Message, Outcome
from soak.core.units import SECOND_NS, Duration, duration_ns

ALERTNAME = "SoakFinding"
_PATH = "/api/v2/alerts"
_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_RETRY_STATUS = frozenset({401, 403, 404, 407, 408, 421, 425, 429})
"""Status codes of 4xx that another setting or a later try may change."""
_NOT_FOUND = 404
_MAX_DETAIL = 300
_MAX_TIMEOUT, _MIN_RESOLVE_TIMEOUT = duration_ns("60s"), duration_ns("5min")


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Config:
    url: str  # of Alertmanager, such as http://alertmanager:9093
    token: str = ""  # a reference to a bearer token, such as ${credential:soak_webhook}
    username: str = ""  # of basic authentication, in place of a token
    password: str = ""  # a reference, such as ${credential:soak_webhook}
    ca_file: str = ""  # a certificate that this machine does not trust by default
    labels: dict[str, str] = field(
        default_factory=dict
    )  # additional ones, such as {team: streaming}
    # an alert that is not posted again for this long is resolved
    resolve_timeout: Annotated[Duration, FormerName("lasts")] = 15 * 60 * SECOND_NS
    # for a whole try; connecting may take as long for each address of the host
    timeout: Duration = 10 * SECOND_NS

    def __post_init__(self) -> None:
        if "@" in self.url:  # a part of a password may be taken for a port, which errors show
            raise ValueError(f"url must hold no secret: use token or password, and {SECRET_HELP}")
        parts = _parts(self.url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ValueError("url must be such as http://alertmanager:9093")
        if parts.query or parts.fragment:
            raise ValueError("url must end with its path: a query or a fragment would not be sent")
        self._check_secrets(parts.scheme)
        for name in self.labels:
            if not _LABEL.fullmatch(name):
                raise ValueError(f"labels: {name!r} is not a label name")
        if not 0 < self.timeout <= _MAX_TIMEOUT:
            raise ValueError("timeout must be above 0s and at most 60s")
        if self.resolve_timeout < _MIN_RESOLVE_TIMEOUT:
            raise ValueError("resolve_timeout must be at least 5min: alerts are posted every 2min")

    def _check_secrets(self, scheme: str) -> None:
        if bool(self.username) != bool(self.password):
            raise ValueError("username and password belong together")
        if self.token and self.password:
            raise ValueError("token and password exclude each other: a request carries one of them")
        if ":" in self.username:  # RFC 7617, 2: the password begins behind the first colon
            raise ValueError("username must hold no colon")
        for name in ("token", "password"):
            secret = getattr(self, name)
            if secret and not is_secret_reference(secret):
                raise ValueError(f"{name} must not stand in a plan: {SECRET_HELP}")
            if secret and scheme == "http":
                raise ValueError(f"url must begin with https: a {name} is not sent unencrypted")


def build(config: Config) -> WebhookSink:
    return WebhookSink(config, SystemClock())


def preflight(config: Config) -> tuple[str, list[str]]:
    """Return what keeps alerts from being posted now, and the key that it is about; nothing is posted.

    No secret is sent, so it is not known whether the right one is set.
    """
    try:
        answer = _request(config, "GET", None, dict)
    except HttpError as error:
        return "url", [f"does not answer: {error}; start Alertmanager there or correct the address"]
    if _is_redirect(answer):
        return "url", [_redirection(answer)]
    if answer.status == _NOT_FOUND:
        return "url", [f"answers 404 for {_PATH}: correct the address or its path"]
    if answer.status // 100 == 5:  # noqa: PLR2004  # RFC 9110, 15.6: server error
        return "url", [f"answers {answer.status}: alerts would wait until it works"]
    return "url", []


def alert_of(config: Config, message: Message, now_wall_ns: int) -> dict[str, object]:
    """Return the alert of a message: labels identify the subject, annotations hold the text."""
    begin_ns = message.begin_wall_ns or message.at_wall_ns
    end_ns = (
        now_wall_ns + config.resolve_timeout if message.end_wall_ns is None else message.end_wall_ns
    )
    labels = {"alertname": ALERTNAME, "severity": "warning", **config.labels, **message.labels}
    annotations = {"summary": message.subject, "description": message.text}
    if message.runbook_url:
        annotations["runbook_url"] = message.runbook_url
    return {
        "labels": labels,
        "annotations": annotations,
        # The grid of the run lies ahead after a clock was set back; Alertmanager refuses an alert that
        # starts after its end.
        "startsAt": _moment(min(begin_ns, end_ns, now_wall_ns)),
        "endsAt": _moment(end_ns),
    }


class WebhookSink:
    wants_digests = False  # each would be an alert that fires without a reason

    def __init__(self, config: Config, clock: Clock) -> None:
        self._config = config
        self._clock = clock

    def send(self, message: Message) -> Outcome:
        """Try once."""
        return self.send_again([message])

    def send_again(self, messages: Sequence[Message]) -> Outcome:
        """Post the messages in one request."""
        now_ns = self._clock.wall_ns()
        alerts = [alert_of(self._config, message, now_ns) for message in messages]
        try:
            answer = _post(self._config, json.dumps(alerts).encode())
        except HttpError as error:
            return Outcome("retry", str(error), may_have_arrived=error.is_sent)
        return _outcome(answer)


def _parts(url: str) -> SplitResult:
    """Return the parts of a URL; raises `ValueError` that does not quote it, as it may hold a secret."""
    try:
        parts = urlsplit(url)
        _ = parts.port  # parsed only here
    except ValueError as error:
        raise ValueError(f"url cannot be read: {error}") from error
    return parts


def _post(config: Config, body: bytes) -> Answer:
    return _request(config, "POST", body, lambda: _authorization(config))


def _request(
    config: Config,
    method: str,
    body: bytes | None,
    headers: Callable[[], Mapping[str, str]],
) -> Answer:
    parts = _parts(config.url)
    client = HttpClient(
        config.url,
        access=lambda: Access(headers(), lambda: tls_context(config.ca_file)),
        timeout_seconds=config.timeout / SECOND_NS,
        max_bytes=_MAX_DETAIL,
        redirects="none",
        is_cut=True,
        name=f"{parts.scheme}://{parts.netloc}",  # without the path, which may hold a token
    )
    with closing(client):
        url = config.url.rstrip("/") + _PATH
        return client.request(method, url, body, {"Content-Type": "application/json"})


def _authorization(config: Config) -> Mapping[str, str]:
    if config.token:
        return {"Authorization": bearer(resolve_secrets({"token": config.token})["token"])}
    if config.password:
        password = resolve_secrets({"password": config.password})["password"]
        return {"Authorization": basic(config.username, password)}
    return {}


def _outcome(answer: Answer) -> Outcome:
    status = answer.status
    if _is_redirect(answer):
        return Outcome("retry", f"{status} {_redirection(answer)}")
    detail = " ".join(f"{status} {answer.body.decode(errors='replace')}".split())
    if status // 100 == 2:  # noqa: PLR2004  # RFC 9110, 15.3: successful
        return Outcome("delivered", detail)
    is_final = status // 100 == 4 and status not in _RETRY_STATUS  # noqa: PLR2004  # client error
    return Outcome("never" if is_final else "retry", detail)


def _is_redirect(answer: Answer) -> bool:
    return answer.status // 100 == 3  # noqa: PLR2004  # RFC 9110, 15.4


def _redirection(answer: Answer) -> str:
    """Say where a redirect leads, without a path, which may hold a token; an alert is not sent there."""
    there = urlsplit(answer.location)
    where = (
        f"{there.scheme}://{there.netloc.rpartition('@')[2]}" if there.netloc else "another path"
    )
    return (
        f"redirects to {where}, which is not followed: set url to the address that it redirects to"
    )


def _moment(wall_ns: int) -> str:
    """Return an instant as RFC 3339 writes it."""
    return datetime.fromtimestamp(wall_ns / SECOND_NS, UTC).isoformat(timespec="milliseconds")
