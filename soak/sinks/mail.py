"""Notifications by mail: plain text and HTML with an inline chart, over SMTP with STARTTLS or TLS."""

from __future__ import annotations

import json
import re
import smtplib
import socket
import ssl
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.message import EmailMessage
from email.policy import EmailPolicy
from email.utils import format_datetime
from html import escape
from typing import Any, Literal
from urllib.parse import quote

from pydantic.dataclasses import dataclass as config_dataclass

from soak.clients.client_settings import SECRET_HELP, is_secret_reference, resolve_secrets
from soak.clients.deadline import DEADLINE_SECONDS, Deadline
from soak.core.errors import BrokerError, PlanError
from soak.core.plan.config import STRICT
from soak.core.ports import Message, Outcome
from soak.core.units import SECOND_NS, Duration, duration_ns

PERMANENT = 500  # RFC 5321, 4.2.1: 5yz is a permanent negative reply
Answers = Mapping[str, tuple[int, str]]  # by recipient: what a server said to it


@dataclass(slots=True)
class Recipients:
    to: Sequence[str]
    done: list[str] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)  # for good, and why

    @property
    def left(self) -> list[str]:
        return [one for one in self.to if one not in self.done and one not in self.refused]

    def judge(self, answers: Answers) -> Outcome:
        """Take in a try of all who were left; those that `answers` does not name have got it."""
        taken = [one for one in self.left if one not in answers]
        self.done += taken
        said = {one: f"{code} {text}" for one, (code, text) in answers.items()}
        self.refused |= {one: said[one] for one, (code, _) in answers.items() if code >= PERMANENT}
        detail = _summary(self.refused | said, len(self.to))
        if self.left:
            return Outcome("retry", detail, self.to_text(), may_have_arrived=bool(taken))
        return Outcome("delivered" if self.done else "never", detail)

    def to_text(self) -> str:
        """Return what `read` understands; nothing when there is nothing to tell."""
        if not self.done and not self.refused:
            return ""
        return json.dumps({"done": self.done, "refused": self.refused})


def read_recipients(to: Sequence[str], text: str) -> Recipients:
    """Return the recipients as an earlier try left them."""
    return Recipients(to, **json.loads(text)) if text else Recipients(to)


def _summary(said: Mapping[str, str], recipients: int) -> str:
    """Return what was said to whom; without the whom where all were told the same."""
    if len(said) == recipients and len(set(said.values())) == 1:
        return next(iter(said.values()))
    return "; ".join(f"{one}: {why}" for one, why in said.items())


# --- Findings by mail: plain text for a terminal at night, the same as HTML, with the chart in its place.
# The Message-ID is made from the message's key, so a mail that a crash makes us send twice is recognised
# as one, and the sequel appears below the mail that it belongs to.

_ADDRESS = re.compile(r"[^@\s<>,;\x00-\x1f]+@[^@\s<>,;\x00-\x1f]+")
_AUTHENTICATION_ERRORS = frozenset(
    {530, 534, 535, 538}
)  # RFC 4954, 6: who we are, not what we send
_CLOSING = 421  # RFC 5321, 3.8: the server ends the conversation
_IDS = frozenset({"message-id", "in-reply-to", "references", "content-id"})
_MAX_TIMEOUT = duration_ns("60s")
CHART_PIXELS = 640
"""How wide the chart is shown where there is room; it has more of them, for a dense screen."""
_TYPE = "font-family:monospace;font-size:12px;white-space:pre-wrap;overflow-wrap:anywhere;max-width:80ch"
_CONTINUED = re.compile(r"(?<=\S)\n(?: {4}| {10})(?=\S)")  # the indents of items and facts


