"""Mail against a real SMTP server on loopback: what is delivered, tried again, or given up."""

from __future__ import annotations

import contextlib
import dataclasses
import email
import email.policy
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import AuthResult

from soak.core.errors import PlanError
from soak.core.ports import Message
from soak.core.units import SECOND_NS
from soak.sinks.mail import Config, MailSink, build, compose
from tests.support.certificate import certificate
from tests.support.mail_server import Inbox, free_port, served

PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256))
MESSAGE = Message(
    key="run 1-130.confirmed",
    subject="[soakd] demo: p99 end-to-end latency 4.1 ms -> 61 ms (x15)",
    text="p99 end-to-end latency ▁▁▇▇\n\n.\nlast line\n",
    chart_png=PNG,
    at_wall_ns=1_790_000_000 * SECOND_NS,
)


def config(port: int = 25, **other: Any) -> Config:
    values = {"to": ("a@example.org", "b@example.org"), "host": "127.0.0.1", "port": port}
    return Config(**{**values, **other})


def test_a_mail_arrives_whole_with_its_chart() -> None:
    """Text, picture and the headers that threads and robots go by survive the road."""
    inbox = Inbox()
    with served(inbox) as port:
        outcome = build(config(port)).send(MESSAGE)

    ((to, mail),) = inbox.mails
    text, page = mail.iter_parts()
    html, chart = page.iter_parts()
    assert outcome.result == "delivered"
    assert to == ["a@example.org", "b@example.org"]
    assert mail["Subject"] == MESSAGE.subject
    assert mail["Message-ID"] == "<run%201-130.confirmed@localhost>"
    assert mail["Date"] == "Mon, 21 Sep 2026 14:13:20 +0000"
    assert mail["Auto-Submitted"] == "auto-generated"
    assert text.get_content().replace("\r\n", "\n") == MESSAGE.text
    assert chart.get_content() == PNG
    assert f'src="cid:{chart["Content-ID"][1:-1]}"' in html.get_content()
    assert "max-width:100%" in html.get_content(), "a phone is narrower than the picture"
    assert "pre-wrap" in html.get_content(), "and than the text"
    assert mail.get_content_type() == "multipart/alternative"
    assert chart.get_content_disposition() == "inline"


def test_a_line_that_was_broken_for_terminals_is_whole_in_html() -> None:
    """A phone breaks lines where it must; blocks, bars and lines of their own stay."""
    text = "what      a\n          b\n\n    ▁▇\n  14:13\n\n  - c\n    d\n  - e\n      f\n"
    _, html = compose(config(), Message("k", "s", text)).iter_parts()

    shown = "what      a b\n\n    ▁▇\n  14:13\n\n  - c d\n  - e\n      f\n"
    assert f">{shown}</pre>" in html.get_content()


def test_a_sequel_names_the_mail_it_follows() -> None:
    """Mail programs show it below the first one."""
    mail = compose(config(), Message("k.gone", "s", "t", follows="k.confirmed"))

    assert mail["In-Reply-To"] == mail["References"] == "<k.confirmed@localhost>"


def test_long_identifiers_stay_in_one_piece() -> None:
    """A mail program compares them letter by letter; the picture is found by one, too."""
    sender = f"soakd@monitoring.{'department-of-streams.' * 4}example.org"
    long = dataclasses.replace(
        MESSAGE, key=f"{'r' * 100}-1.gone", follows=f"{'r' * 100}-1.confirmed"
    )
    raw = compose(config(sender=sender), long).as_bytes()
    mail = email.message_from_bytes(raw, policy=email.policy.default)
    pages = [part for part in mail.walk() if part.get_content_type() == "text/html"]
    (picture,) = [part for part in mail.walk() if part.get_content_type() == "image/png"]

    assert b"=?utf-8" not in raw.partition(b"\n\n")[0]
    assert mail["In-Reply-To"].endswith("example.org>")
    assert mail["Message-ID"].count("@") == 1
    assert f'src="cid:{picture["Content-ID"][1:-1]}"' in pages[0].get_content()


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
        restarted = build(config(port))
        second = restarted.send(dataclasses.replace(MESSAGE, progress=first.progress))

    assert (first.result, first.may_have_arrived, second.result) == ("retry", True, "delivered")
    assert [to for to, _ in inbox.mails] == [["a@example.org"], ["b@example.org"]]


