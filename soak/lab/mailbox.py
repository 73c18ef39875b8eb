"""A mail server on loopback that keeps the mail it receives, so that a demo shows real mail."""

from __future__ import annotations

import asyncio
import email
import email.policy
import re
from collections import deque
from collections.abc import Callable
from email.message import EmailMessage
from typing import Any, cast

from aiosmtpd.controller import Controller

from soak.core.errors import LabError

_MAX_MESSAGES = 100
_MAX_MESSAGE_BYTES = 10 * 2**20
_HEADERS = ("From", "To", "Subject", "Date", "Message-ID")
_CONTROL_CHARACTERS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def render(message: bytes) -> str:
    """Return a mail as text for a terminal: headers, body, and a line for each attachment."""
    parsed = email.message_from_bytes(message, policy=email.policy.default)
    # A long header begins on a line of its own: the blank before it is not part of it.
    lines = [f"{name}: {str(parsed[name]).strip()}" for name in _HEADERS if parsed[name]]
    body = parsed.get_body(preferencelist=("plain",))
    lines += ["", body.get_content().rstrip() if body else "(no text part)"]
    attached = [part for part in parsed.walk() if part.get_filename() or _is_picture(part)]
    if attached:
        lines.append("")
    for part in attached:
        content = part.get_payload(decode=True) or b""
        size = len(content) if isinstance(content, bytes) else 0
        lines.append(
            f"[attached: {part.get_filename() or part.get_content_type()}, "
            f"{part.get_content_type()}, {size / 1024:.1f} KiB]"
        )
    # A mail must not move the cursor or set the title of the terminal that shows it.
    return "\n".join(_CONTROL_CHARACTERS.sub("", line) for line in "\n".join(lines).splitlines())


def _is_picture(part: EmailMessage) -> bool:
    return part.get_content_maintype() == "image"


class Mailbox:
    """An SMTP server; it calls `on_mail` with each accepted message, on its own thread."""

    def __init__(self, on_mail: Callable[[bytes], None]) -> None:
        self._on_mail = on_mail
        self._received: deque[bytes] = deque(maxlen=_MAX_MESSAGES)
        self._is_stopped = False
        self._server = _OnAnyPort(
            self,
            hostname="127.0.0.1",
            port=0,
            server_hostname="localhost",  # else aiosmtpd asks the name service
            data_size_limit=_MAX_MESSAGE_BYTES,
        )

    @property
    def host(self) -> str:
        return "127.0.0.1"

    @property
    def port(self) -> int:
        return int(self._server.port)

    @property
    def messages(self) -> list[bytes]:
        """Return the last messages, oldest first, at most 100."""
        return list(self._received)

    def start(self) -> None:
        """Start the server and return when it listens.

        Raises:
            LabError: it cannot listen on loopback.
        """
        try:
            self._server.start()
        except (OSError, RuntimeError) as error:
            raise LabError(f"cannot start the lab's mail server: {error}") from error

    def stop(self) -> None:
        """Stop the server; the messages stay readable. May be called twice."""
        if not self._is_stopped:
            self._is_stopped = True
            self._server.stop(no_assert=True)

    async def handle_DATA(  # noqa: N802 - aiosmtpd calls it by this name
        self,
        server: Any,  # noqa: ANN401, ARG002 - aiosmtpd has no types
        session: Any,  # noqa: ANN401, ARG002 - aiosmtpd has no types
        envelope: Any,  # noqa: ANN401 - aiosmtpd has no types
    ) -> str:
        content = bytes(envelope.content)
        self._received.append(content)
        self._on_mail(content)
        return "250 Message accepted"


class _OnAnyPort(Controller):
    """A controller that listens on any free port if its port is 0, and then has the port it got."""

    def _trigger_server(self) -> None:
        server = cast("asyncio.Server", self.server)
        self.port = server.sockets[0].getsockname()[1]
        super()._trigger_server()  # type: ignore[no-untyped-call]  # aiosmtpd is typed in part
