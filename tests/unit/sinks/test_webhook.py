"""Findings as alerts of Alertmanager: the posts, the replies, and a real Alertmanager."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from soak.core.ports import Message, RepeatingSink
from soak.core.units import SECOND_NS
from soak.service import children
from soak.sinks.webhook import Config, WebhookSink, alert_of, build
from tests.support.alert_receiver import Receiver
from tests.support.fakes import FakeClock
from tests.support.pages import serving

BEGIN = 1_790_000_000 * SECOND_NS
LABELS = {"finding": "r1-130", "plan": "demo", "run": "r1", "metric": "m", "source": "s@h"}
ALERTMANAGER = shutil.which("prometheus-alertmanager") or os.environ.get("ALERTMANAGER", "")


def message(kind: str = "confirmed", begin_ns: int = BEGIN, end_ns: int | None = None) -> Message:
    return Message(
        key=f"r1-130.{kind}",
        subject=f"p99 end-to-end latency {kind}",
        text="what 4.1 ms -> 61 ms\n",
        at_wall_ns=begin_ns + SECOND_NS,
        labels=LABELS,
        begin_wall_ns=begin_ns,
        end_wall_ns=end_ns,
    )


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
    [(200, "delivered"), (202, "delivered"), (400, "never"), (422, "never"), (301, "retry")]
    + [(status, "retry") for status in (401, 403, 404, 429, 500, 503)],
)
def test_the_status_code_decides_whether_to_retry(status: int, result: str) -> None:
    with serving(Receiver(status, b'"why\n\nso"').handler) as url:
        outcome = build(Config(url=url)).send(message())

    assert (outcome.result, outcome.detail) == (result, f'{status} "why so"')


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


@pytest.mark.parametrize(
    "wrong",
    [
        {"url": "alertmanager:9093"},
        {"url": "ftp://h"},
        {"url": "http://me:secret@h"},
        {"url": "https://h", "token": "secret"},
        {"url": "http://h", "token": "${env:X}"},
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
    with pytest.raises(ValueError, match=r"url|token|labels|timeout"):
        Config(**wrong)


@pytest.fixture
def alertmanager(tmp_path: Path) -> Iterator[str]:
    """A real Alertmanager without receivers."""
    settings = tmp_path / "alertmanager.yml"
    settings.write_text("route: {receiver: nobody}\nreceivers: [{name: nobody}]\n")
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    command = [
        ALERTMANAGER,
        f"--config.file={settings}",
        f"--storage.path={tmp_path / 'kept'}",
        f"--web.listen-address={address}",
        "--cluster.listen-address=",
    ]
    process = subprocess.Popen(children.with_death_signal(command), stderr=subprocess.DEVNULL)
    try:
        yield f"http://{address}"
    finally:
        process.kill()
        process.wait(30)


@pytest.mark.slow
@pytest.mark.skipif(not ALERTMANAGER, reason="no prometheus-alertmanager here")
def test_alertmanager_shows_a_finding_until_it_is_resolved(
    alertmanager: str,
) -> None:
    """Sent twice it is one alert; its end resolves it, and it may come back."""
    sink = build(Config(url=alertmanager))
    now_ns = time.time_ns()
    end = time.monotonic() + 60
    while (outcome := sink.send(message(begin_ns=now_ns))).result == "retry":
        assert time.monotonic() < end, outcome.detail
    sink.send(message(begin_ns=now_ns))
    shown = _alerts(alertmanager)
    gone = sink.send(message("gone", begin_ns=now_ns, end_ns=time.time_ns()))
    after = _alerts(alertmanager)
    set_back = sink.send(message(begin_ns=now_ns + 7200 * SECOND_NS))
    sink.send_again([message(begin_ns=now_ns)])

    (alert,) = shown
    assert alert["status"]["state"] == "active"
    assert {key: alert["labels"][key] for key in LABELS} == LABELS
    assert alert["annotations"]["summary"] == "p99 end-to-end latency confirmed"
    assert (gone.result, set_back.result) == ("delivered", "delivered")
    assert after == []
    assert len(_alerts(alertmanager)) == 1


def _alerts(address: str) -> list[dict[str, Any]]:
    with urlopen(f"{address}/api/v2/alerts?active=true", timeout=10) as answer:
        found: list[dict[str, Any]] = json.loads(answer.read())
    return found


@pytest.mark.parametrize(("kept", "is_sendable"), [("swordfish\n\n", True), ("sword\nfish", False)])
def test_a_token_is_never_in_an_error(tmp_path: Path, *, kept: str, is_sendable: bool) -> None:
    """A token that no header can hold is refused by name; line breaks at the end of its file are ignored."""
    file = tmp_path / "token"
    file.write_text(kept)

    outcome = build(Config(url="https://127.0.0.1:1", token=f"${{file:{file}}}")).send(message())

    assert "fish" not in outcome.detail
    assert ("header" not in outcome.detail) == is_sendable
