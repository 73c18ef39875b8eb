"""The alert daemon that dies at each start: it says so itself, once, and again when that comes back."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
import typer

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
from soak.cli.service import notify_failure
from soak.core.ports import Message, Outcome
from soak.core.units import SECOND_NS
from soak.service import restart_backoff
from tests.support.alert_receiver import Receiver
from tests.support.fakes import FakeClock
from tests.support.mail_server import Inbox, served
from tests.support.pages import serving
from tests.unit.service.test_restart_backoff import environment

# --- People hear of a unit that systemd has given up: nobody looks at a host for weeks.

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
    told = failure_message("p", UNIT, "h1", SAID, 0)

    assert told.subject == "[soakd] p: soak-start@p failed on h1"
    assert "at 1970-01-01 00:00:00Z: exit-code 1." in told.text
    assert "journalctl -u soak-start@p" in told.text


def test_without_the_alert_daemon_findings_reach_nobody() -> None:
    told = failure_message("p", "soak-alert@p", "h1", {**SAID, "MONITOR_EXIT_STATUS": "2"}, 0)

    assert told.subject == "[soakd] p: findings reach nobody, soak-alert@p failed on h1"
    assert "what is found meanwhile is kept" in told.text
    assert "report" not in told.text


def test_another_try_is_the_same_message() -> None:
    """Who has it already sees by its key that it is no second failure."""
    assert (
        failure_message("p", UNIT, "h1", SAID, 0).key
        == failure_message("p", UNIT, "h1", SAID, 10**12).key
    )


def test_without_a_word_of_systemd_there_is_a_message_all_the_same() -> None:
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


def test_a_sink_that_is_away_has_nobody_told_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another call comes five minutes later; another failure is another message."""
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
    path = tmp_path / "told"
    send_to_each(
        failure_message("p", UNIT, "h1", SAID, 0),
        {"mail": Away()},
        read_deliveries(path, "a", 0),
        path,
    )

    assert read_deliveries(path, "a", 10**12) == Deliveries("a", 0, [], {"mail": "half of them"})
    assert read_deliveries(path, "b", 10**12) == Deliveries("b", 10**12)


class Away:
    """A sink that puts off, and keeps who has got it."""

    def send(self, _: Message) -> Outcome:
        return Outcome("retry", "451", "half of them")


@pytest.mark.parametrize(
    ("unit", "status", "mails"),
    [
        ("soak-start@p", "2", 0),
        ("soak-start@p", "1", 1),
        ("soak-report@p", "2", 1),
        ("soak-alert@p", "2", 1),
        ("soak-alert@p", "1", 0),
        ("soak-alert@p", "", 0),
    ],
)
def test_only_what_nobody_knows_is_mailed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unit: str, status: str, mails: int
) -> None:
    """The terminal has said that a run was refused; an alert daemon goes on but for a bad plan."""
    inbox = Inbox()
    for key, value in {**SAID, "MONITOR_EXIT_STATUS": status}.items():
        monkeypatch.setenv(key, value)
    with served(inbox) as port:
        (tmp_path / "p.yaml").write_text(PLAN.format(port=port))
        with contextlib.suppress(typer.Exit):
            notify_failure(unit, tmp_path, tmp_path)

    assert len(inbox.mails) == mails


def test_who_cannot_tell_of_himself_is_told_of() -> None:
    """A run that cannot begin, a report, and who would tell of the other daemons."""
    units = {
        place.name: text for place, text in rendered_files().items() if place.suffix == ".service"
    }
    told = [
        name for name, text in units.items() if "OnFailure=soak-notify-failure@%N.service" in text
    ]

    assert set(told) == {"soak-alert@.service", "soak-start@.service", "soak-report@.service"}


# --- The alert daemon that dies at each start: it says so itself, once, and again when that comes back.

DAY_SECONDS = 86400


class Dying:
    """A service that systemd starts again each time that it died."""

    def __init__(self, folder: Path) -> None:
        self.runtime, self.plan = folder / "soak-alert@p", folder / "p.yaml"
        self.runtime.mkdir()
        self.clock = FakeClock()

    def start(self, times: int = 1) -> None:
        for _ in range(times):
            self.clock.advance(2)
            restart_backoff.keep_apart(self.clock, environment(self.runtime))
            notify_crashes(Path("no-run"), self.plan, self.clock, environment(self.runtime))


@pytest.fixture
def dying(tmp_path: Path) -> Dying:
    return Dying(tmp_path)


def test_it_is_told_once_however_long_it_goes_on(dying: Dying) -> None:
    inbox = Inbox()
    with served(inbox) as port:
        dying.plan.write_text(PLAN.format(port=port))
        dying.start(CRASH_LIMIT)
        before = len(inbox.mails)
        dying.start(CRASH_LIMIT)

    assert (before, len(inbox.mails)) == (0, 1)
    assert "soak-alert@p dies again and again" in inbox.mails[0][1]["Subject"]


def test_what_comes_back_another_day_is_told_again(dying: Dying) -> None:
    inbox = Inbox()
    with served(inbox) as port:
        dying.plan.write_text(PLAN.format(port=port))
        for _ in range(2):
            dying.start(CRASH_LIMIT + 1)
            dying.clock.advance(DAY_SECONDS)

    assert len(inbox.mails) == 2


def test_a_sink_that_is_away_is_tried_at_the_next_start(dying: Dying) -> None:
    """And who has it already is not told twice."""
    inbox, away, back = Inbox(), Receiver(500), Receiver()
    with served(inbox) as port:
        for webhook in (away, back, back):
            with serving(webhook.handler) as url:
                dying.plan.write_text(PLAN.format(port=port) + f"  webhook: {{url: {url}}}\n")
                dying.start(CRASH_LIMIT + 1 if webhook is away else 1)

    assert (len(inbox.mails), len(away.posts), len(back.posts)) == (1, 1, 1)


def test_sinks_that_nobody_can_read_keep_it_from_no_start(
    dying: Dying, caplog: pytest.LogCaptureFixture
) -> None:
    dying.start(CRASH_LIMIT + 1)

    assert "sinks_unknown" in caplog.text


def test_the_message_says_what_is_told_and_what_is_kept() -> None:
    told = crash_message("p", "soak-alert@p", "h1", 60 * SECOND_NS)

    assert told.subject == (
        "[soakd] p: findings reach nobody, soak-alert@p dies again and again on h1"
    )
    assert told.text == (
        "At 1970-01-01 00:01:00Z soak-alert@p on h1 had died at 8 starts in a row; it is tried once "
        "a minute.\n"
        "This says nothing about the cluster. The load is measured on; what is found meanwhile is kept, "
        "and told as soon as the service stays.\n"
        "What it said last: journalctl -u soak-alert@p -n 50\n"
    )
