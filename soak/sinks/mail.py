"""Findings by mail: plain text for a terminal at night, the same as HTML, with the chart in its place.

The Message-ID is made from the message's key, so a mail that a crash makes us send twice is recognised
as one, and the sequel appears below the mail that it belongs to.
"""

from __future__ import annotations

import re
import smtplib
import socket
import ssl
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from email.message import EmailMessage
from email.utils import format_datetime
from html import escape
from typing import Literal
from urllib.parse import quote

from pydantic.dataclasses import dataclass

from soak.clients.secret import HOW, is_reference, resolved
from soak.core.errors import BrokerError, PlanError
from soak.core.plan_base import STRICT
from soak.core.ports import Message, Outcome
from soak.core.units import SECOND_NS, Duration

_ADDRESS = re.compile(r"[^@\s<>,;\x00-\x1f]+@[^@\s<>,;\x00-\x1f]+")
_PERMANENT = 500  # RFC 5321, 4.2.1: 5yz is a permanent negative reply
_OURS_TO_MEND = frozenset({530, 534, 535, 538})  # RFC 4954, 6: who we are, not what we send
_MOST_PARTLY_SENT = 256


@dataclass(frozen=True, kw_only=True, config=STRICT)
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
        if self.timeout <= 0:
            raise ValueError("timeout must be above 0s")
        if bool(self.username) != bool(self.password):
            raise ValueError("username and password belong together")
        if self.password and not is_reference(self.password):
            raise ValueError(f"password must not stand in a plan: {HOW}")
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


def compose(config: Config, message: Message) -> EmailMessage:
    """Return the mail for a message: the same Message-ID and date whenever it is tried again."""
    mail = EmailMessage()
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
    """Return the text as it stands, in a type in which its columns and bars line up; nothing to fetch."""
    picture = f'<p><img src="cid:{chart[1:-1]}" alt="the chart" width="720"></p>\n' if chart else ""
    return (
        '<!DOCTYPE html>\n<html><head><meta charset="utf-8"></head><body>\n'
        f'{picture}<pre style="font-family:monospace">{escape(text)}</pre>\n</body></html>\n'
    )


class MailSink:
    """Remembers who has got a message that only some of its recipients got, for the next try."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._left: OrderedDict[str, tuple[str, ...]] = OrderedDict()

    def send(self, message: Message) -> Outcome:
        """Try once, within a few times the time-out."""
        to = self._left.get(message.key, self._config.to)
        try:
            refused = self._deliver(compose(self._config, message), to)
        except smtplib.SMTPRecipientsRefused as error:
            refused = error.recipients
        except smtplib.SMTPConnectError as error:  # a server that takes no mail now, not this one
            return Outcome("retry", f"{error.smtp_code} {_text(error.smtp_error)}")
        except smtplib.SMTPResponseException as error:
            return _refused(error.smtp_code, _text(error.smtp_error))
        except smtplib.SMTPNotSupportedError as error:
            return Outcome("never", str(error))
        except (smtplib.SMTPException, OSError, BrokerError) as error:
            place = f"{self._config.host}:{self._config.port}"
            return Outcome("retry", f"{place}: {error or type(error).__name__}")
        return self._judge(message.key, to, refused)

    def _deliver(self, mail: EmailMessage, to: tuple[str, ...]) -> Mapping[str, tuple[int, bytes]]:
        server = _connect(self._config)
        try:
            return server.send_message(mail, self._config.sender, to)
        finally:
            # The message is settled by now: what a server does at QUIT must not make us repeat it.
            with suppress(smtplib.SMTPException, OSError):
                server.quit()
            server.close()

    def _judge(
        self, key: str, to: tuple[str, ...], refused: Mapping[str, tuple[int, bytes]]
    ) -> Outcome:
        detail = "; ".join(
            f"{address}: {code} {_text(text)}" for address, (code, text) in refused.items()
        )
        later = tuple(address for address, (code, _) in refused.items() if code < _PERMANENT)
        if later:
            self._left[key] = later
            if len(self._left) > _MOST_PARTLY_SENT:
                self._left.popitem(last=False)
            return Outcome("retry", detail)
        self._left.pop(key, None)
        return Outcome("never" if len(refused) == len(to) else "delivered", detail)


def _connect(config: Config) -> smtplib.SMTP:
    """Return a connection that may send: encrypted and authenticated where the plan says so."""
    # The own name is given because the default looks it up in DNS, which may hang for long.
    own, seconds = socket.gethostname(), config.timeout / SECOND_NS
    if config.security == "tls":
        context = _trust(config)
        server: smtplib.SMTP = smtplib.SMTP_SSL(
            config.host, config.port, own, timeout=seconds, context=context
        )
    else:
        server = smtplib.SMTP(config.host, config.port, own, seconds)
    try:
        if config.security == "starttls":
            _encrypt(server, _trust(config))
        if config.username:
            _log_in(server, config)
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
    server.login(config.username, resolved({"password": config.password})["password"])


def _trust(config: Config) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=config.ca_file or None)


def _refused(code: int, text: str) -> Outcome:
    is_final = code >= _PERMANENT and code not in _OURS_TO_MEND
    return Outcome("never" if is_final else "retry", f"{code} {text}")


def _message_id(config: Config, key: str) -> str:
    return f"<{quote(key, safe='')}@{config.sender.rpartition('@')[2]}>"


def _text(answer: bytes | str) -> str:
    return answer.decode(errors="replace") if isinstance(answer, bytes) else answer