@config_dataclass(frozen=True, kw_only=True, config=STRICT)
class Config:
    to: tuple[str, ...]
    sender: str = "soakd@localhost"
    host: str = ""  # empty: the lab's mail server
    port: int = 25
    security: Literal["none", "starttls", "tls"] = "none"
    ca_file: str = ""  # of a certificate that this machine does not trust by itself
    username: str = ""  # empty: no authentication
    password: str = ""  # where it is, such as ${credential:soak_smtp}
    timeout: Duration = 10 * SECOND_NS  # for each answer of the server

    def __post_init__(self) -> None:
        if not self.to:
            raise ValueError("to must name at least one address")
        for address in (*self.to, self.sender):
            if not _ADDRESS.fullmatch(address):
                raise ValueError(f"{address!r} is not a mail address such as oncall@example.org")
        if not 0 < self.port <= 65_535:  # noqa: PLR2004  # a TCP port
            raise ValueError(f"port must lie between 1 and 65535, not {self.port}")
        if not 0 < self.timeout <= _MAX_TIMEOUT:
            raise ValueError("timeout must be above 0s and at most 60s")
        if bool(self.username) != bool(self.password):
            raise ValueError("username and password belong together")
        if self.password and not is_secret_reference(self.password):
            raise ValueError(f"password must not stand in a plan: {SECRET_HELP}")
        if self.username and self.security == "none":
            raise ValueError("security must be starttls or tls: a password is not sent in the open")


def build(config: Config) -> MailSink:
    """Return the sink.

    Raises:
        PlanError: no mail server is named and the lab has not filled one in.
    """
    if not config.host:
        raise PlanError("sinks.mail.host: names no mail server, and this run has no lab mailbox")
    return MailSink(config)


class _WholeIds(EmailPolicy):
    """Leaves an identifier in one piece: the policy's own way with a long one is to encode it, as text."""

    def fold(self, name: str, value: str) -> str:
        if name.lower() in _IDS:
            return f"{name}: {value}{self.linesep}"
        folded: str = super().fold(name, value)
        return folded

    def fold_binary(self, name: str, value: str) -> bytes:
        if name.lower() in _IDS:
            return self.fold(name, value).encode("ascii")
        return super().fold_binary(name, value)


def compose(config: Config, message: Message) -> EmailMessage:
    """Return the mail for a message: the same Message-ID and date whenever it is tried again."""
    mail = EmailMessage(_WholeIds())
    mail["From"] = f"soakd <{config.sender}>"
    mail["To"] = ", ".join(config.to)
    mail["Subject"] = " ".join(message.subject.split())
    mail["Date"] = format_datetime(datetime.fromtimestamp(message.at_wall_ns / SECOND_NS, UTC))
    mail["Message-ID"] = _message_id(config, message.key)
    if message.follows:
        mail["In-Reply-To"] = mail["References"] = _message_id(config, message.follows)
    mail["Auto-Submitted"] = "auto-generated"  # RFC 3834: no vacation replies
    mail.set_content(message.text, cte="quoted-printable")
    chart = _message_id(config, f"{message.key}.chart")
    has_chart = message.chart_png is not None
    mail.add_alternative(
        _html(message.text, chart if has_chart else ""), "html", cte="quoted-printable"
    )
    if message.chart_png is not None:
        _, page = mail.iter_parts()
        page.add_related(
            message.chart_png,
            "image",
            "png",
            cid=chart,
            filename="latency.png",
            disposition="inline",
        )
    return mail


def _html(text: str, chart: str) -> str:
    """Return the text in a type in which columns and bars line up; on a phone lines break, none is cut.

    What was broken at the width of a terminal is whole again, else a phone would break it twice.
    """
    whole = _CONTINUED.sub(" ", text)
    picture = (
        f'<p><img src="cid:{chart[1:-1]}" alt="the chart" width="{CHART_PIXELS}"'
        ' style="max-width:100%;height:auto"></p>\n'
        if chart
        else ""
    )
    return (
        '<!DOCTYPE html>\n<html><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width"></head><body>\n'
        f'{picture}<pre style="{_TYPE}">{escape(whole)}</pre>\n</body></html>\n'
    )


