"""Findings as alerts of Alertmanager: the posts, and the replies."""

from __future__ import annotations

import base64
import socket
import ssl
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from soak.core.ports import RepeatingSink
from soak.core.units import SECOND_NS
from soak.sinks.webhook import Config, WebhookSink, alert_of, build, preflight
from tests.support.alerting.alert_receiver import BEGIN, LABELS, Receiver, message
from tests.support.certificate import certificate
from tests.support.fakes import FakeClock
from tests.support.pages import serving


def test_a_finding_is_an_alert_with_its_own_labels() -> None:
    """Labels identify the finding; the text that may change is in the annotations."""
    receiver = Receiver()
    with serving(receiver.handler) as url:
        config = Config(url=f"{url}/prefix/", labels={"team": "x"})
        outcome = WebhookSink(config, FakeClock(wall_ns=BEGIN)).send(message())

    ((path, authorization, (alert,)),) = receiver.posts
    assert outcome.result == "delivered"
    assert (path, authorization) == ("/prefix/api/v2/alerts", None)
    assert alert == {
        "labels": {"alertname": "SoakFinding", "severity": "warning", "team": "x", **LABELS},
        "annotations": {
            "summary": "p99 end-to-end latency confirmed",
            "description": "what 4.1 ms -> 61 ms\n",
        },
        "startsAt": "2026-09-21T14:13:20.000+00:00",
        "endsAt": "2026-09-21T14:28:20.000+00:00",
    }


def test_open_findings_are_sent_again_in_one_post() -> None:
    """Each with its own labels, and an end that moves with the clock."""
    receiver, clock = Receiver(), FakeClock(wall_ns=BEGIN + 3600 * SECOND_NS)
    with serving(receiver.handler) as url:
        sink = WebhookSink(Config(url=url), clock)
        outcome = sink.send_again([message(), message()])

    ((_, _, alerts),) = receiver.posts
    assert outcome.result == "delivered"
    assert [alert["endsAt"] for alert in alerts] == ["2026-09-21T15:28:20.000+00:00"] * 2
    assert isinstance(sink, RepeatingSink)


def test_the_runbook_is_an_annotation_where_the_message_has_one() -> None:
    """Not a label: it names the cause, which may be corrected while the alert stays the same."""
    config = Config(url="http://127.0.0.1:9093")
    page = "https://wiki.example.org/causes#drive_gc"

    bare, linked = (
        alert_of(config, replace(message(), runbook_url=url), BEGIN) for url in ("", page)
    )

    assert bare["labels"] == linked["labels"]
    assert linked["annotations"] == {**bare["annotations"], "runbook_url": page}  # type: ignore[dict-item]


def test_a_resolved_finding_ends_its_alert() -> None:
    config = Config(url="http://127.0.0.1:9093")
    first = alert_of(config, message(), BEGIN)
    last = alert_of(config, message("gone", end_ns=BEGIN + 60 * SECOND_NS), BEGIN)

    assert last["labels"] == first["labels"]
    assert last["endsAt"] == "2026-09-21T14:14:20.000+00:00"


@pytest.mark.parametrize("end_ns", [None, BEGIN - 3601 * SECOND_NS])
def test_an_alert_begins_before_its_end_after_a_clock_was_set_back(end_ns: int | None) -> None:
    """Alertmanager refuses any other for good."""
    now_ns = BEGIN - 3600 * SECOND_NS
    alert = alert_of(Config(url="http://127.0.0.1:9093"), message(end_ns=end_ns), now_ns)
    begin, end = (datetime.fromisoformat(str(alert[name])) for name in ("startsAt", "endsAt"))

    assert begin <= min(end, datetime.fromtimestamp(now_ns / SECOND_NS, UTC))


@pytest.mark.parametrize(
    ("status", "result"),
    [(200, "delivered"), (202, "delivered"), (400, "never"), (422, "never")]
    + [(status, "retry") for status in (401, 403, 404, 429, 500, 503)],
)
def test_the_status_code_decides_whether_to_retry(status: int, result: str) -> None:
    with serving(Receiver(status, b'"why\n\nso"').handler) as url:
        outcome = build(Config(url=url)).send(message())

    assert (outcome.result, outcome.detail) == (result, f'{status} "why so"')


