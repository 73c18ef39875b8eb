"""The alert daemon: told once, tried again when it makes sense, and nothing owed is forgotten."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from soak.alerting import daemon
from soak.alerting.daemon import AlertDaemon
from soak.alerting.delivery import report_command, retry_wait_ns
from soak.alerting.message import COLUMNS
from soak.core import plugins
from soak.core.errors import RunFolderError
from soak.core.phases import decision_line
from soak.core.plan.text import load
from soak.core.ports import Message, Outcome
from soak.core.units import SECOND_NS
from soak.service.files import file_lock
from soak.store.findings.store import MAX_RETRY_WAIT_NS, FindingsStore
from soak.store.plan_home import PlanHome
from soak.store.run_folder import RunFolder, read_run
from tests.support.fakes import FakeClock
from tests.support.synthetic_run import Shape, write_synthetic_run
from tests.unit.store.findings.test_findings_store import SERIES, finding

RUN = "synthetic-1"
DELIVERED, RETRY = Outcome("delivered", "250 ok"), Outcome("retry", "451 later")
NEVER = Outcome("never", "550 no such user")


class FakeSink:
    """Answers with the outcomes it was made with, the last one for ever."""

    def __init__(self, clock: FakeClock, *outcomes: Outcome, seconds: float = 0.0) -> None:
        self._clock = clock
        self._outcomes = list(outcomes)
        self._seconds = seconds
        self.messages: list[Message] = []

    def send(self, message: Message) -> Outcome:
        self.messages.append(message)
        self._clock.advance(self._seconds)
        return self._outcomes.pop(0) if len(self._outcomes) > 1 else self._outcomes[0]


class Desk:
    """A run with one finding of the state given, owed to the sink `mail`."""

    def __init__(self, path: Path, *outcomes: Outcome, state: str = "confirmed") -> None:
        self.folder = write_synthetic_run(path / "run", Shape(seconds=130))
        self.clock = FakeClock()
        self.sink = FakeSink(self.clock, *outcomes)
        self.save(state)

    def without_pictures(self) -> Desk:
        """Leave nothing to draw from: a picture is most of what a message costs."""
        self.folder.journal.rename(self.folder.path / "moved")
        return self

    def say(self, more: str) -> None:
        """Replace what the run's plan says of alerts."""
        body = yaml.safe_load(self.folder.plan.read_text())
        self.folder.plan.write_text(yaml.safe_dump({**body, **yaml.safe_load(more)}))

    def save(self, state: str, key: str = "synthetic-1-130") -> None:
        gone_k = 128 if state == "gone" else None
        found = finding(
            state, key=key, run=RUN, gone_k=gone_k, series=SERIES.replace("@h", "@host")
        )
        with FindingsStore(self.folder.findings) as store:
            store.save_finding(found, ["mail"], self.clock.wall_ns())

    def alerts(self) -> AlertDaemon:
        plan = load(self.folder.plan.read_text(), "plan.yaml").plan
        return AlertDaemon(
            self.folder, plan, read_run(self.folder), {"mail": self.sink}, self.clock
        )

    def states(self) -> list[tuple[str, str]]:
        with FindingsStore(self.folder.findings) as store:
            return [(row.kind, row.state) for row in store.outbox(RUN)]


def test_a_finding_is_told_once_with_its_chart(tmp_path: Path) -> None:
    """Later rounds, and another daemon after a restart, send nothing more."""
    desk = Desk(tmp_path, DELIVERED)
    desk.alerts().poll()
    desk.alerts().poll()

    (message,) = desk.sink.messages
    assert message.subject.startswith("[soakd] synthetic: p99 end-to-end latency 4.1 ms -> 61 ms")
    assert (message.chart_png or b"").startswith(b"\x89PNG")
    assert "\nnext      see how files are deleted" in message.text
    assert desk.states() == [("confirmed", "sent")]


def test_both_mails_go_out_in_order(tmp_path: Path) -> None:
    """That it went away is told after that it came, and follows it."""
    desk = Desk(tmp_path, DELIVERED, state="gone").without_pictures()
    alerts = desk.alerts()
    alerts.poll()
    alerts.poll()

    first, second = desk.sink.messages
    assert second.follows == first.key
    assert desk.states() == [("confirmed", "sent"), ("gone", "sent")]


def test_the_second_of_two_findings_names_the_first_that_lasts(tmp_path: Path) -> None:
    desk = Desk(tmp_path, DELIVERED).without_pictures()
    alerts = desk.alerts()
    alerts.poll()
    desk.save("confirmed", key="synthetic-1-200")
    alerts.poll()

    first, second = desk.sink.messages
    assert "\nbeside " not in first.text
    assert "\nbeside    p99 end-to-end latency since " in second.text