@pytest.mark.parametrize(
    ("first", "then", "expected"),
    [
        ({"b": 450}, {"b": 550}, ("delivered", "b@example.org: 550 no")),
        ({"a": 550, "b": 450}, {}, ("delivered", "a@example.org: 550 no")),
        ({"a": 550, "b": 450}, {"b": 550}, ("never", "550 no")),
        ({"b": 450}, {"data": 554}, ("delivered", "b@example.org: 554 no")),
        ({"b": 450}, {"b": 450}, ("retry", "b@example.org: 450 no")),
    ],
)
def test_who_got_a_mail_is_told_over_all_tries(
    first: dict[str, int], then: dict[str, int], expected: tuple[str, str]
) -> None:
    """Delivered is what one has got at least; whoever was refused is named at the end."""
    inbox = Inbox()

    def say(answers: dict[str, int]) -> None:
        inbox.rcpt_answers = {f"{name}@example.org": f"{code} no" for name, code in answers.items()}
        inbox.data_answer = f"{answers.get('data', 250)} no"

    with served(inbox) as port:
        sink = build(config(port))
        say(first)
        before = sink.send(MESSAGE)
        say(then)
        outcome = sink.send(dataclasses.replace(MESSAGE, progress=before.progress))

    assert (before.result, before.may_have_arrived) == ("retry", "a" not in first)
    assert (outcome.result, outcome.detail, outcome.may_have_arrived) == (*expected, False)


class HangingUp(Inbox):
    """Takes the mail, or not, and is gone before it says so."""

    async def handle_DATA(self, server: Any, session: object, envelope: Any) -> str:  # noqa: N802  # the library's
        answer = await super().handle_DATA(server, session, envelope)
        server.transport.abort()
        return answer


def test_nobody_is_tried_who_is_no_recipient_any_more() -> None:
    """One had it and the other was owed it: that one has left `to`, and no server is asked."""
    nowhere = MailSink(config(port=1, to=("a@example.org",)))
    progress = '{"done": ["a@example.org"], "refused": {}}'

    assert nowhere.send(Message("k", "s", "t", progress=progress)).result == "delivered"


def test_whether_a_server_that_did_not_answer_took_the_mail_nobody_knows() -> None:
    inbox = HangingUp()
    with served(inbox) as port:
        outcome = build(config(port)).send(MESSAGE)

    assert len(inbox.mails) == 1
    assert (outcome.result, outcome.progress, outcome.may_have_arrived) == ("retry", "", True)
    assert f"127.0.0.1:{port}: " in outcome.detail


def test_a_server_that_closes_in_the_middle_has_given_nobody_the_mail() -> None:
    """421 to the second recipient: the first one was accepted, and got nothing."""
    inbox = Inbox()
    with served(inbox) as port:
        sink = build(config(port))
        inbox.rcpt_answers = {"b@example.org": "421 closing"}
        first = sink.send(MESSAGE)
        inbox.rcpt_answers = {}
        second = sink.send(dataclasses.replace(MESSAGE, progress=first.progress))

    assert (first.result, second.result) == ("retry", "delivered")
    assert [to for to, _ in inbox.mails] == [["a@example.org", "b@example.org"]]


def test_hostile_names_stay_text() -> None:
    """A topic may be called anything; a mail program runs what it is given."""
    mail = compose(config(), dataclasses.replace(MESSAGE, text="<script>&</script>"))
    html = mail.get_body(("html",))

    assert html is not None
    assert "&lt;script&gt;&amp;&lt;/script&gt;" in html.get_content()


@pytest.fixture(scope="module")
def own_certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return certificate(tmp_path_factory.mktemp("certificate"))