@pytest.mark.parametrize(
    ("location", "where"),
    [
        ("https://me:swordfish@alerts.example/swordfish?fish", "https://alerts.example,"),
        ("/login?swordfish", "another path,"),
    ],
)
def test_a_redirect_is_not_followed_and_the_reason_says_where_it_leads(
    location: str, where: str
) -> None:
    """Without the path, which may hold a token; it is tried again, for an address can be corrected."""
    with serving(Receiver(308, headers={"Location": location}).handler) as url:
        config = Config(url=url)
        outcome = build(config).send(message())
        key, (fault,) = preflight(config)

    assert (outcome.result, key) == ("retry", "url")
    assert f"redirects to {where}" in outcome.detail
    assert f"redirects to {where}" in fault
    assert "fish" not in outcome.detail + fault


@pytest.mark.parametrize(("status", "faults"), [(200, 0), (401, 0), (405, 0), (404, 1), (503, 1)])
def test_the_check_says_what_would_not_take_alerts(status: int, faults: int) -> None:
    """No secret is sent by it, so that one is required is no fault."""
    with serving(Receiver(status).handler) as url:
        _, found = preflight(Config(url=url))

    assert [str(status) in fault for fault in found] == [True] * faults


def test_basic_authentication_goes_with_each_post_over_tls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOAK_TEST_SECRET", "sword:fish")
    ca, key = certificate(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(ca, key)
    receiver = Receiver()
    with serving(receiver.handler, context) as url:
        config = Config(
            url=url, ca_file=str(ca), username="soakd", password="${env:SOAK_TEST_SECRET}"
        )
        outcome = build(config).send(message())

    ((_, authorization, _),) = receiver.posts
    assert outcome.result == "delivered"
    assert authorization == f"Basic {base64.b64encode(b'soakd:sword:fish').decode()}"


def test_a_refused_connection_is_retried() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

    outcome = build(Config(url=f"http://127.0.0.1:{port}")).send(message())

    assert (outcome.result, f"127.0.0.1:{port}" in outcome.detail) == ("retry", True)
    assert not outcome.may_have_arrived


def test_a_post_without_a_reply_is_retried_and_may_have_arrived() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        config = Config(url=f"http://127.0.0.1:{port}", timeout="100ms")  # type: ignore[arg-type]  # as a plan writes it
        outcome = build(config).send(message())

    assert (outcome.result, outcome.may_have_arrived) == ("retry", True)


@pytest.mark.parametrize("path", ["swordfish", "sword fish"])
def test_the_path_of_the_url_is_never_in_an_error(path: str) -> None:
    """It may hold a token, and errors end in logs and in findings.db."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
        config = Config(url=f"{address}/{path}", timeout="100ms")  # type: ignore[arg-type]  # as a plan writes it
        outcome = build(config).send(message())

    assert outcome.detail.startswith(f"{address} ")
    assert "fish" not in outcome.detail


@pytest.mark.parametrize(
    "wrong",
    [
        {"url": "alertmanager:9093"},
        {"url": "ftp://h"},
        {"url": "http://me:secret@h"},
        {"url": "https://h", "token": "secret"},
        {"url": "http://h", "token": "${env:X}"},
        {"url": "https://h", "username": "me", "password": "secret"},
        {"url": "http://h", "username": "me", "password": "${env:X}"},
        {"url": "https://h", "username": "me:you", "password": "${env:X}"},
        {"url": "https://h", "password": "${env:X}"},
        {"url": "https://h", "username": "me", "password": "${env:X}", "token": "${env:X}"},
        {"url": "http://h", "labels": {"a-b": "c"}},
        {"url": "http://h", "timeout": 0},
        {"url": "http://h", "timeout": 61 * SECOND_NS},
        {"url": "http://h", "resolve_timeout": 60 * SECOND_NS},
        {"url": "http://h:99999"},
        {"url": "http://h:abc"},
        {"url": "https://h/x?tenant=a"},
        {"url": "https://h/x#secret"},
    ],
)
def test_a_wrong_configuration_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"url|token|username|password|labels|timeout"):
        Config(**wrong)


@pytest.mark.parametrize(("kept", "is_sendable"), [("swordfish\n\n", True), ("sword\nfish", False)])
def test_a_token_is_never_in_an_error(tmp_path: Path, *, kept: str, is_sendable: bool) -> None:
    """A token that no header can hold is refused by name; line breaks at the end of its file are ignored."""
    file = tmp_path / "token"
    file.write_text(kept)

    outcome = build(Config(url="https://127.0.0.1:1", token=f"${{file:{file}}}")).send(message())

    assert "fish" not in outcome.detail
    assert ("header" not in outcome.detail) == is_sendable