class MailSink:
    def __init__(self, config: Config, limit_seconds: float = DEADLINE_SECONDS) -> None:
        self._config = config
        self._limit_seconds = limit_seconds

    def send(self, message: Message) -> Outcome:
        """Try once with those who have not got it, for a minute at most once there is a connection."""
        recipients = read_recipients(self._config.to, message.progress)
        if not recipients.left:  # who had not got it is no recipient any more
            return recipients.judge({})
        mail = compose(self._config, message)
        may_have_arrived = False
        with Deadline(self._limit_seconds) as limit:
            try:
                answers = self._answers(mail, recipients.left, limit)
            except smtplib.SMTPNotSupportedError as error:
                return Outcome("never", str(error))
            except smtplib.SMTPResponseException as error:
                # said to our greeting or our name, not to this mail
                put_off = f"{error.smtp_code} {_text(error.smtp_error)}"
            except (smtplib.SMTPException, OSError, BrokerError) as error:
                why = f"no end after {limit.seconds:g} s" if limit.is_over else str(error)
                place = f"{self._config.host}:{self._config.port}"
                put_off = f"{place}: {why or type(error.__cause__ or error).__name__}"
                may_have_arrived = isinstance(error, _UnansweredError)
            else:
                return recipients.judge(answers)
        return Outcome("retry", put_off, may_have_arrived=may_have_arrived)

    def _answers(self, mail: EmailMessage, to: list[str], limit: Deadline) -> Answers:
        """Return what the server said to those whom it did not take the mail for."""
        server = _connect(self._config, limit)
        try:
            answers = server.send_message(mail, self._config.sender, to)
        except smtplib.SMTPRecipientsRefused as error:
            # nobody has got it; after 421 some were not even asked, or were and are not named
            answers = dict.fromkeys(to, (_CLOSING, b"closed before the mail")) | error.recipients
        except smtplib.SMTPResponseException as error:
            if error.smtp_code in _AUTHENTICATION_ERRORS:
                raise
            answers = dict.fromkeys(to, (error.smtp_code, _bytes(error.smtp_error)))
        except OSError as error:
            if server.is_giving:
                raise _UnansweredError(str(error)) from error
            raise
        finally:
            # The message is settled by now: what a server does at QUIT must not make us repeat it.
            with suppress(smtplib.SMTPException, OSError):
                server.quit()
            server.close()
        return {one: (code, _text(text)) for one, (code, text) in answers.items()}


class _UnansweredError(OSError):
    """The mail was on its way, and the server has not said whether it took it."""


class _Limited(smtplib.SMTP):
    is_giving = False

    def __init__(self, limit: Deadline, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401  # those of the library
        self._limit = limit
        super().__init__(*args, **kwargs)

    def getreply(self) -> tuple[int, bytes]:
        self._limit.covers(self.sock)
        return super().getreply()

    def data(self, msg: Any) -> tuple[int, bytes]:  # noqa: ANN401  # as above
        self.is_giving = True
        return super().data(msg)


class _LimitedTls(_Limited, smtplib.SMTP_SSL):
    """The same, encrypted from the first byte."""


def _connect(config: Config, limit: Deadline) -> _Limited:
    """Return a connection that may send: encrypted and authenticated where the plan says so."""
    # The own name is given because the default looks it up in DNS, which may hang for long.
    name, seconds = socket.gethostname(), config.timeout / SECOND_NS
    own = name if name.isascii() else "localhost"  # SMTP has letters for no other
    if config.security == "tls":
        context = _tls_context(config)
        server: _Limited = _LimitedTls(
            limit, config.host, config.port, own, timeout=seconds, context=context
        )
    else:
        server = _Limited(limit, config.host, config.port, own, seconds)
    try:
        if config.security == "starttls":
            _encrypt(server, _tls_context(config))
        if config.username:
            _log_in(server, config)
        server.ehlo_or_helo_if_needed()  # later its answer would pass for one to the mail
    except BaseException:
        server.close()
        raise
    return server


def _encrypt(server: smtplib.SMTP, context: ssl.SSLContext) -> None:
    """Go on encrypted, or not at all: a server that offers it no more may be somebody else's."""
    server.ehlo_or_helo_if_needed()
    if not server.has_extn("starttls"):
        raise smtplib.SMTPException("the server offers no STARTTLS")
    server.starttls(context=context)


def _log_in(server: smtplib.SMTP, config: Config) -> None:
    server.ehlo_or_helo_if_needed()
    if not server.has_extn("auth"):
        raise smtplib.SMTPException("the server offers no authentication")
    password = resolve_secrets({"password": config.password})["password"]
    if not password.isascii():
        # the library knows no other, and its error would say where it is not
        raise BrokerError("password: it holds more than ASCII")
    server.login(config.username, password)


def _tls_context(config: Config) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=config.ca_file or None)


def _message_id(config: Config, key: str) -> str:
    domain = config.sender.rpartition("@")[2]
    return f"<{quote(key, safe='')}@{quote(domain, safe='.-[]:')}>"


def _bytes(answer: bytes | str) -> bytes:
    return answer.encode() if isinstance(answer, str) else answer


def _text(answer: bytes | str) -> str:
    return answer.decode(errors="replace") if isinstance(answer, bytes) else answer
