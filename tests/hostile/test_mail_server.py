"""Whatever a mail server answers, one try takes bounded time and memory, and leaves a short reason."""

from __future__ import annotations

import random
import socket
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest

from soak.core.ports import Message
from soak.sinks import mail
from tests.support.certificate import certificate
from tests.support.hostile_servers import (
    Serve,
    drip,
    flood,
    measured,
    rounds,
    serving,
    wait_for_end,
)

DEADLINE_SECONDS = 0.25
SLACK_SECONDS = 2.0
MAX_PEAK_BYTES = 4 * 2**20
MESSAGE = Message(key="k", subject="subject", text="text", at_wall_ns=10**18)
STEPS = (
    b"220 here\r\n",
    b"250 here\r\n",
    b"250 ok\r\n",
    b"250 ok\r\n",
    b"354 go\r\n",
    b"250 taken\r\n",
)
"""Greeting, EHLO, MAIL, RCPT, DATA and the end of the mail, as a server answers them that takes it."""

Attack = Callable[[socket.socket], None]


def silent(connection: socket.socket) -> None:
    wait_for_end(connection, 60.0)


ATTACKS: dict[str, Attack] = {
    "lines without an end": lambda one: flood(one, b"250-more\r\n" * 1000),
    "a line without an end": lambda one: flood(one, b"2" * 65536),
    "drips": lambda one: drip(one, b"250-" + b"x" * 10_000),
    "drips of lines": lambda one: drip(one, b"250-x\r\n" * 10_000),
    "nothing": silent,
    "no reply": lambda one: flood(one, b"\x00\xff\x1b[2J\r\n"),
}


def conversing(hostile_step: int, attack: Attack) -> Serve:
    def serve(connection: socket.socket) -> None:
        connection.settimeout(5.0)
        for at, reply in enumerate(STEPS):
            if at == hostile_step:
                attack(connection)
                return
            connection.sendall(reply)
            heard = connection.recv(65536)
            while reply.startswith(b"354") and not heard.endswith(b"\r\n.\r\n"):
                heard = heard[-8:] + connection.recv(65536)

    return serve


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
@pytest.mark.parametrize("step", range(len(STEPS)))
def test_a_reply_without_an_end_is_given_up(step: int, attack: Attack) -> None:
    """At each step of the conversation, from the greeting on."""
    with serving(conversing(step, attack)) as (host, port), measured() as so_far:
        config = mail.Config(to=("a@example.org",), host=host, port=port)
        outcome = mail.MailSink(config, DEADLINE_SECONDS).send(MESSAGE)
        seconds, peak_bytes = so_far()

    assert outcome.result in {"retry", "never"}
    assert seconds < DEADLINE_SECONDS + SLACK_SECONDS
    assert peak_bytes < MAX_PEAK_BYTES
    assert len(outcome.detail) < 1000


@pytest.mark.parametrize("security", ["starttls", "tls"])
@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
def test_a_server_that_should_encrypt_is_given_up(security: str, attack: Attack) -> None:
    """In the handshake, where there is no reply yet, and before it."""
    with serving(attack) as (host, port), measured() as so_far:
        config = mail.Config(to=("a@example.org",), host=host, port=port, security=security)  # type: ignore[arg-type]  # one of the two
        outcome = mail.MailSink(config, DEADLINE_SECONDS).send(MESSAGE)
        seconds, peak_bytes = so_far()

    assert outcome.result == "retry"
    assert seconds < DEADLINE_SECONDS + SLACK_SECONDS
    assert peak_bytes < MAX_PEAK_BYTES


@pytest.mark.long
def test_any_replies_settle_a_message_or_put_it_off() -> None:
    """Replies of any code and form, many lines, cut anywhere: an outcome, and a short reason."""
    replies: list[list[bytes]] = []

    def serve(connection: socket.socket) -> None:
        connection.settimeout(5.0)
        for reply in replies[-1]:
            connection.sendall(reply)
            if not connection.recv(65536):
                return

    with serving(serve) as (host, port):
        config = mail.Config(to=("a@example.org", "b@example.org"), host=host, port=port)
        for source in rounds("replies of a mail server", 50):
            replies[:] = [[_reply(source, at) for at in range(9)]]
            outcome = mail.MailSink(config, 0.1).send(MESSAGE)
            assert outcome.result in {"delivered", "retry", "never"}
            assert len(outcome.detail) < 2000


@pytest.mark.long
@pytest.mark.parametrize(
    ("mechanism", "challenge"),
    [(b"CRAM-MD5", b"A"), (b"LOGIN", b"AAAAA"), (b"PLAIN", b"AAAAA")],
)
def test_a_login_with_a_challenge_that_is_none_puts_a_message_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mechanism: bytes, challenge: bytes
) -> None:
    """A challenge that is no base64 was an error that no caller expects."""
    monkeypatch.setenv("PASSWORD", "swordfish")
    authority, key = certificate(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority, key)

    def serve(connection: socket.socket) -> None:
        with context.wrap_socket(connection, server_side=True) as secure:
            secure.sendall(b"220 here\r\n")
            for reply in (b"250-here\r\n250 AUTH " + mechanism, b"334 " + challenge):
                secure.recv(65536)
                secure.sendall(reply + b"\r\n")
            secure.recv(65536)

    with serving(serve) as (host, port):
        config = mail.Config(
            to=("a@example.org",),
            host=host,
            port=port,
            security="tls",
            ca_file=str(authority),
            username="soak",
            password="${env:PASSWORD}",
        )
        outcome = mail.MailSink(config, 5.0).send(MESSAGE)

    assert outcome.result == "retry"
    assert f"{host}:{port}: the login failed: " in outcome.detail
    assert "swordfish" not in outcome.detail


def _reply(source: random.Random, step: int) -> bytes:
    if source.random() < 0.6:
        return STEPS[min(step, len(STEPS) - 1)]
    code = source.choice(
        [b"220", b"250", b"354", b"421", b"550", b"999", b"-1 ", b"abc", b"", b"25"]
    )
    text = source.choice(
        [b"", b" x", b"-x", b" \x1b[31m", b" \xff\xfe", b" AUTH", b" " + b"y" * 5000]
    )
    lines = source.choice([1, 1, 1, 3, 70])
    return b"".join(code + text + b"\r\n" for _ in range(lines - 1)) + code + text + b"\r\n"
