"""Mail to a real SMTP server on loopback: delivered, retried, or refused."""

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
from soak.core.ports import CHART_URL, Message
from soak.core.units import SECOND_NS
from soak.sinks.mail import Config, MailSink, build, compose, preflight
from tests.support.alerting.mail_server import Inbox, free_port, served
from tests.support.certificate import certificate

PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256))
MESSAGE = Message(
    key="run 1-130.confirmed",
    subject="[soakd] demo: p99 end-to-end latency 4.1 ms -> 61 ms (x15)",
    text="p99 end-to-end latency ▁▁▇▇\n\n.\nlast line\n",
    html=f'<p>p99 <img src="{CHART_URL}"></p>',
    chart_png=PNG,
    at_wall_ns=1_790_000_000 * SECOND_NS,
)


def config(port: int = 25, **other: Any) -> Config:
    values = {"to": ("a@example.org", "b@example.org"), "host": "127.0.0.1", "port": port}
    return Config(**{**values, **other})


def test_a_mail_arrives_complete_with_its_chart() -> None:
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
    assert mail.get_content_type() == "multipart/alternative"
    assert chart.get_content_disposition() == "inline"


@pytest.mark.long
@pytest.mark.parametrize("word", ["five", "größer", "=?odd?=", "on-127.0.0.1:9092"])
@pytest.mark.parametrize("is_utf8", [False, True])
def test_a_subject_is_folded_only_after_a_word(word: str, is_utf8: bool) -> None:  # noqa: FBT001  # both ways of sending
    """Of any length: the first line is never empty, no line is too long, and the text comes back."""
    for length in (20, *range(60, 90), 150, 220):
        subject = " ".join(f"[soakd] disk full: {word} {'p99 publish ' * 20}"[:length].split())
        mail = compose(config(), dataclasses.replace(MESSAGE, subject=subject))
        policy = mail.policy.clone(utf8=is_utf8, linesep="\r\n")  # type: ignore[call-arg]  # its stubs
        sent = mail.as_bytes(policy=policy)
        lines = sent.partition(b"\r\nDate:")[0].partition(b"Subject:")[2].split(b"\r\n")

        assert lines[0].startswith(b" [soakd]")
        assert all(line[1:].strip() for line in lines)
        assert max(map(len, lines)) <= 78
        assert email.message_from_bytes(sent, policy=email.policy.default)["Subject"] == subject


def test_a_subject_of_one_long_word_stays_on_its_line() -> None:
    sent = compose(config(), dataclasses.replace(MESSAGE, subject="x" * 100)).as_bytes()

    assert b"Subject: " + b"x" * 100 + b"\n" in sent


def test_a_message_without_a_page_is_shown_as_its_text() -> None:
    """In a fixed-width font, in which columns line up; a narrow screen wraps lines."""
    _, html = compose(config(), Message("k", "s", "what      <a>\n")).iter_parts()

    assert "pre-wrap" in html.get_content()
    assert ">what      &lt;a&gt;\n</pre>" in html.get_content()


def test_a_follow_up_refers_to_the_first_mail() -> None:
    mail = compose(config(), Message("k.gone", "s", "t", follows="k.confirmed"))

    assert mail["In-Reply-To"] == mail["References"] == "<k.confirmed@localhost>"


def test_long_identifiers_are_not_folded() -> None:
    """Mail programs compare them letter by letter."""
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
    first, second = compose(config(), MESSAGE), compose(config(), MESSAGE)

    assert [first[name] for name in ("Message-ID", "Date")] == [
        second[name] for name in ("Message-ID", "Date")
    ]


@pytest.mark.parametrize(
    ("answer", "result"),
    [("451 try later", "retry"), ("452 full", "retry"), ("554 no", "never"), ("552 big", "never")],
)
def test_the_reply_code_decides_whether_to_retry(answer: str, result: str) -> None:
    """4yz is temporary, 5yz is permanent; the reply is kept as the reason."""
    inbox = Inbox()
    inbox.data_answer = answer
    with served(inbox) as port:
        outcome = build(config(port)).send(MESSAGE)

    assert (outcome.result, outcome.detail) == (result, answer)


UTF8 = "jörg@example.org"
ADDRESSED = ("oncall@example.org", "oncall@münchen.example", UTF8)


