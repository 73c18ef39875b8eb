"""Mail against a real SMTP server on loopback: what is delivered, tried again, or given up."""

from __future__ import annotations

import email
import email.policy
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from email.message import EmailMessage
from typing import Any

import pytest
from aiosmtpd.controller import Controller

from soak.core.errors import PlanError
from soak.core.ports import Message
from soak.core.units import SECOND_NS
from soak.sinks.mail import Config, build, compose

PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256))
MESSAGE = Message(
    key="run 1-130.confirmed",
    subject="[soakd] demo: p99 end-to-end latency 4.1 ms -> 61 ms (x15)",
    text="p99 end-to-end latency ▁▁▇▇\n\n.\nlast line\n",
    chart_png=PNG,
    at_wall_ns=1_790_000_000 * SECOND_NS,
)


class Inbox:
    """Keeps what it gets; answers as told, per recipient or after DATA."""

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
def served(inbox: Inbox) -> Iterator[int]:
    controller = Controller(inbox, hostname="127.0.0.1", port=free_port())
    controller.start()
    try:
        yield controller.port
    finally:
        controller.stop()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def config(port: int = 25, **other: Any) -> Config:
    values = {"to": ("a@example.org", "b@example.org"), "host": "127.0.0.1", "port": port}
    return Config(**{**values, **other})


def test_a_mail_arrives_whole_with_its_chart() -> None:
    """Text, picture and the headers that threads and robots go by survive the road."""
    inbox = Inbox()
    with served(inbox) as port:
        outcome = build(config(port)).send(MESSAGE)

    ((to, mail),) = inbox.mails
    text, chart = mail.iter_parts()
    assert outcome.result == "delivered"
    assert to == ["a@example.org", "b@example.org"]
    assert mail["Subject"] == MESSAGE.subject
    assert mail["Message-ID"] == "<run%201-130.confirmed@localhost>"
    assert mail["Date"] == "Mon, 21 Sep 2026 14:13:20 +0000"
    assert mail["Auto-Submitted"] == "auto-generated"
    assert text.get_content().replace("\r\n", "\n") == MESSAGE.text
    assert chart.get_content() == PNG
    assert chart.get_content_disposition() == "inline"


def test_a_sequel_names_the_mail_it_follows() -> None:
    """Mail programs show it below the first one."""
    mail = compose(config(), Message("k.gone", "s", "t", follows="k.confirmed"))

    assert mail["In-Reply-To"] == mail["References"] == "<k.confirmed@localhost>"


def test_a_second_try_is_the_same_mail() -> None:
    """Equal Message-ID, Date and text: a repeat is recognised as one."""
    first, second = compose(config(), MESSAGE), compose(config(), MESSAGE)

    assert [first[name] for name in ("Message-ID", "Date")] == [
        second[name] for name in ("Message-ID", "Date")
    ]


@pytest.mark.parametrize(
    ("answer", "result"),
    [("451 try later", "retry"), ("452 full", "retry"), ("554 no", "never"), ("552 big", "never")],
)
def test_the_servers_code_decides_whether_to_try_again(answer: str, result: str) -> None:
    """4yz is temporary, 5yz is final; the answer is kept as the reason."""
    inbox = Inbox()
    inbox.data_answer = answer
    with served(inbox) as port:
        outcome = build(config(port)).send(MESSAGE)

    assert (outcome.result, outcome.detail) == (result, answer)


def test_only_those_who_were_put_off_get_the_second_try() -> None:
    """One recipient is told to wait: the other one does not get the mail twice."""
    inbox = Inbox()
    inbox.rcpt_answers = {"b@example.org": "450 grey list"}
    with served(inbox) as port:
        sink = build(config(port))
        first = sink.send(MESSAGE)
        inbox.rcpt_answers = {}
        second = sink.send(MESSAGE)

    assert (first.result, second.result) == ("retry", "delivered")
    assert [to for to, _ in inbox.mails] == [["a@example.org"], ["b@example.org"]]


def test_unknown_recipients_are_given_up_and_named() -> None:
    """All unknown: never. One of two: delivered, and the other one is named."""
    inbox = Inbox()
    with served(inbox) as port:
        inbox.rcpt_answers = {"a@example.org": "550 who"}
        one = build(config(port)).send(MESSAGE)
        inbox.rcpt_answers["b@example.org"] = "550 who"
        all_ = build(config(port)).send(MESSAGE)

    assert (one.result, one.detail) == ("delivered", "a@example.org: 550 who")
    assert all_.result == "never"


def test_a_refused_connection_is_tried_again() -> None:
    """A mail server that is down is a matter of time; the place is in the reason."""
    port = free_port()

    outcome = build(config(port)).send(MESSAGE)

    assert outcome.result == "retry"
    assert f"127.0.0.1:{port}" in outcome.detail


def test_a_server_that_says_nothing_is_tried_again() -> None:
    """It accepts the connection and hangs: the time-out ends it."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        outcome = build(config(port, timeout="100ms")).send(MESSAGE)

    assert outcome.result == "retry"


@pytest.mark.parametrize(
    "wrong",
    [
        {"to": ()},
        {"to": ("nobody",)},
        {"to": ("a@example.org\nBcc: b@example.org",)},
        {"sender": "me"},
        {"port": 0},
        {"timeout": 0},
    ],
)
def test_a_wrong_configuration_is_refused(wrong: dict[str, Any]) -> None:
    """Before the first finding, not at night."""
    with pytest.raises(ValueError, match=r"to|address|port|timeout"):
        config(**wrong)


def test_a_mail_needs_a_server() -> None:
    """Without a lab nobody fills in the host."""
    with pytest.raises(PlanError, match="host"):
        build(config(host=""))
