"""The message about the end of a run: sent once, with what the report says."""

from __future__ import annotations

import json
import os
import sqlite3
import threading
from contextlib import ExitStack
from dataclasses import replace
from email import message_from_bytes
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from soak.alerting.document import COLUMNS
from soak.alerting.heartbeat import read_notices
from soak.app.outcome import send_pending
from soak.core.clock import SystemClock
from soak.lab.lab import Lab
from soak.lab.mailbox import Mailbox
from soak.store.findings.store import FindingsFile, FindingsStore
from soak.store.run_folder import read_run
from spark.report.job import queue_end
from tests.support.alerting.daemon import DELIVERED, RUN, AlertWorld, FakeSink
from tests.support.fakes import FakeClock

SINKS = "sinks: {mail: {to: [a@example.org], host: mail.example.org}}"


class SinkWithoutDigests(FakeSink):
    wants_digests = False


def incident(found: str) -> dict[str, object]:
    return {
        "is_about_cluster": True,
        "found": found,
        "at": "2026-11-27T03:12:41Z",
        "cause": "drive_gc",
        "suspect": "b2:9092",
        "state": "gone",
        "what": "publish latency p99 stepped from 4 ms to 60 ms",
    }


def ended_world(path: Path) -> AlertWorld:
    """Return a run that has ended, with its report and nothing pending."""
    world = AlertWorld(path, DELIVERED, state="gone").without_charts()
    world.change_plan(SINKS)
    for _ in range(3):
        world.daemon().poll()
    world.sink.messages.clear()
    world.end_run()
    world.folder.summary.parent.mkdir(exist_ok=True)
    body = {
        "verdict": "regressed",
        "headline": "Regressed: publish latency p99 stepped.",
        "findings": [incident("both"), incident("offline")],
        "objectives": [
            {
                "objective": "p99.9 end-to-end <= 500ms for 99.5% of minutes",
                "unit": "minutes",
                "state": "kept",
                "budget_left": 10.8,
            }
        ],
        "audit": {"lost": 0},
        "soak": {
            "seconds": 129_000,
            "sent_per_second": 50_000.0,
            "received_per_second": None,
            "availability": 0.99999,
            "latency_seconds": {
                "publish": {"p50": 0.0023, "p99": 0.6, "p99.9": 3.5, "max": 26.0},
                "end_to_end": {"p50": None, "p99": None, "p99.9": None, "max": None},
            },
        },
        "coverage": {"seconds": 129_600, "ratio": 0.9999},
    }
    world.folder.summary.write_text(json.dumps(body))
    return world


@pytest.mark.long
def test_it_lists_what_only_the_offline_analysis_found_and_is_sent_once(tmp_path: Path) -> None:
    """Though the report is made twice."""
    world = ended_world(tmp_path)
    for _ in range(2):
        queue_end(world.folder, read_run(world.folder), world.clock)
        world.daemon().deliver()

    (message,) = world.sink.messages
    assert message.subject == "[soakd] run ended: regressed, 2 incidents - synthetic"
    assert "incidents 2, 1 of them only in the offline analysis of the whole run" in message.text
    assert "  - 2026-11-27 03:12:41Z, drive GC (b2:9092), resolved, only in the offline" in (
        message.text
    )
    assert "lost      0 messages" in message.text
    assert "objective kept, budget 10.8 minutes left: p99.9 end-to-end" in message.text
    assert "covered   99.99% of 36 h" in message.text
    lines = [one for one in message.text.splitlines() if not one.startswith("report")]
    assert max(map(len, lines)) <= COLUMNS


@pytest.mark.long
def test_it_is_the_head_of_the_report_with_numbers_a_chart_and_a_link(tmp_path: Path) -> None:
    """The mail is complete where images are not shown: the chart repeats what the text says."""
    world = ended_world(tmp_path)
    world.change_plan(
        f"{SINKS}\nalerts: {{report_url: 'https://soak.example.org/{{run}}/?a=1&b=2'}}"
    )
    overview = {
        "start_wall_ns": world.clock.wall_ns(),
        "step_seconds": 600,
        "k": [0, 600, 1200],
        "p99_seconds": {"publish": [0.004, 0.06, None], "end_to_end": [None, None, None]},
        "incidents": [[600, 1200]],
    }
    world.folder.overview.write_text(json.dumps(overview))
    queue_end(world.folder, read_run(world.folder), world.clock)
    world.daemon().deliver()

    (message,) = world.sink.messages
    assert (message.chart_png or b"").startswith(b"\x89PNG")
    assert "publish        2.3 ms     600 ms      3.5 s       26 s\n" in message.text
    assert "end to end          -          -          -          -\n" in message.text
    assert "rate      50,000/s sent, 99.999% acknowledged" in message.text
    link = f"https://soak.example.org/{RUN}/?a=1&amp;b=2"
    assert f'<a href="{link}"' in (message.html or "")
    assert 'alt="p99 latency over the whole run, incidents shaded"' in (message.html or "")


def test_it_is_sent_although_openings_have_reached_the_hourly_limit(tmp_path: Path) -> None:
    """After the openings that may be sent, and before what is resolved."""
    world = ended_world(tmp_path)
    world.change_plan(f"{SINKS}\nalerts: {{max_per_hour: 2}}")
    world.clock.advance(3601)
    world.end_run()
    for number in range(3):
        world.save("confirmed", key=f"{RUN}-{200 + number}")
    queue_end(world.folder, read_run(world.folder), world.clock)
    world.daemon().deliver()

    first, second, end = world.sink.messages
    assert [one.key for one in (first, second)] == [f"{RUN}-{200 + at}.confirmed" for at in (0, 1)]
    assert end.subject.startswith("[soakd] run ended: ")