@pytest.mark.parametrize("other", ["oncall@straße.example", "用户@例え.jp", "josé@españa.example"])
def test_one_internationalised_recipient_costs_nobody_else_the_mail(other: str) -> None:
    """Most relays have no SMTPUTF8: the domain is sent as IDNA has it, the name before it cannot be."""
    inbox = Inbox()
    with served(inbox, has_utf8=False) as port:
        outcome = build(config(port, to=("oncall@example.org", other))).send(MESSAGE)

    ((to, mail),) = inbox.mails
    assert outcome.result == "delivered"
    assert to[0] == "oncall@example.org"
    assert str(mail["To"]).isascii()
    assert all(one.isascii() for one in to)
    assert (len(to) == 2) == other.partition("@")[0].isascii()
    if len(to) == 1:
        assert outcome.detail.startswith(f"{other}: 553 ")


def test_a_recipient_that_needs_smtputf8_is_named_as_refused() -> None:
    """For good: the server will not learn it."""
    inbox = Inbox()
    with served(inbox, has_utf8=False) as port:
        outcome = build(config(port, to=ADDRESSED)).send(MESSAGE)
        alone = build(config(port, to=(UTF8,))).send(MESSAGE)

    ((to, _),) = inbox.mails
    assert to == ["oncall@example.org", "oncall@xn--mnchen-3ya.example"]
    assert outcome.result == "delivered"
    assert outcome.detail.startswith(f"{UTF8}: 553 the server takes no letters beyond ASCII")
    assert alone.result == "never"


def test_with_smtputf8_every_recipient_gets_the_mail() -> None:
    """The one that needs it in a mail of its own: the next relay of the others may not have it."""
    inbox = Inbox()
    with served(inbox) as port:
        outcome = build(config(port, to=ADDRESSED)).send(MESSAGE)

    assert (outcome.result, outcome.detail) == ("delivered", "")
    assert [to for to, _ in inbox.mails] == [
        ["oncall@example.org", "oncall@xn--mnchen-3ya.example"],
        [UTF8],
    ]
    assert len({mail["Message-ID"] for _, mail in inbox.mails}) == 1


def test_an_error_with_the_second_mail_does_not_repeat_the_first() -> None:
    """The recipients of the first one are done."""
    inbox = Inbox()
    inbox.rcpt_answers = {UTF8: "450 grey list"}
    with served(inbox) as port:
        sink = build(config(port, to=ADDRESSED))
        first = sink.send(MESSAGE)
        inbox.rcpt_answers = {}
        second = sink.send(dataclasses.replace(MESSAGE, progress=first.progress))

    assert (first.result, second.result) == ("retry", "delivered")
    assert [to for to, _ in inbox.mails][1:] == [[UTF8]]


@pytest.mark.parametrize(
    "address", ["a@münchen..example", "a@-ü.example", "a@" + "ü" * 80 + ".example"]
)
def test_an_address_without_a_valid_domain_is_refused(address: str) -> None:
    """When the plan is read."""
    with pytest.raises(ValueError, match="no valid domain"):
        config(to=(address,))


def test_preflight_says_that_a_server_does_not_answer() -> None:
    """With its address and what to do; the plan's own lab needs none."""
    port = free_port()

    key, (trouble,) = preflight(config(port, timeout=SECOND_NS))

    assert key == "host"
    assert trouble.startswith(f"the mail server 127.0.0.1:{port} does not answer: ")
    assert preflight(config(host="")) == ("host", [])


def test_preflight_sends_nothing_and_names_recipients_that_cannot_be_reached() -> None:
    """Of a server that answers."""
    inbox = Inbox()
    with served(inbox, has_utf8=False) as port:
        key, (trouble,) = preflight(config(port, to=ADDRESSED))
    with served(inbox) as port:
        assert preflight(config(port, to=ADDRESSED)) == ("host", [])

    assert key == "to"
    assert f"cannot send to {UTF8} (no SMTPUTF8)" in trouble
    assert inbox.mails == []


