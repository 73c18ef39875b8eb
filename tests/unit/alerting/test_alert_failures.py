"""The alert daemon in trouble: what cannot be sent, a file that cannot be used, a clock that jumps."""

from __future__ import annotations

import cProfile
import logging
import os
import shutil
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from soak.alerting import after_run
from soak.alerting.delivery import RESEND_PERIOD_NS
from soak.alerting.digest import DIGEST_RETRY_NS
from soak.core.phases import decision_line
from soak.core.ports import Message, Outcome
from soak.core.units import SECOND_NS
from soak.service.files import file_lock
from soak.store.findings.store import FindingsStore
from soak.store.run_folder import read_run, write_run
from tests.unit.alerting.test_alert_daemon import DELIVERED, NEVER, RETRY, RUN, Desk, FakeSink
from tests.unit.store.findings.test_findings_store import SERIES, finding

KEY = "synthetic-1-130"
OTHER = "synthetic-1-140"


class Hooked:
    """A sink that first does what a test wants, and then answers as another does."""

    def __init__(self, sink: FakeSink, before: Callable[[Message], None]) -> None:
        self._sink = sink
        self._before = before

    def send(self, message: Message) -> Outcome:
        self._before(message)
        return self._sink.send(message)


class Forgetful(FakeSink):
    """Keeps what is said again apart from what is said."""

    again: Sequence[Message] = ()

    def say_again(self, messages: Sequence[Message]) -> Outcome:
        self.again = messages
        return DELIVERED


def broken(message: Message) -> None:
    if message.key.startswith(KEY):
        raise ValueError("Invalid header value b'Bearer swordfish'")


def test_a_message_that_breaks_its_sink_holds_up_no_other(tmp_path: Path) -> None:
    """It is put off as any other; what the error quotes is told to nobody."""
    desk = Desk(tmp_path, DELIVERED).without_pictures()
    desk.save("confirmed", key=OTHER)
    desk.sink = Hooked(desk.sink, broken)  # type: ignore[assignment]  # a sink of another make
    for _ in range(2):
        desk.alerts().poll()

    with FindingsStore(desk.folder.findings) as store:
        first, second = store.outbox(RUN)
    assert (first.state, first.attempts, second.state) == ("pending", 1, "sent")
    assert first.detail.startswith("ValueError in test_alert_troubles.py:")
    assert "fish" not in first.detail


def test_a_sink_that_is_away_keeps_nobody_from_another(tmp_path: Path) -> None:
    """It is tried once a round, however much it is owed."""
    desk = Desk(tmp_path, RETRY).without_pictures()
    for number in range(5):
        desk.save("confirmed", key=f"synthetic-1-{200 + number}")
    desk.alerts().poll()

    assert len(desk.sink.messages) == 1


def test_a_file_that_cannot_be_used_is_a_bad_round(tmp_path: Path) -> None:
    """Nothing is sent that could not be noted, nothing ends, and all goes on when it is back."""
    desk = Desk(tmp_path, DELIVERED).without_pictures()
    alerts = desk.alerts()
    whole = desk.folder.findings.read_bytes()
    desk.folder.findings.write_bytes(b"no database, but long enough to look" * 99)
    settled = [alerts.poll(), alerts.poll()]
    alerts.farewell()
    within = len(desk.sink.messages)
    desk.folder.findings.write_bytes(whole)
    settled.append(alerts.poll())

    assert (within, settled, len(desk.sink.messages)) == (0, [0, 0, 1], 1)


def test_what_was_sent_is_marked_as_soon_as_it_can_be(tmp_path: Path) -> None:
    """The drive filled up while the mail went out: that is no reason to send it twice."""
    desk = Desk(tmp_path, DELIVERED).without_pictures()
    sink = desk.sink
    kept: list[bytes] = []

    def spoil(_message: Message) -> None:
        kept.append(desk.folder.findings.read_bytes())
        desk.folder.findings.write_bytes(b"no database, but long enough to look" * 99)

    desk.sink = Hooked(sink, spoil)  # type: ignore[assignment]  # a sink of another make
    alerts = desk.alerts()
    alerts.poll()
    desk.folder.findings.write_bytes(kept[0])
    desk.clock.advance(60)
    alerts.poll()

    assert len(sink.messages) == 1
    assert desk.states() == [("confirmed", "sent")]