def test_what_is_put_off_is_tried_again_later_and_later(tmp_path: Path) -> None:
    """The n-th wait is twice the one before; nothing is tried before its time."""
    desk = Desk(tmp_path, RETRY, RETRY, DELIVERED).without_pictures()
    alerts = desk.alerts()
    tries = []
    for second in range(30):
        before = len(desk.sink.messages)
        alerts.poll()
        tries += [second] * (len(desk.sink.messages) - before)
        desk.clock.advance(1.0)

    assert tries == [0, 5, 15]
    assert desk.states() == [("confirmed", "sent")]


def test_waits_grow_to_a_quarter_of_an_hour_and_no_further() -> None:
    """However often it failed, the next try is at hand."""
    waits = [retry_wait_ns(attempts) // SECOND_NS for attempts in range(9)]

    assert waits == [5, 10, 20, 40, 80, 160, 320, 640, 900]
    assert retry_wait_ns(10_000) == MAX_RETRY_WAIT_NS


def test_a_flood_is_spread_over_the_hours(tmp_path: Path) -> None:
    """Two an hour: the rest waits, also for a daemon that was started again."""
    desk = Desk(tmp_path, DELIVERED).without_pictures()
    desk.say("alerts: {max_per_hour: 2}")
    for number in range(4):
        desk.save("confirmed", key=f"synthetic-1-{200 + number}")
    told = []
    for _ in range(4):
        desk.alerts().poll()
        told.append(len(desk.sink.messages))
        desk.clock.advance(3601)

    assert told == [2, 4, 5, 5]
    assert len({message.key for message in desk.sink.messages}) == 5


def test_nobody_is_told_in_a_maintenance_window(tmp_path: Path) -> None:
    """What is owed goes out after it; a daemon that ends within it leaves that to the next."""
    desk = Desk(tmp_path, DELIVERED).without_pictures()
    desk.say("alerts: {maintenance: [{cron: '*/30 * * * *', length: 10min}]}")
    desk.clock.advance(1800 - desk.clock.wall_ns() / SECOND_NS % 1800 + 300)
    alerts = desk.alerts()
    alerts.poll()
    desk.folder.phases.write_text(decision_line("soak", 0))
    alerts.farewell()
    within = len(desk.sink.messages)
    desk.clock.advance(300)
    alerts.poll()

    assert (within, len(desk.sink.messages)) == (0, 1)


def test_the_last_words_of_a_run_wait_for_no_window(tmp_path: Path) -> None:
    """After the end of the run no daemon comes that could say them."""
    desk = Desk(tmp_path, DELIVERED).without_pictures()
    desk.say("alerts: {maintenance: [{cron: '* * * * *', length: 1h}]}")
    desk.folder.phases.write_text(decision_line("soak", 0) + decision_line("end", 130))
    alerts = desk.alerts()
    alerts.poll()
    within = len(desk.sink.messages)
    alerts.farewell()

    assert (within, len(desk.sink.messages)) == (0, 1)


def test_a_digest_comes_once_a_day_and_again_until_it_is_taken(tmp_path: Path) -> None:
    """Also where nothing was found since; a second try is the same message."""
    desk = Desk(tmp_path, DELIVERED).without_pictures()
    desk.say("alerts: {digest: '0 7 * * *'}")
    desk.alerts().poll()
    before = len(desk.sink.messages)
    desk.clock.advance(86_400)
    desk.sink = FakeSink(desk.clock, RETRY, DELIVERED)
    alerts = desk.alerts()
    for _ in range(3):
        alerts.poll()
        desk.clock.advance(200)
    desk.alerts().poll()

    first, second = desk.sink.messages
    assert before == 1
    assert first == second
    assert first.subject == "[soakd] synthetic: digest: 1 lasting, 1 new"
    assert "findings  1 in all: 1 lasting, 1 new since 2026-" in first.text
    assert max(map(len, first.text.splitlines())) <= COLUMNS


def test_what_was_refused_for_good_is_given_up_and_kept(tmp_path: Path) -> None:
    """It stays in the outbox with its reason, and is not tried again."""
    desk = Desk(tmp_path, NEVER).without_pictures()
    alerts = desk.alerts()
    alerts.poll()
    desk.clock.advance(3600)
    alerts.poll()

    assert len(desk.sink.messages) == 1
    assert desk.states() == [("confirmed", "never")]


def test_the_farewell_tries_what_was_put_off(tmp_path: Path) -> None:
    """Nobody comes after it: the wait that is left is not waited for."""
    desk = Desk(tmp_path, RETRY, DELIVERED, state="gone").without_pictures()
    alerts = desk.alerts()
    alerts.poll()
    alerts.farewell()

    assert desk.states() == [("confirmed", "sent"), ("gone", "sent")]


def test_the_farewell_ends_when_the_server_stays_away(tmp_path: Path) -> None:
    """One try of what is left, and the message stays owed."""
    desk = Desk(tmp_path, RETRY).without_pictures()
    desk.alerts().farewell()

    assert len(desk.sink.messages) == 1
    assert desk.states() == [("confirmed", "pending")]


def test_the_farewell_is_bounded_in_time(tmp_path: Path) -> None:
    """A server that takes seconds for each mail cannot hold up the end of a run."""
    desk = Desk(tmp_path, DELIVERED).without_pictures()
    desk.sink = FakeSink(desk.clock, DELIVERED, seconds=4.0)
    for number in range(20):
        desk.save("confirmed", key=f"synthetic-1-{200 + number}")
    desk.alerts().farewell()

    assert len(desk.sink.messages) == 3
    assert desk.states().count(("confirmed", "pending")) == 18


def test_a_crash_after_sending_repeats_the_same_message(tmp_path: Path) -> None:
    """What was sent but not yet marked goes out again under the same key and stamp."""
    desk = Desk(tmp_path, DELIVERED)
    alerts = desk.alerts()
    send = desk.sink.send

    def crash(message: Message) -> Outcome:
        send(message)
        raise KeyboardInterrupt

    desk.sink.send = crash  # type: ignore[method-assign]  # killed between sending and marking
    with pytest.raises(KeyboardInterrupt):
        alerts.poll()
    desk.sink.send = send  # type: ignore[method-assign]  # restarted
    desk.clock.advance(60)
    desk.alerts().poll()

    first, second = desk.sink.messages
    assert (first.key, first.at_wall_ns) == (second.key, second.at_wall_ns)


def test_a_mail_goes_out_without_its_picture_when_the_journal_is_gone(tmp_path: Path) -> None:
    """The words matter more."""
    desk = Desk(tmp_path, DELIVERED)
    desk.folder.journal.rename(desk.folder.path / "moved")
    desk.alerts().poll()

    assert [message.chart_png for message in desk.sink.messages] == [None]


def test_a_sink_that_left_the_plan_is_given_up(tmp_path: Path) -> None:
    """The outbox says why."""
    desk = Desk(tmp_path, DELIVERED).without_pictures()
    plan = load(desk.folder.plan.read_text(), "plan.yaml").plan
    AlertDaemon(desk.folder, plan, read_run(desk.folder), {}, desk.clock).poll()

    assert desk.states() == [("confirmed", "never")]


def test_a_run_without_findings_owes_nothing_and_gets_no_file(tmp_path: Path) -> None:
    """Looking does not create."""
    folder = write_synthetic_run(tmp_path / "run", Shape(seconds=30, warm_up=5))
    folder.findings.unlink()
    plan = load(folder.plan.read_text(), "plan.yaml").plan

    assert AlertDaemon(folder, plan, read_run(folder), {}, FakeClock()).poll() == 0
    assert not folder.findings.exists()


def _stopped() -> threading.Event:
    stop = threading.Event()
    stop.set()
    return stop


def test_the_daemon_ends_at_once_when_told_to(tmp_path: Path) -> None:
    """With nothing owed, a stop needs no farewell."""
    folder = write_synthetic_run(tmp_path / "run", Shape(seconds=30, warm_up=5))

    assert daemon.run(folder.path, _stopped(), FakeClock()) == 0


def test_two_alert_daemons_never_share_an_outbox(tmp_path: Path) -> None:
    """Else a mail could be sent by both."""
    folder = write_synthetic_run(tmp_path / "run", Shape(seconds=30, warm_up=5))
    with (
        file_lock(RunFolder(folder.path).path / "alert.lock", "the outbox"),
        pytest.raises(RunFolderError, match="in use"),
    ):
        daemon.run(folder.path, _stopped(), FakeClock())


def test_a_services_run_is_reported_by_its_unit(tmp_path: Path) -> None:
    """Files that root makes would end the unit's next report; and a mail names the host that it means."""
    folder = RunFolder(tmp_path / "p" / "r1")
    folder.path.mkdir(parents=True)
    by_hand = report_command(folder, "h1", "p")
    PlanHome(tmp_path / "p").point_to(folder)

    assert by_hand == f"on h1: soak report {folder.path}"
    assert report_command(folder, "h1", "p") == (
        f"on h1: systemctl start soak-report@p, then see {folder.report}"
    )


@pytest.mark.parametrize("name", plugins.names("soak.sinks"))
def test_every_sink_has_a_configuration_and_is_built_from_it(name: str) -> None:
    """The seam that a new sink's file fills."""
    module = plugins.load("soak.sinks", name)
    build: Callable[..., object] = module.build

    assert isinstance(module.Config, type)
    assert callable(build)
