"""Notifications by mail: plain text and HTML with an inline chart, over SMTP with STARTTLS or TLS.

The Message-ID is made from the key of the message: a mail that is sent twice after a crash has the same one,
and a follow-up appears below the mail that it refers to. Domains with letters beyond ASCII are sent as IDNA
has them. An address with such letters before the @ needs a server with SMTPUTF8 (RFC 6531) and gets a mail
of its own, so that the other recipients do not depend on it.
"""

from __future__ import annotations

import json
import re
import smtplib
import socket
import ssl
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from email.message import EmailMessage
from email.policy import EmailPolicy
from email.utils import format_datetime
from html import escape
from typing import Any, Literal
from urllib.parse import quote

import idna
from pydantic.dataclasses import dataclass as config_dataclass

from soak.clients.client_settings import SECRET_HELP, is_secret_reference, resolve_secrets
from soak.clients.deadline import DEADLINE_SECONDS, Deadline, connect_within
from soak.core import json_text
from soak.core.errors import BrokerError, PlanError
from soak.core.plan.config import STRICT
from soak.core.ports import CHART_URL, Message, Outcome
from soak.core.units import SECOND_NS, Duration, duration_ns
from soak.core.wording import shortened

_PERMANENT = 500  # RFC 5321, 4.2.1: 5yz is a permanent negative reply
Replies = Mapping[str, tuple[int, str]]
"""By recipient: the code and the text of the server's reply."""


@dataclass(slots=True)
class Recipients:
    """The recipients of one mail, over several tries."""

    to: Sequence[str]
    done: list[str] = field(default_factory=list)
    refused: dict[str, str] = field(
        default_factory=dict
    )  # the reply to those that were refused for good

    @property
    def remaining(self) -> list[str]:
        return [one for one in self.to if one not in self.done and one not in self.refused]

    def add_try(self, replies: Replies) -> Outcome:
        """Take in a try with the remaining recipients: those without a reply have got the mail."""
        accepted = [one for one in self.remaining if one not in replies]
        self.done += accepted
        texts = {one: f"{code} {text}" for one, (code, text) in replies.items()}
        permanent = [one for one, (code, _) in replies.items() if code >= _PERMANENT]
        self.refused |= {one: texts[one] for one in permanent}
        detail = _summary(self.refused | texts, len(self.to))
        if self.remaining:
            return Outcome("retry", detail, self.to_text(), may_have_arrived=bool(accepted))
        return Outcome("delivered" if self.done else "never", detail)

    def to_text(self) -> str:
        """Return a text for `read_recipients`; empty before the first result."""
        if not self.done and not self.refused:
            return ""
        return json.dumps({"done": self.done, "refused": self.refused})


def read_recipients(to: Sequence[str], text: str) -> Recipients:
    """Return the recipients after earlier tries, from the text that `to_text` made."""
    return Recipients(to, **json_text.loads(text)) if text else Recipients(to)


def _summary(replies: Mapping[str, str], recipients: int) -> str:
    """Return the reply to each recipient, or the one reply that all of them got."""
    if len(replies) == recipients and len(set(replies.values())) == 1:
        return next(iter(replies.values()))
    return "; ".join(f"{one}: {text}" for one, text in replies.items())


_ADDRESS = re.compile(r"[^@\s<>,;\x00-\x1f]+@[^@\s<>,;\x00-\x1f]+")
_AUTHENTICATION_ERRORS = frozenset({530, 534, 535, 538})  # RFC 4954, 6
_CLOSING = 421  # RFC 5321, 3.8: the server closes the connection
_NOT_ASKED = _CLOSING, "the server closed the connection before the mail"
_MAX_CONNECTIONS = 4  # in one try, where the server closes them at single recipients
_NO_SMTPUTF8 = 553  # RFC 6531, 3.5: a mailbox name that is not ASCII, without the extension
_ID_HEADERS = frozenset({"message-id", "in-reply-to", "references", "content-id"})
_LINE_LENGTH = 78  # RFC 5322, 2.1.1: a line should have no more characters
_ENCODED_WORD = re.compile(
    r"=\?[^?\s]+\?[bBqQ]\?"
)  # RFC 2047, 2: what looks like one must be encoded
_MAX_WORD_LENGTH = 900  # of these a line must not have more than 998
_MAX_REPLY_LINES = 64  # of EHLO most servers have some ten
_MAX_REPLY_LINE_BYTES = 4096  # RFC 5321, 4.5.3.1.5: 512
_MAX_REPLY_TEXT = 300  # of it in a result
_MAX_TIMEOUT = duration_ns("60s")
_STYLE = "font-family:monospace;font-size:12px;white-space:pre-wrap;overflow-wrap:anywhere;max-width:80ch"


