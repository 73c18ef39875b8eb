"""The lab's mail server: a real conversation, and what a terminal shows of a mail."""

from __future__ import annotations

import smtplib
from collections.abc import Iterator
from email.message import EmailMessage

import pytest

from soak.lab.mailbox import Mailbox, render


def mail() -> EmailMessage:
    message = EmailMessage()
    message["From"] = "soakd@localhost"
    message["To"] = "you@localhost"
    message["Subject"] = "p99 stepped from 4 ms to 61 ms → retention_cliff"
    message["Message-ID"] = "<run-1.92.confirmed@soakd>"
    message.set_content("The first segments were deleted at 12:00:31.\n")
    message.add_attachment(b"\x89PNG" + bytes(2044), "image", "png", filename="chart.png")
    return message


@pytest.fixture
def shown() -> list[bytes]:
    return []


@pytest.fixture
def mailbox(shown: list[bytes]) -> Iterator[Mailbox]:
    box = Mailbox(shown.append)
    box.start()
    yield box
    box.stop()


def test_a_mail_sent_arrives_whole_and_is_shown(mailbox: Mailbox, shown: list[bytes]) -> None:
    """Over SMTP on loopback, to any free port."""
    with smtplib.SMTP(mailbox.host, mailbox.port, timeout=20) as client:
        client.send_message(mail())

    assert mailbox.messages == shown
    assert "first segments were deleted" in render(mailbox.messages[0])


def test_two_mailboxes_do_not_meet(mailbox: Mailbox) -> None:
    """Two runs on one machine have one each."""
    other = Mailbox(lambda _: None)
    other.start()
    try:
        with smtplib.SMTP(other.host, other.port, timeout=20) as client:
            client.send_message(mail())
    finally:
        other.stop()

    assert (len(mailbox.messages), len(other.messages)) == (0, 1)


def test_a_mailbox_keeps_the_last_hundred(mailbox: Mailbox) -> None:
    """Memory is bounded, whoever talks to it."""
    with smtplib.SMTP(mailbox.host, mailbox.port, timeout=20) as client:
        for number in range(123):
            client.sendmail("a@localhost", ["b@localhost"], f"Subject: {number}\r\n\r\n")

    assert len(mailbox.messages) == 100
    assert mailbox.messages[-1].startswith(b"Subject: 122")


def test_a_mail_is_rendered_with_headers_text_and_a_line_an_attachment() -> None:
    """Encoded headers are shown as they were meant."""
    assert render(bytes(mail())).splitlines() == [
        "From: soakd@localhost",
        "To: you@localhost",
        "Subject: p99 stepped from 4 ms to 61 ms → retention_cliff",
        "Message-ID: <run-1.92.confirmed@soakd>",
        "",
        "The first segments were deleted at 12:00:31.",
        "",
        "[attached: chart.png, image/png, 2.0 KiB]",
    ]


def test_a_mail_cannot_take_over_the_terminal() -> None:
    """Escape sequences lose their first character."""
    message = b"Subject: a\r\n\r\n\x1b]0;gotcha\x07\x1b[2J\x9b31mred\r\n"

    assert not set(render(message)) & {"\x1b", "\x07", "\x9b"}


def test_a_long_subject_that_was_folded_is_shown_in_one_piece() -> None:
    subject = "[soakd] slow fsync: " + "p99 88.9 ms -> 1.07 s (x12) " * 2

    shown = render(f"Subject:\r\n {subject}\r\n\r\nbody\r\n".encode())

    assert shown.splitlines()[0] == f"Subject: {subject.strip()}"
