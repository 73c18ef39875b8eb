"""The plan file may change sinks and alerts while a run goes on."""

from __future__ import annotations

import logging
import os
import threading
from pathlib import Path

import pytest

from soak.alerting import daemon
from soak.alerting.daemon import AlertDaemon, with_notification_settings
from soak.core.plan import text as plan_text
from soak.core.plan.phases import decision_line
from soak.core.plan.plan import Plan
from soak.core.units import SECOND_NS
from soak.store.findings.outbox import SETTLE_LIMIT_NS
from soak.store.findings.store import FindingsStore
from soak.store.run_folder import read_run
from tests.support.alerting.daemon import DELIVERED, RUN, AlertWorld, FakeSink
from tests.support.alerting.findings import finding
from tests.support.alerting.mail_server import Inbox, free_port, served
from tests.support.fakes import FakeClock
from tests.support.paths import ROOT

BEGUN = """
name: p
broker: {kafka: {bootstrap_servers: 'h:1'}}
load: {rate: 7/s}
sinks: {mail: {to: [old@example.org], host: mail.example.org}}
"""
MENDED = """
name: p
broker: {kafka: {}, pulsar: {}, nobody knows: {}}
load: {rate: fast}
sinks: {mail: {to: [new@example.org], host: mx.example.org}}
alerts: {maintenance: [{cron: 0 2 * * sun, length: 2h}]}
"""


def plan_of(text: str) -> Plan:
    return plan_text.load(text, "p.yaml").plan


def with_settings(tmp_path: Path, text: str) -> Plan:
    path = tmp_path / "p.yaml"
    path.write_text(text)
    return with_notification_settings(path, plan_of(BEGUN))


