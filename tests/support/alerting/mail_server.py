"""An SMTP server on loopback that keeps the mails it gets."""

from __future__ import annotations

import email
import email.policy
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from email.message import EmailMessage
from typing import Any

from aiosmtpd.controller import Controller


class Inbox:
    """Keeps the mails that it gets; a test sets the replies, per recipient or after DATA."""

    def __init__(self) -> None:
        self.mails: list[tuple[list[str], EmailMessage]] = []
        self.rcpt_answers: dict[str, str] = {}
        self.data_answer = "250 OK"

    async def handle_RCPT(  # noqa: N802  # the library's name
        self, _server: object, _session: object, envelope: Any, address: str, _options: object
    ) -> str:
        answer = self.rcpt_answers.get(address, "250 OK")
        if answer.startswith("250"):
            envelope.rcpt_tos.append(address)
        return answer

    async def handle_DATA(self, _server: object, _session: object, envelope: Any) -> str:  # noqa: N802  # as above
        if self.data_answer.startswith("250"):
            mail = email.message_from_bytes(envelope.content, policy=email.policy.default)
            assert isinstance(mail, EmailMessage)
            self.mails.append((list(envelope.rcpt_tos), mail))
        return self.data_answer


@contextmanager
def served(inbox: Inbox, *, has_utf8: bool = True) -> Iterator[int]:
    controller = Controller(inbox, hostname="127.0.0.1", port=free_port(), enable_SMTPUTF8=has_utf8)
    controller.start()
    try:
        yield controller.port
    finally:
        controller.stop()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])