def test_a_pause_keeps_to_the_limit_of_the_hour_and_to_waits(tmp_path: Path) -> None:
    """Somebody comes after it: thirty mails at once are for the end of a run alone."""
    desk = Desk(tmp_path, DELIVERED).without_pictures()
    desk.say("alerts: {max_per_hour: 2}")
    for number in range(12):
        desk.save("confirmed", key=f"synthetic-1-{200 + number}")
    desk.folder.phases.write_text(decision_line("soak", 0))
    alerts = desk.alerts()
    alerts.poll()
    alerts.farewell()
    paused = len(desk.sink.messages)
    desk.folder.phases.write_text(decision_line("soak", 0) + decision_line("end", 130))
    alerts.farewell()

    assert (paused, len(desk.sink.messages)) == (2, 13)


def test_a_clock_that_ran_ahead_mutes_nobody(tmp_path: Path) -> None:
    """Two messages were sent in an hour that has yet to come."""
    desk = Desk(tmp_path, DELIVERED).without_pictures()
    desk.say("alerts: {max_per_hour: 2, digest: '0 7 * * *'}")
    desk.save("confirmed", key=OTHER)
    desk.clock.advance(48 * 3600)
    desk.alerts().poll()
    ahead = len(desk.sink.messages)
    desk.clock.step_wall(-48 * 3600)
    desk.save("confirmed", key="synthetic-1-150")
    desk.alerts().poll()
    back = len(desk.sink.messages)
    desk.clock.advance(24 * 3600)
    desk.alerts().poll()

    assert (ahead, back) == (3, 4)  # two findings and the digest; the third finding
    assert "digest" in desk.sink.messages[-1].subject


def test_what_was_the_clients_is_taken_back(tmp_path: Path) -> None:
    """People hear that the mail before was a false alarm, below that mail; an alert ends."""
    desk = Desk(tmp_path, DELIVERED).without_pictures()
    desk.alerts().poll()
    cleared = finding(
        key=KEY, run=RUN, series=SERIES.replace("@h", "@host"), is_about_cluster=False
    )
    with FindingsStore(desk.folder.findings) as store:
        store.save_finding(cleared, ["mail"], desk.clock.wall_ns())
    desk.alerts().poll()

    first, second = desk.sink.messages
    assert second.subject.startswith("[soakd] synthetic: taken back: p99 end-to-end latency")
    assert "Taken back: what was seen since" in second.text
    assert (second.follows, second.end_wall_ns) == (first.key, desk.clock.wall_ns())


def test_a_finding_that_comes_back_says_so(tmp_path: Path) -> None:
    """Under a Message-ID of its own, below the mail that said it was over."""
    desk = Desk(tmp_path, DELIVERED).without_pictures()
    for state in ("confirmed", "gone", "confirmed", "gone"):
        desk.save(state)
        desk.alerts().poll()

    assert [message.key.removeprefix(KEY) for message in desk.sink.messages] == [
        ".confirmed",
        ".gone",
        ".confirmed-2",
        ".gone-2",
    ]
    _, over, again, last = desk.sink.messages
    assert again.subject.startswith("[soakd] synthetic: again: p99 end-to-end latency")
    assert again.text.startswith("It was over, and is here again.\n")
    assert (again.follows, last.follows) == (over.key, again.key)


def test_a_receiver_that_forgets_is_told_again_what_lasts(tmp_path: Path) -> None:
    """Every two minutes, also in a maintenance window; what went away is not said again."""
    desk = Desk(tmp_path, DELIVERED).without_pictures()
    sink = desk.sink = Forgetful(desk.clock, DELIVERED)
    desk.save("confirmed", key=OTHER)
    alerts = desk.alerts()
    alerts.poll()
    first = [message.key for message in sink.again]
    desk.save("gone", key=OTHER)
    alerts.poll()
    desk.clock.advance(RESEND_PERIOD_NS / SECOND_NS)
    alerts.poll()

    assert first == [f"{KEY}.confirmed", f"{OTHER}.confirmed"]
    assert [message.key for message in sink.again] == [f"{KEY}.confirmed"]
    assert len(sink.messages) == 3


def test_what_lasts_is_read_once_to_be_said_again(tmp_path: Path) -> None:
    """Each message names the others: with a hundred of them every reading is a hundred findings."""
    desk = Desk(tmp_path, DELIVERED).without_pictures()
    sink = desk.sink = Forgetful(desk.clock, DELIVERED)
    for number in range(6):
        desk.save("confirmed", key=f"{OTHER}{number}")
    alerts = desk.alerts()
    alerts.poll()
    desk.clock.advance(RESEND_PERIOD_NS / SECOND_NS)
    with cProfile.Profile() as profile:
        alerts.poll()
    readings = [
        one.callcount
        for one in profile.getstats()
        if not isinstance(one.code, str) and one.code.co_qualname == "FindingsStore.findings"
    ]

    assert (len(sink.again), readings) == (7, [1])
    assert all(", and 5\n" in message.text for message in sink.again)


