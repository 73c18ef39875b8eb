"""Findings by mail: plain text for a terminal at night, with the chart as an inline picture.

The Message-ID is made from the message's key, so a mail that a crash makes us send twice is recognised
as one, and the sequel appears below the mail that it belongs to.
"""

from __future__ import annotations

import re
import smtplib
import socket
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from email.message import EmailMessage
from email.utils import format_datetime
from urllib.parse import quote

from pydantic.dataclasses import dataclass

from soak.core.errors import PlanError
from soak.core.plan_base import STRICT
from soak.core.ports import Message, Outcome
from soak.core.units import SECOND_NS, Duration

_ADDRESS = re.compile(r"[^@\s<>,;\x00-\x1f]+@[^@\s<>,;\x00-\x1f]+")
_PERMANENT = 500  # RFC 5321, 4.2.1: 5yz is a permanent negative reply
_MOST_PARTLY_SENT = 256


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Config:
    to: tuple[str, ...]
    sender: str = "soakd@localhost"
    host: str = ""  # empty: the lab's mail server
    port: int = 25
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
    if message.chart_png is not None:
        mail.add_attachment(
            message.chart_png, "image", "png", filename="latency.png", disposition="inline"
        )
    return mail


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
        except smtplib.SMTPResponseException as error:
            return _refused(error.smtp_code, _text(error.smtp_error))
        except smtplib.SMTPNotSupportedError as error:
            return Outcome("never", str(error))
        except (smtplib.SMTPException, OSError) as error:
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
    # The own name is given because the default looks it up in DNS, which may hang for long.
    return smtplib.SMTP(config.host, config.port, socket.gethostname(), config.timeout / SECOND_NS)


def _refused(code: int, text: str) -> Outcome:
    return Outcome("never" if code >= _PERMANENT else "retry", f"{code} {text}")


def _message_id(config: Config, key: str) -> str:
    return f"<{quote(key, safe='')}@{config.sender.rpartition('@')[2]}>"


def _text(answer: bytes | str) -> str:
    return answer.decode(errors="replace") if isinstance(answer, bytes) else answer
