"""Direct messages: test messages, failed units, and an alert daemon that keeps crashing."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from soak.app.direct_messages import (
    CRASH_LIMIT,
    Deliveries,
    crash_message,
    failure_message,
    notify_crashes,
    read_deliveries,
    send_to_each,
)
from soak.app.units import rendered_files
from soak.cli.daemons import alert
from soak.cli.main import build
from soak.cli.service import notify_failure
from soak.core.errors import PlanError
from soak.core.ports import Message, Outcome
from soak.core.units import SECOND_NS
from soak.service import restart_backoff
from tests.support.alerting.alert_receiver import Receiver
from tests.support.alerting.mail_server import Inbox, free_port, served
from tests.support.fakes import FakeClock
from tests.support.pages import serving
from tests.unit.service.test_restart_backoff import environment

UNIT = "soak-start@p"
PLAN = """name: p
broker: {{kafka: {{bootstrap_servers: '127.0.0.1:9'}}}}
sinks:
  mail: {{to: [oncall@example.org], host: 127.0.0.1, port: {port}}}
"""
SAID = {
    "MONITOR_SERVICE_RESULT": "exit-code",
    "MONITOR_EXIT_STATUS": "1",
    "MONITOR_INVOCATION_ID": "0123456789abcdef",
}


def test_the_message_names_unit_host_and_how() -> None:
    message = failure_message("p", UNIT, "h1", SAID, 0)

    assert message.subject == "[soakd] soak-start@p failed on h1 - p"
    assert "at 1970-01-01 00:00:00Z: exit-code 1." in message.text
    assert "journalctl -u soak-start@p" in message.text


def test_a_failed_alert_daemon_means_that_findings_are_not_sent() -> None:
    message = failure_message("p", "soak-alert@p", "h1", {**SAID, "MONITOR_EXIT_STATUS": "2"}, 0)

    assert message.subject == "[soakd] findings are not sent, soak-alert@p failed on h1 - p"
    assert "Findings are kept" in message.text
    assert "report" not in message.text


def test_another_try_is_the_same_message() -> None:
    """A receiver recognises by the key that it is no second failure."""
    assert (
        failure_message("p", UNIT, "h1", SAID, 0).key
        == failure_message("p", UNIT, "h1", SAID, 10**12).key
    )


def test_a_message_needs_no_details_from_systemd() -> None:
    assert "soak-start@p failed on h1" in failure_message("p", UNIT, "h1", {}, 0).subject


def test_it_reaches_the_sinks_of_the_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inbox = Inbox()
    for key, value in SAID.items():
        monkeypatch.setenv(key, value)
    with served(inbox) as port:
        (tmp_path / "p.yaml").write_text(PLAN.format(port=port))
        with pytest.raises(typer.Exit) as ended:
            notify_failure(UNIT, tmp_path, tmp_path)

    assert ended.value.exit_code == 0
    assert len(inbox.mails) == 1


def test_a_sink_that_accepted_the_message_gets_it_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A retry goes only to the other sinks; another failure is another message."""
    inbox, away, back = Inbox(), Receiver(500), Receiver()

    def code(life: str, webhook: Receiver) -> object:
        monkeypatch.setenv("MONITOR_INVOCATION_ID", life)
        with served(inbox) as port, serving(webhook.handler) as url:
            (tmp_path / "p.yaml").write_text(
                PLAN.format(port=port) + f"  webhook: {{url: {url}}}\n"
            )
            with pytest.raises(typer.Exit) as ended:
                notify_failure(UNIT, tmp_path, tmp_path)
        return ended.value.exit_code

    codes = [code("1", away), code("1", away), code("1", back)]
    mails, posts = len(inbox.mails), len(back.posts)
    codes.append(code("2", back))

    assert codes == [1, 1, 0, 0]
    assert (mails, posts, len(inbox.mails), len(back.posts)) == (1, 1, 2, 2)
    assert capsys.readouterr().out.count("webhook: retry 500") == 2


