"""From the outbox to mailboxes over different servers: each mail arrives once, by its Message-ID."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from soak.sinks.mail import Config, MailSink
from tests.support.alerting.daemon import DELIVERED, AlertWorld
from tests.support.alerting.mail_server import Inbox, free_port, served

TO = ("a@example.org", "b@example.org")
ROUNDS = 6
IDS = {"<synthetic-1-130.confirmed@localhost>", "<synthetic-1-130.gone@localhost>"}


class Greylisting(Inbox):
    """Defers each recipient once."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()

    async def handle_RCPT(  # noqa: N802  # the library's name
        self, server: object, session: object, envelope: Any, address: str, options: object
    ) -> str:
        if address not in self.seen:
            self.seen.add(address)
            return "450 greylisted, come again"
        return await super().handle_RCPT(server, session, envelope, address, options)


class Slow(Inbox):
    """Accepts the first mail, and does not reply while the client is connected."""

    is_first = True

    async def handle_DATA(self, server: object, session: object, envelope: Any) -> str:  # noqa: N802  # as above
        answer = await super().handle_DATA(server, session, envelope)
        if self.is_first:
            self.is_first = False
            await asyncio.Event().wait()
        return answer


class OneUnknownRecipient(Inbox):
    """Knows one of the recipients only."""

    def __init__(self) -> None:
        super().__init__()
        self.rcpt_answers = {TO[1]: "550 no such user"}


class OneBusyRecipient(Inbox):
    """Defers one of the recipients whenever it is asked."""

    def __init__(self) -> None:
        super().__init__()
        self.rcpt_answers = {TO[1]: "450 mailbox busy"}


class Full(Inbox):
    """Has no room for the first two mails."""

    tries = 0

    async def handle_DATA(self, server: object, session: object, envelope: Any) -> str:  # noqa: N802  # as above
        self.tries += 1
        if self.tries <= 2:
            return "452 out of room"
        return await super().handle_DATA(server, session, envelope)


def deliver(world: AlertWorld, inbox: Inbox, first_limit: float = 60.0) -> dict[str, list[str]]:
    """Return the ids of the mails that each recipient has after some rounds, in the order of their coming.

    Each round is that of a daemon of its own: nothing lives in its memory alone.
    """
    with served(inbox) as port:
        config = Config(to=TO, host="127.0.0.1", port=port)
        for limit_seconds in (first_limit, *[60.0] * ROUNDS):
            world.sink = MailSink(config, limit_seconds)  # type: ignore[assignment]  # the real one
            world.daemon().poll()
            world.clock.advance(900)
    return {name: [mail["Message-ID"] for to, mail in inbox.mails if name in to] for name in TO}


@pytest.mark.long
@pytest.mark.parametrize("inbox", [Inbox, Greylisting, Full])
def test_every_recipient_gets_each_mail_once(tmp_path: Path, inbox: type[Inbox]) -> None:
    """Over restarts of the daemon."""
    world = AlertWorld(tmp_path, DELIVERED, state="gone").without_charts()
    ids = deliver(world, inbox())

    assert {name: sorted(found) for name, found in ids.items()} == {
        name: sorted(IDS) for name in TO
    }
    assert world.states() == [("opened", "sent"), ("resolved", "sent")]


@pytest.mark.long
def test_a_server_that_replies_too_late_has_one_mail_under_one_id(tmp_path: Path) -> None:
    """It may arrive twice, which no client can know; the Message-ID is the same."""
    world = AlertWorld(tmp_path, DELIVERED, state="gone").without_charts()
    ids = deliver(world, Slow(), first_limit=1.0)

    assert [set(found) for found in ids.values()] == [IDS, IDS]
    assert max(len(found) for found in ids.values()) <= len(IDS) + 1
    assert world.states() == [("opened", "sent"), ("resolved", "sent")]


@pytest.mark.long
def test_an_unknown_recipient_does_not_affect_the_other(tmp_path: Path) -> None:
    world = AlertWorld(tmp_path, DELIVERED, state="gone").without_charts()
    ids = deliver(world, OneUnknownRecipient())

    assert sorted(ids[TO[0]]) == sorted(IDS)
    assert ids[TO[1]] == []
    assert world.states() == [("opened", "sent"), ("resolved", "sent")]


@pytest.mark.long
def test_a_deferred_recipient_does_not_delay_the_other(tmp_path: Path) -> None:
    """The other gets the next mail of the finding, and those of other findings, in the same round."""
    world = AlertWorld(tmp_path, DELIVERED, state="gone").without_charts()
    ids = deliver(world, OneBusyRecipient())

    assert ids[TO[0]][:2] == [
        "<synthetic-1-130.confirmed@localhost>",
        "<synthetic-1-130.gone@localhost>",
    ]
    assert sorted(ids[TO[0]]) == sorted(IDS)
    assert ids[TO[1]] == []
    assert world.states() == [("opened", "deferred"), ("resolved", "deferred")]


@pytest.mark.long
def test_a_permanent_refusal_is_not_retried(tmp_path: Path) -> None:
    world, inbox = AlertWorld(tmp_path, DELIVERED).without_charts(), Inbox()
    inbox.data_answer = "554 no"
    ids = deliver(world, inbox)

    assert ids == {name: [] for name in TO}
    assert world.states() == [("opened", "refused")]


@pytest.mark.long
def test_a_mail_that_waited_for_a_server_arrives_once(tmp_path: Path) -> None:
    world = AlertWorld(tmp_path, DELIVERED).without_charts()
    config = Config(to=TO, host="127.0.0.1", port=free_port())
    world.sink = MailSink(config)  # type: ignore[assignment]  # the real one
    for _ in range(ROUNDS):
        world.daemon().poll()
        world.clock.advance(900)
    waiting = world.states()
    ids = deliver(world, Inbox())

    assert waiting == [("opened", "deferred")]
    assert ids == {name: ["<synthetic-1-130.confirmed@localhost>"] for name in TO}