@config_dataclass(frozen=True, kw_only=True, config=STRICT)
class Config:
    to: tuple[str, ...]
    sender: str = "soakd@localhost"
    host: str = ""  # empty: the lab's mail server
    port: int = 25
    security: Literal["none", "starttls", "tls"] = "none"
    ca_file: str = ""  # a certificate that this machine does not trust by default
    username: str = ""  # empty: no authentication
    password: str = ""  # a reference, such as ${credential:soak_smtp}
    timeout: Duration = 10 * SECOND_NS  # for each reply of the server

    def __post_init__(self) -> None:
        if not self.to:
            raise ValueError("to must name at least one address")
        for address in (*self.to, self.sender):
            if not _ADDRESS.fullmatch(address):
                raise ValueError(f"{address!r} is not a mail address such as oncall@example.org")
            _sent_address(address)
        if not 0 < self.port <= 65_535:  # noqa: PLR2004  # a TCP port
            raise ValueError(f"port must lie between 1 and 65535, not {self.port}")
        if not 0 < self.timeout <= _MAX_TIMEOUT:
            raise ValueError("timeout must be above 0s and at most 60s")
        if bool(self.username) != bool(self.password):
            raise ValueError("username and password belong together")
        if self.password and not is_secret_reference(self.password):
            raise ValueError(f"password must not stand in a plan: {SECRET_HELP}")
        if self.username and self.security == "none":
            raise ValueError("security must be starttls or tls: a password is not sent unencrypted")


def build(config: Config) -> MailSink:
    """Return the sink.

    Raises:
        PlanError: the plan names no mail server, and the run has no lab to provide one.
    """
    if not config.host:
        raise PlanError("sinks.mail.host: names no mail server, and this run has no lab mailbox")
    return MailSink(config)


def _sent_address(address: str) -> str:
    """Return an address as it is sent: its domain in ASCII (RFC 5891).

    Raises:
        ValueError: the domain is none.
    """
    name, _, domain = address.rpartition("@")
    if domain.isascii():
        return address
    try:
        return f"{name}@{idna.encode(domain, uts46=True).decode('ascii')}"
    except idna.IDNAError as error:
        raise ValueError(f"{address!r} has no valid domain: {error}") from error


def preflight(config: Config) -> tuple[str, list[str]]:
    """Return what keeps mail from being sent now, and the key that it is about; nothing is sent."""
    if not config.host:  # the lab's
        return "host", []
    server = f"{config.host}:{config.port}"
    try:
        with Deadline(config.timeout / SECOND_NS) as deadline:
            client = _connect(replace(config, username="", password=""), deadline)
            has_utf8 = client.has_extn("smtputf8")
            client.close()
    except (smtplib.SMTPException, OSError) as error:
        why = str(error) or type(error).__name__
        return "host", [
            f"the mail server {server} does not answer: {why}; start it or correct host and port"
        ]
    needs_utf8 = [one for one in config.to if not _sent_address(one).isascii()]
    if needs_utf8 and not has_utf8:
        named = ", ".join(needs_utf8)
        return "to", [
            f"{server} cannot send to {named} (no SMTPUTF8): use an address of plain letters"
        ]
    return "host", []