def test_only_deferred_recipients_get_the_second_try() -> None:
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
def test_the_result_covers_the_recipients_of_all_tries(
    first: dict[str, int], then: dict[str, int], expected: tuple[str, str]
) -> None:
    """A mail is delivered when one recipient has it; refused recipients are named at the end."""
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
    """Accepts the mail, or not, and closes the connection before it replies."""

    async def handle_DATA(self, server: Any, session: object, envelope: Any) -> str:  # noqa: N802  # the library's
        answer = await super().handle_DATA(server, session, envelope)
        server.transport.abort()
        return answer


def test_a_recipient_that_left_the_plan_is_not_tried() -> None:
    nowhere = MailSink(config(port=1, to=("a@example.org",)))
    progress = '{"done": ["a@example.org"], "refused": {}}'

    assert nowhere.send(Message("k", "s", "t", progress=progress)).result == "delivered"


def test_a_mail_without_a_reply_may_have_arrived() -> None:
    inbox = HangingUp()
    with served(inbox) as port:
        outcome = build(config(port)).send(MESSAGE)

    assert len(inbox.mails) == 1
    assert (outcome.result, outcome.progress, outcome.may_have_arrived) == ("retry", "", True)
    assert f"127.0.0.1:{port}: " in outcome.detail


def test_a_server_that_closes_at_one_recipient_does_not_keep_the_mail_from_the_others() -> None:
    """421 to the second recipient, after the first was accepted and before the third was asked for."""
    inbox, to = Inbox(), tuple(f"{name}@example.org" for name in "abc")
    with served(inbox) as port:
        sink = build(config(port=port, to=to))
        inbox.rcpt_answers = {"b@example.org": "421 busy"}
        first = sink.send(MESSAGE)
        inbox.rcpt_answers = {}
        second = sink.send(dataclasses.replace(MESSAGE, progress=first.progress))

    assert (first.result, first.detail) == ("retry", "b@example.org: 421 busy")
    assert first.may_have_arrived
    assert second.result == "delivered"
    assert [sent for sent, _ in inbox.mails] == [
        ["a@example.org", "c@example.org"],
        ["b@example.org"],
    ]


def test_a_server_that_closes_at_every_recipient_is_left_alone_for_now() -> None:
    """After a few connections: nobody has the mail, and each is named once."""
    inbox, to = Inbox(), tuple(f"{name}@example.org" for name in "abcdefgh")
    inbox.rcpt_answers = dict.fromkeys(to, "421 closing")
    with served(inbox) as port:
        outcome = build(config(port=port, to=to)).send(MESSAGE)

    assert (outcome.result, outcome.may_have_arrived) == ("retry", False)
    assert outcome.detail.count("@example.org: 421") == len(to)
    assert inbox.mails == []


def test_hostile_names_stay_text() -> None:
    """Mail programs run markup."""
    mail = compose(config(), dataclasses.replace(MESSAGE, text="<script>&</script>", html=""))
    html = mail.get_body(("html",))

    assert html is not None
    assert "&lt;script&gt;&amp;&lt;/script&gt;" in html.get_content()


@pytest.fixture(scope="module")
def own_certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return certificate(tmp_path_factory.mktemp("certificate"))


