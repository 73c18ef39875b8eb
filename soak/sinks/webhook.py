"""Notifications as alerts for Prometheus Alertmanager: one POST to its API v2 a message.

A finding is one alert: its labels stay the same, so that the word that it went away resolves it there.
An Alertmanager forgets with its process, so what lasts is posted again and again, as its clients are to do.
"""

from __future__ import annotations

import http.client
import json
import re
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import field
from datetime import UTC, datetime
from urllib.parse import SplitResult, urlsplit

from pydantic.dataclasses import dataclass

from soak.clients.client_settings import SECRET_HELP, is_secret_reference, resolve_secrets
from soak.clients.deadline import Deadline
from soak.core.clock import SystemClock
from soak.core.errors import BrokerError
from soak.core.plan.config import STRICT
from soak.core.ports import Clock, Message, Outcome
from soak.core.units import SECOND_NS, Duration, duration_ns

ALERTNAME = "SoakFinding"
_PATH = "/api/v2/alerts"
_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_RETRY_STATUS = frozenset({401, 403, 404, 407, 408, 421, 425, 429})
"""Answers of the 4xx kind that another setting or another time may change."""
_MAX_DETAIL = 300
_MAX_TIMEOUT, _MIN_RESOLVE_TIMEOUT = duration_ns("60s"), duration_ns("5min")


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Config:
    url: str  # of the Alertmanager, such as http://alertmanager:9093
    token: str = ""  # where a bearer token is, such as ${credential:soak_webhook}
    ca_file: str = ""  # of a certificate that this machine does not trust by itself
    labels: dict[str, str] = field(default_factory=dict)  # more, such as {team: streaming}
    lasts: Duration = duration_ns("15min")  # an alert that is not posted again for so long ends
    timeout: Duration = 10 * SECOND_NS  # for the connection, and for the answer

    def __post_init__(self) -> None:
        if "@" in self.url:  # a part of a password may be taken for a port, which is told
            raise ValueError(f"url must hold no secret: use token, and {SECRET_HELP}")
        parts = _parts(self.url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ValueError("url must be such as http://alertmanager:9093")
        if parts.query or parts.fragment:
            raise ValueError(
                "url must end with its path: what comes after ? or # would not be sent"
            )
        if self.token and not is_secret_reference(self.token):
            raise ValueError(f"token must not stand in a plan: {SECRET_HELP}")
        if self.token and parts.scheme == "http":
            raise ValueError("url must begin with https: a token is not sent in the open")
        for name in self.labels:
            if not _LABEL.fullmatch(name):
                raise ValueError(f"labels: {name!r} is no name of a label")
        if not 0 < self.timeout <= _MAX_TIMEOUT:
            raise ValueError("timeout must be above 0s and at most 60s")
        if self.lasts < _MIN_RESOLVE_TIMEOUT:
            raise ValueError("lasts must be at least 5min: alerts are posted every 2min")


def build(config: Config) -> WebhookSink:
    return WebhookSink(config, SystemClock())


def alert_of(config: Config, message: Message, now_wall_ns: int) -> dict[str, object]:
    """Return the alert: what it is about in its labels, what was found in its annotations."""
    begin_ns = message.begin_wall_ns or message.at_wall_ns
    end_ns = now_wall_ns + config.lasts if message.end_wall_ns is None else message.end_wall_ns
    labels = {"alertname": ALERTNAME, "severity": "warning", **config.labels, **message.labels}
    return {
        "labels": labels,
        "annotations": {"summary": message.subject, "description": message.text},
        # By the run's own grid: after a clock was set back it lies ahead, and an Alertmanager refuses
        # what begins after its end.
        "startsAt": _moment(min(begin_ns, end_ns, now_wall_ns)),
        "endsAt": _moment(end_ns),
    }


class WebhookSink:
    wants_digests = False  # each would be an alert that fires, for nobody to mend

    def __init__(self, config: Config, clock: Clock) -> None:
        self._config = config
        self._clock = clock

    def send(self, message: Message) -> Outcome:
        """Try once, for a minute at most once there is a connection."""
        return self.say_again([message])

    def say_again(self, messages: Sequence[Message]) -> Outcome:
        """Post them as one; limited as `send` is."""
        now_ns = self._clock.wall_ns()
        alerts = [alert_of(self._config, message, now_ns) for message in messages]
        place = urlsplit(self._config.url)
        with Deadline() as limit:
            try:
                status, answer = _post(self._config, place, json.dumps(alerts).encode(), limit)
            except (OSError, http.client.HTTPException, BrokerError) as error:
                is_heard = isinstance(error, _UnansweredError)
                why = str(error) or type(error.__cause__ or error).__name__
                return Outcome("retry", f"{place.netloc}: {why}", is_heard=is_heard)
        return _outcome(status, answer)


def _parts(url: str) -> SplitResult:
    """Return the parts of an address; raises `ValueError` without repeating it, which may hold a secret."""
    try:
        parts = urlsplit(url)
        _ = parts.port  # which is looked at only here
    except ValueError as error:
        raise ValueError(f"url cannot be read: {error}") from error
    return parts


class _UnansweredError(OSError):
    """The alerts were on their way, and the server has not said whether it took them."""


def _post(config: Config, place: SplitResult, body: bytes, limit: Deadline) -> tuple[int, str]:
    headers = {"Content-Type": "application/json", **_authorization(config)}
    seconds = config.timeout / SECOND_NS
    host = place.hostname or ""
    if place.scheme == "https":
        context = ssl.create_default_context(cafile=config.ca_file or None)
        connection: http.client.HTTPConnection = http.client.HTTPSConnection(
            host, place.port, timeout=seconds, context=context
        )
    else:
        connection = http.client.HTTPConnection(host, place.port, timeout=seconds)
    try:
        connection.connect()
        limit.covers(connection.sock)
        try:
            connection.request("POST", place.path.rstrip("/") + _PATH, body, headers)
            answer = connection.getresponse()
            return answer.status, answer.read(_MAX_DETAIL).decode(errors="replace")
        except (OSError, http.client.HTTPException) as error:
            raise _UnansweredError(str(error)) from error
    finally:
        connection.close()


def _authorization(config: Config) -> Mapping[str, str]:
    if not config.token:
        return {}
    token = resolve_secrets({"token": config.token})["token"]
    if not (token.isascii() and token.isprintable()):  # the client's own error would print it
        raise BrokerError("token: it holds what no header can")
    return {"Authorization": f"Bearer {token}"}


def _outcome(status: int, answer: str) -> Outcome:
    detail = " ".join(f"{status} {answer}".split())
    if status // 100 == 2:  # noqa: PLR2004  # RFC 9110, 15.3: successful
        return Outcome("delivered", detail)
    is_final = status // 100 == 4 and status not in _RETRY_STATUS  # noqa: PLR2004  # client error
    return Outcome("never" if is_final else "retry", detail)


def _moment(wall_ns: int) -> str:
    """Return an instant as RFC 3339 writes it."""
    return datetime.fromtimestamp(wall_ns / SECOND_NS, UTC).isoformat(timespec="milliseconds")