def test_the_message_says_when_it_failed_however_late_it_comes(tmp_path: Path) -> None:
    path = tmp_path / "sent.json"
    send_to_each(
        failure_message("p", UNIT, "h1", SAID, 0),
        {"mail": Away()},
        read_deliveries(path, "a", 0),
        path,
    )

    assert read_deliveries(path, "a", 10**12) == Deliveries("a", 0, [], {"mail": "half of them"})
    assert read_deliveries(path, "b", 10**12) == Deliveries("b", 10**12)


def test_a_mail_that_version_0_1_0_sent_is_not_sent_again(tmp_path: Path) -> None:
    """Its record has another name; a record of the present name replaces it."""
    (tmp_path / ".u.told.json").write_text(
        '{"key": "a", "since_wall_ns": 7, "settled": ["mail"], "so_far": {}}'
    )
    path = tmp_path / ".u.sent.json"
    former = read_deliveries(path, "a", 9)
    path.write_text('{"key": "b", "since_wall_ns": 8}')

    assert former == Deliveries("a", 7, ["mail"])
    assert read_deliveries(path, "b", 9) == Deliveries("b", 8)


class Away:
    """A sink that asks for a retry, and notes the recipients that have the message."""

    def send(self, _: Message) -> Outcome:
        return Outcome("retry", "451", "half of them")


@pytest.mark.parametrize(
    ("unit", "status", "mails"),
    [
        ("soak-start@p", "2", 0),
        ("soak-begin@p", "2", 0),
        ("soak-start@p", "1", 1),
        ("soak-report@p", "2", 1),
        ("soak-alert@p", "2", 1),
        ("soak-alert@p", "1", 0),
        ("soak-alert@p", "", 0),
    ],
)
def test_only_failures_that_nobody_sees_are_mailed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unit: str, status: str, mails: int
) -> None:
    """A terminal shows a rejected plan; systemd restarts an alert daemon unless its plan is bad."""
    inbox = Inbox()
    for key, value in {**SAID, "MONITOR_EXIT_STATUS": status}.items():
        monkeypatch.setenv(key, value)
    with served(inbox) as port:
        (tmp_path / "p.yaml").write_text(PLAN.format(port=port))
        with contextlib.suppress(typer.Exit):
            notify_failure(unit, tmp_path, tmp_path)

    assert len(inbox.mails) == mails


def test_units_that_cannot_report_their_own_failure_notify_through_systemd() -> None:
    """The start of a run, its report, and the daemon that watches the other ones."""
    units = {
        place.name: text for place, text in rendered_files().items() if place.suffix == ".service"
    }
    message = [
        name for name, text in units.items() if "OnFailure=soak-notify-failure@%N.service" in text
    ]

    assert set(message) == {"soak-alert@.service", "soak-start@.service", "soak-report@.service"}


DAY_SECONDS = 86400


class Crashing:
    """A service that systemd restarts after each crash."""

    def __init__(self, folder: Path) -> None:
        self.runtime, self.plan = folder / "soak-alert@p", folder / "p.yaml"
        self.runtime.mkdir()
        self.clock = FakeClock()

    def start(self, times: int = 1) -> None:
        for _ in range(times):
            self.clock.advance(2)
            restart_backoff.delay_start(self.clock, environment(self.runtime))
            notify_crashes(Path("no-run"), self.plan, self.clock, environment(self.runtime))


@pytest.fixture
def crashing(tmp_path: Path) -> Crashing:
    return Crashing(tmp_path)


def test_crashes_are_notified_once(crashing: Crashing) -> None:
    inbox = Inbox()
    with served(inbox) as port:
        crashing.plan.write_text(PLAN.format(port=port))
        crashing.start(CRASH_LIMIT)
        before = len(inbox.mails)
        crashing.start(CRASH_LIMIT)

    assert (before, len(inbox.mails)) == (0, 1)
    assert "soak-alert@p keeps crashing" in inbox.mails[0][1]["Subject"]