def test_a_digest_that_cannot_be_sent_says_so_and_is_sent_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A fault of ours is one more try; a refusal for good is a line in the log."""
    desk = Desk(tmp_path, DELIVERED).without_pictures()
    desk.say("alerts: {digest: '0 7 * * *'}")
    desk.alerts().poll()
    desk.clock.advance(86_400)
    faults = [ValueError("no")]

    def once(_message: Message) -> None:
        if faults:
            raise faults.pop()

    desk.sink = Hooked(FakeSink(desk.clock, NEVER), once)  # type: ignore[assignment]  # as above
    alerts = desk.alerts()
    with caplog.at_level(logging.INFO, "soak.alerting.daemon"):
        for _ in range(3):
            alerts.poll()
            desk.clock.advance(DIGEST_RETRY_NS / SECOND_NS)

    lines = [record.getMessage().split() for record in caplog.records]
    said = [line[2] for line in lines if line[0] == "digest_tried"]
    assert said == ["result=retry", "result=never"]


def test_a_digest_knows_who_has_got_it(tmp_path: Path) -> None:
    """Only those who were put off get the next try."""
    desk = Desk(tmp_path, DELIVERED).without_pictures()
    desk.say("alerts: {digest: '0 7 * * *'}")
    desk.alerts().poll()
    desk.clock.advance(86_400)
    desk.sink = FakeSink(desk.clock, replace(RETRY, so_far="a has it"), DELIVERED)
    alerts = desk.alerts()
    for _ in range(2):
        alerts.poll()
        desk.clock.advance(DIGEST_RETRY_NS / SECOND_NS)

    assert [message.so_far for message in desk.sink.messages] == ["", "a has it"]


def end_run(desk: Desk) -> None:
    """Write that the run is over, by the desk's own clock."""
    write_run(desk.folder, replace(read_run(desk.folder), state="ended"))
    os.utime(desk.folder.run_json, ns=(desk.clock.wall_ns(), desk.clock.wall_ns()))


def owed_runs(desk: Desk, sink: FakeSink, stack: ExitStack) -> after_run.AfterRunDelivery:
    return after_run.AfterRunDelivery(
        desk.folder.path.parent, desk.clock, stack, sinks_of=lambda _: {"mail": sink}
    )


def test_what_a_run_owes_after_its_end_is_told_when_the_server_is_back(tmp_path: Path) -> None:
    """Not while it runs: then its own daemon does."""
    desk = Desk(tmp_path, RETRY, state="gone").without_pictures()
    sink = FakeSink(desk.clock, RETRY, RETRY, DELIVERED)
    with ExitStack() as stack:
        debts = owed_runs(desk, sink, stack)
        write_run(desk.folder, replace(read_run(desk.folder), state="running"))
        while_it_runs = debts.poll()
        end_run(desk)
        rounds = 0
        while debts.poll():
            rounds += 1
            desk.clock.advance(1)

    assert not while_it_runs
    assert rounds > 15
    assert desk.states() == [("confirmed", "sent"), ("gone", "sent")]
    assert len(sink.messages) == 4


def test_nobody_tries_for_longer_than_a_day(tmp_path: Path) -> None:
    """A sink that is never there again keeps no daemon for ever; and one outbox has one daemon."""
    desk = Desk(tmp_path, RETRY).without_pictures()
    end_run(desk)
    with ExitStack() as stack:
        with file_lock(desk.folder.path / "alert.lock", "the outbox"):
            in_use = owed_runs(desk, desk.sink, stack).poll()
        debts = owed_runs(desk, desk.sink, stack)
        is_tried = debts.poll()
        desk.clock.advance(86_400)

        assert (in_use, is_tried, debts.poll()) == (False, True, False)
        assert not owed_runs(desk, desk.sink, stack).poll(), "nor does the next daemon"


def test_a_run_that_was_thrown_away_is_owed_nothing(tmp_path: Path) -> None:
    desk = Desk(tmp_path, RETRY).without_pictures()
    end_run(desk)
    with ExitStack() as stack:
        debts = owed_runs(desk, desk.sink, stack)
        before = debts.poll()
        shutil.rmtree(desk.folder.path)

        assert (before, debts.poll()) == (True, False)
    assert not desk.folder.path.exists()