class _MailPolicy(EmailPolicy):
    """Never folds an identifier, and a subject only after a word.

    The default policy encodes a long identifier as text. A subject that fits a line, but not after its name,
    it puts on the second one: some mail clients show the first, which is empty.
    """

    def fold(self, name: str, value: str) -> str:
        if name.lower() in _ID_HEADERS:
            return f"{name}: {value}{self.linesep}"
        if name.lower() == "subject" and self._is_plain(value):
            return "".join(f"{line}{self.linesep}" for line in _folded(f"{name}: ", value))
        folded: str = super().fold(name, value)
        return folded

    def fold_binary(self, name: str, value: str) -> bytes:
        if name.lower() in _ID_HEADERS:
            return self.fold(name, value).encode("ascii")
        if name.lower() == "subject" and self._is_plain(value):
            return self.fold(name, value).encode("utf-8")
        return super().fold_binary(name, value)

    def _is_plain(self, value: str) -> bool:
        """Return whether a text can be sent without being encoded."""
        is_short = all(len(word) <= _MAX_WORD_LENGTH for word in value.split())
        is_readable = self.utf8 or value.isascii()
        return is_short and is_readable and not _ENCODED_WORD.search(value)


def _folded(line: str, value: str) -> Iterator[str]:
    """Give the lines of a header; each after the first begins with a blank."""
    first, *words = value.split() or [""]
    line += first
    for word in words:
        if len(line) + 1 + len(word) > _LINE_LENGTH:
            yield line
            line = ""
        line += f" {word}"
    yield line


def compose(config: Config, message: Message, to: Sequence[str] = ()) -> EmailMessage:
    """Return the mail of a message to the plan's recipients, or to some of them.

    Every try has the same Message-ID and date.
    """
    mail = EmailMessage(_MailPolicy())
    mail["From"] = f"soakd <{_sent_address(config.sender)}>"
    mail["To"] = ", ".join(_sent_address(one) for one in to or config.to)
    mail["Subject"] = " ".join(message.subject.split())
    mail["Date"] = format_datetime(datetime.fromtimestamp(message.at_wall_ns / SECOND_NS, UTC))
    mail["Message-ID"] = _message_id(config, message.key)
    if message.follows:
        mail["In-Reply-To"] = mail["References"] = _message_id(config, message.follows)
    mail["Auto-Submitted"] = "auto-generated"  # RFC 3834: no vacation replies
    mail.set_content(message.text, cte="quoted-printable")
    chart = _message_id(config, f"{message.key}.chart")
    page = message.html or _page(message.text)
    mail.add_alternative(
        page.replace(CHART_URL, f"cid:{chart[1:-1]}"), "html", cte="quoted-printable"
    )
    if message.chart_png is not None:
        _, html = mail.iter_parts()
        html.add_related(
            message.chart_png,
            "image",
            "png",
            cid=chart,
            filename="latency.png",
            disposition="inline",
        )
    return mail


def _page(text: str) -> str:
    """Return a text in a fixed-width font, in which columns line up; a narrow screen wraps lines."""
    return (
        '<!DOCTYPE html>\n<html><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width"></head><body>\n'
        f'<pre style="{_STYLE}">{escape(text)}</pre>\n</body></html>\n'
    )