@pytest.fixture
def secure(own_certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What a plan says of a server that asks for a password over TLS."""
    monkeypatch.setenv("SMTP_PASSWORD", "correct horse")
    return {
        "security": "starttls",
        "ca_file": str(own_certificate[0]),
        "username": "soakd",
        "password": "${env:SMTP_PASSWORD}",
    }


@contextmanager
def closed(inbox: Inbox, files: tuple[Path, Path], **other: Any) -> Iterator[int]:
    """A server that takes mail over TLS alone, from those who know the password."""

    def judge(_server: object, _session: object, _envelope: object, _how: str, given: Any) -> Any:
        return AuthResult(
            handled=False, success=(given.login, given.password) == (b"soakd", b"correct horse")
        )

    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*files)
    values = {"tls_context": context, "require_starttls": True, "auth_required": True, **other}
    controller = Controller(
        inbox, hostname="127.0.0.1", port=free_port(), authenticator=judge, **values
    )
    controller.start()
    try:
        yield controller.port
    finally:
        controller.stop()


def test_a_server_that_asks_for_tls_and_a_password_gets_both(
    own_certificate: tuple[Path, Path], secure: dict[str, Any]
) -> None:
    """STARTTLS first, then who we are, then the mail."""
    inbox = Inbox()
    with closed(inbox, own_certificate) as port:
        outcome = build(config(port, **secure)).send(MESSAGE)

    assert outcome.result == "delivered"
    assert len(inbox.mails) == 1


def test_a_wrong_password_is_ours_to_mend(
    own_certificate: tuple[Path, Path], secure: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """535 is permanent for the dialogue, not for the mail: it waits; the secret is not in the reason."""
    inbox = Inbox()
    with closed(inbox, own_certificate) as port:
        monkeypatch.setenv("SMTP_PASSWORD", "wrong horse")
        outcome = build(config(port, **secure)).send(MESSAGE)
        monkeypatch.delenv("SMTP_PASSWORD")
        missing = build(config(port, **secure)).send(MESSAGE)

    assert (outcome.result, outcome.detail[:3]) == ("retry", "535")
    assert "horse" not in outcome.detail
    assert (missing.result, "SMTP_PASSWORD" in missing.detail) == ("retry", True)


def test_a_password_that_no_server_could_be_told_is_ours_to_mend(
    own_certificate: tuple[Path, Path], secure: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mail waits, and the secret is not in the reason."""
    monkeypatch.setenv("SMTP_PASSWORD", "Pferdestärke")
    with closed(Inbox(), own_certificate) as port:
        outcome = build(config(port, **secure)).send(MESSAGE)

    assert (outcome.result, "ASCII" in outcome.detail) == ("retry", True)
    assert "Pferd" not in outcome.detail


def test_a_server_that_nobody_vouches_for_gets_nothing(
    own_certificate: tuple[Path, Path], secure: dict[str, Any]
) -> None:
    """Neither the password nor the mail goes to whoever holds some certificate."""
    inbox = Inbox()
    with closed(inbox, own_certificate) as port:
        outcome = build(config(port, **{**secure, "ca_file": ""})).send(MESSAGE)

    assert outcome.result == "retry"
    assert "CERTIFICATE_VERIFY_FAILED" in outcome.detail
    assert inbox.mails == []


def test_a_server_that_offers_no_tls_gets_nothing(secure: dict[str, Any]) -> None:
    """It may be somebody between us and the server who took the offer away."""
    inbox = Inbox()
    with served(inbox) as port:
        outcome = build(config(port, **secure)).send(MESSAGE)

    assert (outcome.result, "STARTTLS" in outcome.detail) == ("retry", True)
    assert inbox.mails == []


def test_tls_from_the_first_byte(
    own_certificate: tuple[Path, Path], secure: dict[str, Any]
) -> None:
    """Port 465, as RFC 8314 wants it."""
    inbox = Inbox()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*own_certificate)
    controller = Controller(inbox, hostname="127.0.0.1", port=free_port(), ssl_context=context)
    controller.start()
    try:
        outcome = build(config(controller.port, security="tls", ca_file=secure["ca_file"])).send(
            MESSAGE
        )
    finally:
        controller.stop()

    assert outcome.result == "delivered"