@pytest.fixture
def secure(own_certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return the settings of a server that requires TLS and a password."""
    monkeypatch.setenv("SMTP_PASSWORD", "correct horse")
    return {
        "security": "starttls",
        "ca_file": str(own_certificate[0]),
        "username": "soakd",
        "password": "${env:SMTP_PASSWORD}",
    }


@contextmanager
def closed(inbox: Inbox, files: tuple[Path, Path], **other: Any) -> Iterator[int]:
    """A server that accepts mail only over TLS and after a login."""

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


@pytest.mark.long
def test_a_server_that_requires_tls_and_a_password_gets_both(
    own_certificate: tuple[Path, Path], secure: dict[str, Any]
) -> None:
    inbox = Inbox()
    with closed(inbox, own_certificate) as port:
        outcome = build(config(port, **secure)).send(MESSAGE)

    assert outcome.result == "delivered"
    assert len(inbox.mails) == 1


@pytest.mark.long
def test_a_wrong_password_is_retried(
    own_certificate: tuple[Path, Path], secure: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """535 is permanent for the connection, not for the mail; the secret is not in the reason."""
    inbox = Inbox()
    with closed(inbox, own_certificate) as port:
        monkeypatch.setenv("SMTP_PASSWORD", "wrong horse")
        outcome = build(config(port, **secure)).send(MESSAGE)
        monkeypatch.delenv("SMTP_PASSWORD")
        missing = build(config(port, **secure)).send(MESSAGE)

    assert (outcome.result, outcome.detail[:3]) == ("retry", "535")
    assert "horse" not in outcome.detail
    assert (missing.result, "SMTP_PASSWORD" in missing.detail) == ("retry", True)


def test_a_password_that_cannot_be_sent_is_retried(
    own_certificate: tuple[Path, Path], secure: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The secret is not in the reason."""
    monkeypatch.setenv("SMTP_PASSWORD", "Pferdestärke")
    with closed(Inbox(), own_certificate) as port:
        outcome = build(config(port, **secure)).send(MESSAGE)

    assert (outcome.result, "ASCII" in outcome.detail) == ("retry", True)
    assert "Pferd" not in outcome.detail


def test_a_server_with_an_untrusted_certificate_gets_nothing(
    own_certificate: tuple[Path, Path], secure: dict[str, Any]
) -> None:
    inbox = Inbox()
    with closed(inbox, own_certificate) as port:
        outcome = build(config(port, **{**secure, "ca_file": ""})).send(MESSAGE)

    assert outcome.result == "retry"
    assert "CERTIFICATE_VERIFY_FAILED" in outcome.detail
    assert inbox.mails == []


def test_a_server_that_offers_no_tls_gets_nothing(secure: dict[str, Any]) -> None:
    """The offer may have been removed on the way."""
    inbox = Inbox()
    with served(inbox) as port:
        outcome = build(config(port, **secure)).send(MESSAGE)

    assert (outcome.result, "STARTTLS" in outcome.detail) == ("retry", True)
    assert inbox.mails == []


def test_tls_from_the_first_byte(
    own_certificate: tuple[Path, Path], secure: dict[str, Any]
) -> None:
    """Port 465, see RFC 8314."""
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


def test_a_server_that_greets_with_a_refusal_is_retried() -> None:
    """It has not seen the mail: RFC 5321, 3.1."""
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


def test_a_host_name_outside_ascii_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "bücher")
    inbox = Inbox()
    with served(inbox) as port:
        outcome = build(config(port)).send(MESSAGE)

    assert (outcome.result, len(inbox.mails)) == ("delivered", 1)


def test_a_server_that_refuses_our_host_name_is_retried() -> None:
    """It has not seen the mail."""
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


def test_unknown_recipients_are_refused_and_named() -> None:
    inbox = Inbox()
    with served(inbox) as port:
        inbox.rcpt_answers = {"a@example.org": "550 who"}
        one = build(config(port)).send(MESSAGE)
        inbox.rcpt_answers["b@example.org"] = "550 who"
        all_ = build(config(port)).send(MESSAGE)

    assert (one.result, one.detail) == ("delivered", "a@example.org: 550 who")
    assert all_.result == "never"


def test_a_refused_connection_is_retried() -> None:
    """The reason names the server."""
    port = free_port()

    outcome = build(config(port)).send(MESSAGE)

    assert (outcome.result, outcome.may_have_arrived) == ("retry", False)
    assert f"127.0.0.1:{port}" in outcome.detail


def test_a_server_that_does_not_reply_is_retried() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        outcome = build(config(port, timeout="100ms")).send(MESSAGE)

    assert outcome.result == "retry"


def test_a_server_that_sends_byte_by_byte_is_cut_off() -> None:
    is_over = threading.Event()

    def dribble(server: socket.socket) -> None:
        client, _ = server.accept()
        with client, contextlib.suppress(OSError):
            while not is_over.wait(0.01):
                client.sendall(b"220-hold on\r\n")

    with socket.create_server(("127.0.0.1", 0)) as server:
        answerer = threading.Thread(target=dribble, args=(server,))
        answerer.start()
        sink = MailSink(config(server.getsockname()[1]), deadline_seconds=0.2)
        outcome = sink.send(MESSAGE)
        is_over.set()
        answerer.join()

    assert (outcome.result, "not finished after 0.2 s" in outcome.detail) == ("retry", True)


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
    with pytest.raises(ValueError, match=r"to|address|port|timeout|password|security"):
        config(**wrong)


def test_a_mail_needs_a_server() -> None:
    with pytest.raises(PlanError, match="host"):
        build(config(host=""))