class MailSink:
    def __init__(self, config: Config, deadline_seconds: float = DEADLINE_SECONDS) -> None:
        self._config = config
        self._deadline_seconds = deadline_seconds

    def send(self, message: Message) -> Outcome:
        """Try once with the remaining recipients, for a minute at most once there is a connection."""
        recipients = read_recipients(self._config.to, message.progress)
        if not recipients.remaining:  # the others have left the plan
            return recipients.add_try({})
        may_have_arrived = False
        with Deadline(self._deadline_seconds) as deadline:
            try:
                replies = self._send(message, recipients.remaining, deadline)
            except smtplib.SMTPResponseException as error:
                # a reply to our greeting or login, not to this mail
                problem = f"{error.smtp_code} {_text(error.smtp_error)}"
            except (smtplib.SMTPException, OSError, BrokerError) as error:
                why = (
                    f"not finished after {deadline.seconds:g} s" if deadline.is_over else str(error)
                )
                server = f"{self._config.host}:{self._config.port}"
                problem = f"{server}: {why or type(error.__cause__ or error).__name__}"
                may_have_arrived = isinstance(error, _NoReplyError)
            else:
                return recipients.add_try(replies)
        return Outcome("retry", problem, may_have_arrived=may_have_arrived)

    def _send(self, message: Message, to: list[str], deadline: Deadline) -> Replies:
        """Send a message and return the replies to the recipients for whom it was not accepted.

        Those that were not asked for, as the server closed the connection at another one, get another
        connection.
        """
        replies: dict[str, tuple[int, str]] = {}
        waiting = to
        for _ in range(_MAX_CONNECTIONS):
            try:
                server = _connect(self._config, deadline)
            except (smtplib.SMTPException, OSError, BrokerError):
                if not replies:
                    raise
                break  # the replies so far stand
            found = self._send_over(server, message, waiting)
            replies = {one: reply for one, reply in replies.items() if one not in waiting} | found
            waiting = [one for one in waiting if found.get(one) == _NOT_ASKED]
            if not waiting:
                break
        return replies

    def _send_over(
        self, server: _SmtpClient, message: Message, to: list[str]
    ) -> dict[str, tuple[int, str]]:
        """Do the same over one connection, and close it.

        Recipients whose address needs SMTPUTF8 get a mail of their own, after the others.
        """
        needs_utf8 = [one for one in to if not self._is_ascii(one)]
        others = [one for one in to if one not in needs_utf8]
        replies: dict[str, tuple[int, str]] = {}
        try:
            if others:
                replies |= self._send_mail(
                    server, message, others, [one for one in self._config.to if self._is_ascii(one)]
                )
            if needs_utf8 and not server.has_extn("smtputf8"):
                why = "the server takes no letters beyond ASCII before the @ (no SMTPUTF8)"
                replies |= dict.fromkeys(needs_utf8, (_NO_SMTPUTF8, why))
            elif needs_utf8:
                try:
                    replies |= self._send_mail(server, message, needs_utf8, needs_utf8)
                except (smtplib.SMTPException, OSError) as error:
                    if not others:
                        raise
                    replies |= dict.fromkeys(needs_utf8, (_CLOSING, str(error)))
        finally:
            # The mails are settled by now: an error at QUIT must not cause a repeat.
            with suppress(smtplib.SMTPException, OSError):
                server.quit()
            server.close()
        return replies

    def _is_ascii(self, address: str) -> bool:
        return (_sent_address(address) + _sent_address(self._config.sender)).isascii()

    def _send_mail(
        self, server: _SmtpClient, message: Message, to: Sequence[str], named: Sequence[str]
    ) -> Replies:
        """Send one mail, in which the recipients `named` are listed."""
        addresses = {_sent_address(one): one for one in to}
        mail = compose(self._config, message, named)
        try:
            replies = server.send_message(mail, _sent_address(self._config.sender), [*addresses])
        except smtplib.SMTPRecipientsRefused as error:
            # after a 421 the library does not name the recipients that it had not sent yet
            code, why = _NOT_ASKED
            replies = dict.fromkeys(addresses, (code, why.encode())) | error.recipients
        except smtplib.SMTPResponseException as error:
            if error.smtp_code in _AUTHENTICATION_ERRORS:
                raise
            replies = dict.fromkeys(addresses, (error.smtp_code, _bytes(error.smtp_error)))
        except OSError as error:
            if server.is_sending_data:
                raise _NoReplyError(str(error)) from error
            raise
        return {addresses[one]: (code, _text(text)) for one, (code, text) in replies.items()}


class _NoReplyError(OSError):
    """The connection broke after the mail was sent and before the server replied: it may have accepted it."""