def test_only_sinks_and_alerts_of_the_file_count(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The rest may be meant for the next run; a log line says where the settings come from."""
    with caplog.at_level(logging.INFO):
        plan = with_settings(tmp_path, MENDED)

    assert plan.sinks["mail"].to == ("new@example.org",)
    assert plan.alerts.maintenance[0].length == 2 * 3600 * SECOND_NS
    assert (plan.load, plan.broker) == (plan_of(BEGUN).load, plan_of(BEGUN).broker)
    assert f"notification_settings_used file={tmp_path / 'p.yaml'} sinks=mail" in caplog.messages


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (MENDED.replace("name: p", "name: q"), "p.yaml:2: name: is not p, the plan of this run"),
        (MENDED.replace("name: p", ""), "name: is missing"),
        (MENDED.replace("mail:", "fax:"), "p.yaml:5: sinks.fax: unknown sink"),
        (MENDED.replace("host:", "hots: x, host:"), "p.yaml:5: sinks.mail.hots: unknown key"),
        (MENDED.replace("new@example.org", "new"), "is not a mail address"),
        (MENDED.replace(", host: mx.example.org", ""), "p.yaml:5: sinks.mail.host: names no"),
        (MENDED.replace("0 2 * * sun", "soon"), "p.yaml:6: alerts.maintenance.0.cron: 'soon'"),
        (MENDED.replace("sinks: {mail", "other: {mail"), "p.yaml:1: sinks: names no sink"),
        ("[]", "a plan is a mapping"),
        ("a: [", "not YAML"),
    ],
)
def test_an_unusable_file_changes_nothing(
    text: str, why: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The settings that the run began with stay, and a log line says why."""
    plan = with_settings(tmp_path, text)

    assert plan == plan_of(BEGUN)
    (line,) = caplog.messages
    assert line.startswith("notification_settings_rejected ")
    assert why in line


def test_a_missing_file_changes_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert with_notification_settings(tmp_path / "none.yaml", plan_of(BEGUN)) == plan_of(BEGUN)
    assert "cannot read the plan" in caplog.text
    assert with_notification_settings(None, plan_of(BEGUN)) == plan_of(BEGUN)


def test_a_file_that_is_larger_than_any_is_not_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "p.yaml"
    path.touch()
    os.truncate(path, 2**27)  # a hole, no disk

    assert with_notification_settings(path, plan_of(BEGUN)) == plan_of(BEGUN)
    assert "cannot read the plan" in caplog.text


def test_a_removed_sink_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Its pending messages are dropped, which may not be intended."""
    hook = MENDED.replace("mail: {to: [new@example.org], host: mx.example.org}", "HOOK")
    with_settings(tmp_path, hook.replace("HOOK", "webhook: {url: 'http://h:9093'}"))

    assert "sink_removed sink=mail pending_messages='dropped'" in caplog.messages


def test_pending_messages_go_to_a_corrected_address_after_a_restart(tmp_path: Path) -> None:
    """The plan of the run names a server that does not exist."""
    world = AlertWorld(tmp_path, DELIVERED).without_charts()
    wrong = f"sinks: {{mail: {{to: [old@example.org], host: 127.0.0.1, port: {free_port()}}}}}"
    world.change_plan(wrong)
    world.folder.phases.write_text(decision_line("soak", 0))
    stop, path = threading.Event(), tmp_path / "synthetic.yaml"
    stop.set()
    inbox = Inbox()
    with served(inbox) as port:
        path.write_text(
            f"name: synthetic\nsinks: {{mail: {{to: [new@example.org], host: 127.0.0.1, port: {port}}}}}\n"
        )
        daemon.run(world.folder.path, stop, world.clock, path)

    assert [to for to, _ in inbox.mails] == [["new@example.org"]]
    assert world.states() == [("opened", "sent")]


class AddedSinkWorld:
    """A run that began with `mail` alone, and an alert daemon with a second sink."""

    def __init__(self, path: Path) -> None:
        self.world = AlertWorld(path, DELIVERED).without_charts()
        self.clock: FakeClock = self.world.clock
        self.hook = FakeSink(self.clock, DELIVERED)
        self.run = read_run(self.world.folder)

    def daemon(self) -> AlertDaemon:
        plan = plan_text.load(self.world.folder.plan.read_text(), "p").plan
        sinks = {"mail": self.world.sink, "webhook": self.hook}
        return AlertDaemon(self.world.folder, plan, self.run, sinks, self.clock, added=("webhook",))

    def rounds(self, daemon: AlertDaemon, seconds: int) -> None:
        for _ in range(seconds):
            daemon.poll()
            self.clock.advance(1)

    def subjects(self) -> list[str]:
        return [message.key.partition(".")[2] for message in self.hook.messages]


@pytest.mark.long
def test_an_added_sink_gets_open_and_later_findings(tmp_path: Path) -> None:
    """Findings that were resolved before it was added are not sent to it."""
    two = AddedSinkWorld(tmp_path)
    with FindingsStore(two.world.folder.findings) as store:
        over = finding("gone", key="synthetic-1-7", run=RUN, resolved_k=9)
        store.save_finding(over, ["mail"], two.clock.wall_ns())
    two.clock.step_wall((two.run.start_wall_ns - two.clock.wall_ns()) / SECOND_NS + 140)
    daemon = two.daemon()
    two.rounds(daemon, 10)
    lasting = [message.key for message in two.hook.messages]
    two.world.save("confirmed", key="synthetic-1-200")
    two.rounds(daemon, 10)
    two.world.save("gone", key="synthetic-1-130")
    two.rounds(daemon, SETTLE_LIMIT_NS // SECOND_NS + 10)

    assert [key.partition(".")[0] for key in lasting] == ["synthetic-1-130"]
    assert [message.key for message in two.hook.messages[1:]] == [
        "synthetic-1-200.confirmed",
        "synthetic-1-130.gone",
    ]


def test_the_shutdown_sends_to_an_added_sink_too(tmp_path: Path) -> None:
    two = AddedSinkWorld(tmp_path)
    two.clock.step_wall((two.run.start_wall_ns - two.clock.wall_ns()) / SECOND_NS + 140)
    two.world.folder.phases.write_text(decision_line("soak", 0) + decision_line("end", 130))
    daemon = two.daemon()
    daemon.shut_down()
    daemon.shut_down()

    assert two.subjects() == ["confirmed"]


def test_the_units_name_the_file() -> None:
    root = ROOT / "systemd"
    for name in ("soak-alert@.service", "soak-pending@.service"):
        assert " --sinks-from /etc/soak/%i.yaml\n" in (root / name).read_text()