def test_a_server_that_greets_with_a_refusal_is_tried_again() -> None:
    """It is out of service, and says so before it has seen the mail: RFC 5321, 3.1."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        answerer = threading.Thread(target=_refuse, args=(server,))
        answerer.start()
        outcome = build(config(server.getsockname()[1])).send(MESSAGE)
        answerer.join()

    assert (outcome.result, outcome.detail) == ("retry", "554 out of service")


def _refuse(server: socket.socket) -> None:
    client, _ = server.accept()
    with client:
        client.sendall(b"554 out of service\r\n")
        client.recv(100)


def test_a_host_may_have_any_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """One in other letters than SMTP's is not told."""
    monkeypatch.setattr(socket, "gethostname", lambda: "bücher")
    inbox = Inbox()
    with served(inbox) as port:
        outcome = build(config(port)).send(MESSAGE)

    assert (outcome.result, len(inbox.mails)) == ("delivered", 1)


def test_a_server_that_does_not_like_our_name_is_tried_again() -> None:
    """It has not seen the mail: a host's name can be mended, a mail that was given up cannot."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        answerer = threading.Thread(target=_refuse_name, args=(server,))
        answerer.start()
        outcome = build(config(server.getsockname()[1])).send(MESSAGE)
        answerer.join()

    assert (outcome.result, outcome.detail) == ("retry", "550 who is that")


def _refuse_name(server: socket.socket) -> None:
    client, _ = server.accept()
    with client, client.makefile("rb") as said:
        client.sendall(b"220 here\r\n")
        for line in said:
            is_name = line[:4] in {b"ehlo", b"helo"}
            client.sendall(b"550 who is that\r\n" if is_name else b"221 bye\r\n")


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

    assert (outcome.result, outcome.may_have_arrived) == ("retry", False)
    assert f"127.0.0.1:{port}" in outcome.detail


def test_a_server_that_says_nothing_is_tried_again() -> None:
    """It accepts the connection and hangs: the time-out ends it."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        outcome = build(config(port, timeout="100ms")).send(MESSAGE)

    assert outcome.result == "retry"


def test_a_server_that_dribbles_is_cut_off() -> None:
    """Each byte comes in time, and the whole would take for ever."""
    is_over = threading.Event()

    def dribble(server: socket.socket) -> None:
        client, _ = server.accept()
        with client, contextlib.suppress(OSError):
            while not is_over.wait(0.01):
                client.sendall(b"220-hold on\r\n")

    with socket.create_server(("127.0.0.1", 0)) as server:
        answerer = threading.Thread(target=dribble, args=(server,))
        answerer.start()
        sink = MailSink(config(server.getsockname()[1]), limit_seconds=0.2)
        outcome = sink.send(MESSAGE)
        is_over.set()
        answerer.join()

    assert (outcome.result, "no end after 0.2 s" in outcome.detail) == ("retry", True)


@pytest.mark.parametrize(
    "wrong",
    [
        {"to": ()},
        {"to": ("nobody",)},
        {"to": ("a@example.org\nBcc: b@example.org",)},
        {"sender": "me"},
        {"port": 0},
        {"timeout": 0},
        {"timeout": "61s"},
        {"username": "me"},
        {"username": "me", "password": "secret", "security": "tls"},
        {"username": "me", "password": "${env:X}"},
        {"security": "ssl"},
    ],
)
def test_a_wrong_configuration_is_refused(wrong: dict[str, Any]) -> None:
    """Before the first finding, not at night."""
    with pytest.raises(ValueError, match=r"to|address|port|timeout|password|security"):
        config(**wrong)


def test_a_mail_needs_a_server() -> None:
    """Without a lab nobody fills in the host."""
    with pytest.raises(PlanError, match="host"):
        build(config(host=""))