class _SmtpClient(smtplib.SMTP):
    """A client whose conversation, connecting included, is under one deadline, and whose replies are short.

    The library keeps all lines of a reply, and gives each address of a name the full time.
    """

    is_sending_data = False

    def __init__(self, deadline: Deadline, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401  # those of the library
        self._deadline = deadline
        super().__init__(*args, **kwargs)

    def getreply(self) -> tuple[int, bytes]:
        """Return the code and the text of a reply.

        Raises:
            smtplib.SMTPServerDisconnected: there is none, or one that is longer than any server's.
        """
        self._deadline.covers(self.sock)
        if self.file is None and self.sock is not None:
            self.file = self.sock.makefile("rb")
        texts: list[bytes] = []
        for _ in range(_MAX_REPLY_LINES):
            line = self._reply_line()
            texts.append(line[4:].strip(b" \t\r\n"))
            if not line[:3].isdigit():
                return -1, b"\n".join(texts)
            if line[3:4] != b"-":
                return int(line[:3]), b"\n".join(texts)
        self.close()
        raise smtplib.SMTPServerDisconnected(f"a reply of more than {_MAX_REPLY_LINES} lines")

    def _reply_line(self) -> bytes:
        try:
            line = self.file.readline(_MAX_REPLY_LINE_BYTES + 1) if self.file is not None else b""
        except OSError as error:
            self.close()
            raise smtplib.SMTPServerDisconnected(f"the connection broke: {error}") from error
        if not line.endswith(b"\n"):  # also one that was cut after its code
            self.close()
            is_long = len(line) > _MAX_REPLY_LINE_BYTES
            why = "a line that is too long" if is_long else "the connection was closed"
            raise smtplib.SMTPServerDisconnected(why)
        return line

    def _get_socket(self, host: str, port: int, timeout: float) -> socket.socket:
        return connect_within(self._deadline, host, port, timeout)

    def data(self, msg: Any) -> tuple[int, bytes]:  # noqa: ANN401  # as above
        self.is_sending_data = True
        return super().data(msg)


class _SmtpTlsClient(_SmtpClient):
    """The same, with TLS from the first byte."""

    def __init__(self, *args: Any, context: ssl.SSLContext, **kwargs: Any) -> None:  # noqa: ANN401  # those of the library
        self._context = context
        super().__init__(*args, **kwargs)

    def _get_socket(self, host: str, port: int, timeout: float) -> socket.socket:
        plain = super()._get_socket(host, port, timeout)
        return self._context.wrap_socket(plain, server_hostname=host)


def _connect(config: Config, deadline: Deadline) -> _SmtpClient:
    """Return a connection that is ready to send: encrypted and authenticated as the plan says."""
    # The host name is given because the default looks it up in DNS, which may hang.
    name, seconds = socket.gethostname(), config.timeout / SECOND_NS
    own = name if name.isascii() else "localhost"  # EHLO takes only ASCII
    if config.security == "tls":
        context = _tls_context(config)
        server: _SmtpClient = _SmtpTlsClient(
            deadline, config.host, config.port, own, timeout=seconds, context=context
        )
    else:
        server = _SmtpClient(deadline, config.host, config.port, own, seconds)
    try:
        if config.security == "starttls":
            _encrypt(server, _tls_context(config))
        if config.username:
            _log_in(server, config)
        server.ehlo_or_helo_if_needed()  # a later error would be taken for a reply to the mail
    except BaseException:
        server.close()
        raise
    return server


def _encrypt(server: smtplib.SMTP, context: ssl.SSLContext) -> None:
    """Start TLS; without the offer fail, as the connection may be intercepted."""
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
        # the library takes no other, and its error would quote a part of the password
        raise BrokerError("password: only ASCII characters are supported")
    try:
        server.login(config.username, password)
    except ValueError as error:  # a challenge that is no base64, or a user name that is not ASCII
        raise smtplib.SMTPException(f"the login failed: {error}") from error


def _tls_context(config: Config) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=config.ca_file or None)


def _message_id(config: Config, key: str) -> str:
    domain = _sent_address(config.sender).rpartition("@")[2]
    return f"<{quote(key, safe='')}@{quote(domain, safe='.-[]:')}>"


def _bytes(reply: bytes | str) -> bytes:
    return reply.encode() if isinstance(reply, str) else reply


def _text(reply: bytes | str) -> str:
    text = reply.decode(errors="replace") if isinstance(reply, bytes) else reply
    return shortened(text, _MAX_REPLY_TEXT)