def test_crashes_of_another_day_are_notified_again(crashing: Crashing) -> None:
    inbox = Inbox()
    with served(inbox) as port:
        crashing.plan.write_text(PLAN.format(port=port))
        for _ in range(2):
            crashing.start(CRASH_LIMIT + 1)
            crashing.clock.advance(DAY_SECONDS)

    assert len(inbox.mails) == 2


def test_an_unavailable_sink_is_tried_at_the_next_start(crashing: Crashing) -> None:
    """A sink that accepted the message does not get it again."""
    inbox, away, back = Inbox(), Receiver(500), Receiver()
    with served(inbox) as port:
        for webhook in (away, back, back):
            with serving(webhook.handler) as url:
                crashing.plan.write_text(PLAN.format(port=port) + f"  webhook: {{url: {url}}}\n")
                crashing.start(CRASH_LIMIT + 1 if webhook is away else 1)

    assert (len(inbox.mails), len(away.posts), len(back.posts)) == (1, 1, 1)


def test_unreadable_sinks_do_not_prevent_a_start(
    crashing: Crashing, caplog: pytest.LogCaptureFixture
) -> None:
    crashing.start(CRASH_LIMIT + 1)

    assert "sinks_unknown" in caplog.text


def test_the_message_about_crashes_says_what_happens_to_findings() -> None:
    message = crash_message("p", "soak-alert@p", "h1", 60 * SECOND_NS)

    assert message.subject == (
        "[soakd] findings are not sent, soak-alert@p keeps crashing on h1 - p"
    )
    assert message.text == (
        "By 1970-01-01 00:01:00Z soak-alert@p on h1 had crashed at 8 starts in a row; systemd restarts it "
        "once a minute.\n"
        "This says nothing about the cluster. The load continues. Findings are kept, and sent as soon as "
        "the alert daemon stays up.\n"
        "Its last log lines: journalctl -u soak-alert@p -n 50\n"
    )


def send_test(folder: Path, sinks: str) -> tuple[int, str]:
    path = folder / "plan.yaml"
    path.write_text(f"name: p\nbroker: {{kafka: {{bootstrap_servers: '127.0.0.1:9'}}}}\n{sinks}")
    done = CliRunner().invoke(build(["alert"]), ["alert", str(path), "--test"])
    return done.exit_code, done.output


def test_every_sink_gets_a_test_message_that_is_no_finding(tmp_path: Path) -> None:
    """The cluster is not asked; the alert resolves by itself."""
    inbox, receiver = Inbox(), Receiver()
    with served(inbox) as port, serving(receiver.handler) as url:
        code, output = send_test(
            tmp_path,
            f"sinks: {{mail: {{to: [a@example.org], host: 127.0.0.1, port: {port}}}, "
            f"webhook: {{url: '{url}'}}}}",
        )

    ((_, mail),), ((_, _, (posted,)),) = inbox.mails, receiver.posts
    assert code == 0, output
    assert "nothing was found" in mail["Subject"]
    assert posted["labels"]["severity"] == "none"
    assert posted["endsAt"] > posted["startsAt"]


def test_a_sink_that_rejects_the_test_message_is_named(tmp_path: Path) -> None:
    """With its reason, and an exit code for scripts."""
    with serving(Receiver(500).handler) as url:
        code, output = send_test(
            tmp_path,
            f"sinks: {{mail: {{to: [a@example.org], host: 127.0.0.1, port: {free_port()}}}, "
            f"webhook: {{url: '{url}'}}}}",
        )

    assert code == 1
    assert "mail: retry 127.0.0.1:" in output
    assert "webhook: retry 500" in output


def test_a_test_message_needs_sinks(tmp_path: Path) -> None:
    plan = tmp_path / "plan.yaml"
    plan.write_text("name: shop\nbroker: {kafka: {bootstrap_servers: '127.0.0.1:9'}}\n")

    with pytest.raises(PlanError, match="has no sinks"):
        alert(plan, None, test=True)