@pytest.mark.long
def test_it_is_queued_again_while_another_process_has_the_findings(tmp_path: Path) -> None:
    world = ended_world(tmp_path)
    other = sqlite3.connect(world.folder.findings)
    other.execute("BEGIN EXCLUSIVE")

    class Clock(FakeClock):
        """The other process ends while we wait."""

        def sleep_until(self, mono_ns: int) -> None:
            super().sleep_until(mono_ns)
            other.close()

    queue_end(world.folder, read_run(world.folder), Clock(wall_ns=world.clock.wall_ns()))

    with FindingsStore(world.folder.findings) as store:
        assert [one.kind for one in store.open_notifications()] == ["ended"]


def test_it_reaches_the_mail_server_of_a_lab_whose_brokers_have_stopped(tmp_path: Path) -> None:
    """The report, which it needs, is made when the cluster is not needed any more."""
    did: list[str] = []
    arrived: list[bytes] = []
    mailbox = Mailbox(arrived.append)
    broker: Any = SimpleNamespace(stop=lambda: did.append("stopped"))
    lab = Lab(tmp_path, broker, mailbox, {})
    world = ended_world(tmp_path)
    mailbox.start()
    try:
        server = f"host: {mailbox.host}, port: {mailbox.port}"
        world.change_plan(f"lab: {{}}\nsinks: {{mail: {{to: [a@example.org], {server}}}}}")
        os.utime(world.folder.run_json)
        lab.stop_cluster()
        queue_end(world.folder, read_run(world.folder), SystemClock())
        send_pending(world.folder, threading.Event(), did.append)
    finally:
        lab.stop()

    (mail,) = map(message_from_bytes, arrived)
    assert mail["Subject"].startswith("[soakd lab] run ended: regressed, 2 incidents")
    assert did == ["stopped", "stopped"]


def test_it_is_sent_from_a_host_without_the_report(tmp_path: Path) -> None:
    """Where findings are in a cluster, another daemon may have the outbox; and it is no notice."""
    world = ended_world(tmp_path)
    queue_end(world.folder, read_run(world.folder), world.clock)
    world.folder.summary.unlink()
    world.daemon().deliver()

    (message,) = world.sink.messages
    assert message.subject == "[soakd] run ended: regressed, 2 incidents - synthetic"
    assert read_notices(FindingsFile(world.folder.findings)) == []


def test_a_run_that_goes_on_or_was_interrupted_or_ended_long_ago_has_none(tmp_path: Path) -> None:
    world = ended_world(tmp_path)
    text = world.folder.run_json.read_text()
    for state in ("running", "interrupted", "failed"):
        world.folder.run_json.write_text(text.replace('"ended"', f'"{state}"'))
        os.utime(world.folder.run_json, ns=(world.clock.wall_ns(), world.clock.wall_ns()))
        queue_end(world.folder, read_run(world.folder), world.clock)
    world.end_run()
    world.clock.advance(2 * 86_400)
    queue_end(world.folder, read_run(world.folder), world.clock)

    with FindingsStore(world.folder.findings) as store:
        assert store.open_notifications() == []


def test_a_low_rate_is_not_zero(tmp_path: Path) -> None:
    """A canary sends a message a minute."""
    world = ended_world(tmp_path)
    body = json.loads(world.folder.summary.read_text())
    body["soak"] |= {"sent_per_second": 0.017, "received_per_second": 0.433}
    world.folder.summary.write_text(json.dumps(body))
    queue_end(world.folder, read_run(world.folder), world.clock)
    world.daemon().deliver()

    (message,) = world.sink.messages
    assert "0.017/s sent, 0.433/s received" in message.text


def test_a_report_that_was_begun_before_the_end_queues_none(tmp_path: Path) -> None:
    """It would say of a part of the run that it is the whole."""
    world = ended_world(tmp_path)

    queue_end(world.folder, replace(read_run(world.folder), state="running"), world.clock)

    with FindingsStore(world.folder.findings) as store:
        assert store.open_notifications() == []


@pytest.mark.long
def test_a_sink_for_single_alerts_and_an_unknown_report_are_no_reason_to_try_again(
    tmp_path: Path,
) -> None:
    """A program of before, which left what the message says in the report alone, queued the second."""
    world = ended_world(tmp_path)
    world.sink = SinkWithoutDigests(world.clock, DELIVERED)
    queue_end(world.folder, read_run(world.folder), world.clock)
    world.daemon().deliver()
    with FindingsStore(world.folder.findings) as store:
        is_open_after_first = bool(store.open_notifications())

    other = ended_world(tmp_path / "other")
    with FindingsStore(other.folder.findings) as store:
        store.queue_end(RUN, "", ["mail"], other.clock.wall_ns())
    other.folder.summary.unlink()
    with ExitStack() as stack:
        other.after_run(other.sink, stack).poll()
    with FindingsStore(other.folder.findings) as store:
        is_open_after_second = bool(store.open_notifications())

    assert (world.sink.messages, other.sink.messages) == ([], [])
    assert (is_open_after_first, is_open_after_second) == (False, False)
