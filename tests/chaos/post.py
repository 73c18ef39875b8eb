"""A mail server that is away, slow, refuses or puts off who it does not know, and counts what it gets."""

from __future__ import annotations

import asyncio
import email
import time
from collections import Counter
from typing import Any, Literal
from urllib.parse import unquote

from aiosmtpd.controller import Controller

from tests.support.alerting.mail_server import free_port

Mood = Literal["well", "slow", "refusing", "greylisting"]
SLOW_SECONDS = (
    5.0  # more than the plan's time-out: it takes the mail, and nobody waits for its word
)
GREY_SECONDS = 8.0


class Post:
    """`came` counts by message, such as `<finding>.confirmed`, how often the server took one."""

    def __init__(self) -> None:
        self.port = free_port()
        self.mood: Mood = "well"
        self.came: Counter[str] = Counter()
        self.refused = 0
        self._known_since: dict[str, float] = {}
        self._controller: Controller | None = None

    def open(self) -> None:
        self._controller = Controller(self, hostname="127.0.0.1", port=self.port)
        self._controller.start()

    def close(self) -> None:
        if self._controller is not None:
            self._controller.stop(no_assert=True)
            self._controller = None

    async def handle_MAIL(  # noqa: N802  # the library's name
        self, _server: object, _session: object, envelope: Any, address: str, _options: object
    ) -> str:
        if self.mood == "refusing":
            self.refused += 1
            return "451 4.3.0 not today"
        if self.mood == "greylisting" and not self._is_known(address):
            self.refused += 1
            return "450 4.7.1 come again"
        envelope.mail_from = address
        return "250 OK"

    async def handle_DATA(self, _server: object, _session: object, envelope: Any) -> str:  # noqa: N802  # as above
        mail = email.message_from_bytes(envelope.content)
        self.came[unquote(mail["Message-ID"].strip("<>").rpartition("@")[0])] += 1
        if self.mood == "slow":
            await asyncio.sleep(SLOW_SECONDS)
        return "250 OK"

    def _is_known(self, address: str) -> bool:
        now = time.monotonic()
        return now - self._known_since.setdefault(address, now) > GREY_SECONDS
