"""Digests: each reader gets each once, over restarts and the end of the run, and only who wants them."""

from __future__ import annotations

import shutil
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from soak.alerting import after_run
from soak.alerting.digest import DIGEST_RETRY_NS, pending_digests
from soak.core.errors import FindingsError
from soak.core.phases import decision_line
from soak.core.ports import Message
from soak.core.units import SECOND_NS
from soak.sinks import webhook
from soak.store.findings.store import FindingsStore
from tests.unit.alerting.test_alert_daemon import DELIVERED, RETRY, Desk, FakeSink
from tests.unit.alerting.test_alert_failures import Hooked, end_run, owed_runs

PARTLY = replace(RETRY, so_far="a has it")
DAY_SECONDS = 86_400


class Uninterested(FakeSink):
    wants_digests = False


def desk_with_digest(path: Path) -> Desk:
    """Return a run whose finding was told, a digest of a day later due."""
    desk = Desk(path, DELIVERED).without_pictures()
    desk.say("alerts: {digest: '0 7 * * *'}")
    desk.alerts().poll()
    desk.clock.advance(DAY_SECONDS)
    return desk


def digests(sink: FakeSink) -> list[Message]:
    return [one for one in sink.messages if one.labels["finding"] == "digest"]


def test_the_next_daemon_knows_who_has_got_a_digest(tmp_path: Path) -> None:
    """It died after a mail that some of the recipients took: only the others get it once more."""
    desk = desk_with_digest(tmp_path)
    desk.sink = FakeSink(desk.clock, PARTLY, DELIVERED)
    desk.alerts().poll()
    desk.alerts().poll()
    desk.alerts().poll()

    assert [message.so_far for message in digests(desk.sink)] == ["", "a has it"]


def test_the_next_days_digest_is_new_to_all(tmp_path: Path) -> None:
    desk = desk_with_digest(tmp_path)
    desk.sink = FakeSink(desk.clock, PARTLY, DELIVERED)
    desk.alerts().poll()
    desk.clock.advance(DAY_SECONDS)
    desk.alerts().poll()

    first, second = digests(desk.sink)
    assert first.key != second.key
    assert second.so_far == ""


def test_a_digest_that_was_put_off_is_tried_at_the_end(tmp_path: Path) -> None:
    """Its wait is not waited for, as nobody comes after."""
    desk = desk_with_digest(tmp_path)
    desk.sink = FakeSink(desk.clock, PARTLY, DELIVERED)
    alerts = desk.alerts()
    alerts.poll()
    alerts.poll()
    alerts.farewell()

    assert [message.so_far for message in digests(desk.sink)] == ["", "a has it"]


def test_a_digest_that_is_owed_at_the_end_is_told_after_it(tmp_path: Path) -> None:
    """Once, by who tells what ended runs owe; that another day has come makes no other due."""
    desk = desk_with_digest(tmp_path)
    desk.sink = FakeSink(desk.clock, PARTLY)
    desk.alerts().farewell()
    end_run(desk)
    sink = FakeSink(desk.clock, RETRY, DELIVERED)
    desk.clock.advance(DAY_SECONDS // 2)
    with ExitStack() as stack:
        debts = owed_runs(desk, sink, stack)
        owing = [debts.poll()]
        desk.clock.advance(DIGEST_RETRY_NS / SECOND_NS)
        owing += [debts.poll(), debts.poll()]

    assert [message.so_far for message in sink.messages] == ["a has it", "a has it"]
    assert {message.key for message in sink.messages} == {digests(desk.sink)[0].key}
    assert owing == [True, True, False]


def test_a_digest_that_a_window_held_back_goes_out_at_the_end(tmp_path: Path) -> None:
    desk = Desk(tmp_path, DELIVERED).without_pictures()
    desk.say("alerts: {digest: '0 7 * * *', maintenance: [{cron: '* * * * *', length: 1h}]}")
    desk.clock.advance(DAY_SECONDS)
    alerts = desk.alerts()
    alerts.poll()
    before = len(desk.sink.messages)
    alerts.farewell()

    assert (before, len(digests(desk.sink))) == (0, 1)


def test_who_has_no_use_for_digests_gets_none(tmp_path: Path) -> None:
    """An Alertmanager would have an alert that fires each day, with nothing to mend."""
    desk = desk_with_digest(tmp_path)
    desk.sink = Uninterested(desk.clock, DELIVERED)
    desk.alerts().poll()
    desk.alerts().farewell()
    end_run(desk)
    with ExitStack() as stack:
        is_owing = owed_runs(desk, desk.sink, stack).poll()

    assert (desk.sink.messages, is_owing) == ([], False)
    assert not webhook.build(webhook.Config(url="http://127.0.0.1:9")).wants_digests


def test_a_digest_to_nobody_any_more_is_given_up(tmp_path: Path) -> None:
    """Its sink has left the plan: nobody tries for a day what cannot be."""
    desk = desk_with_digest(tmp_path)
    desk.sink = FakeSink(desk.clock, RETRY)
    desk.alerts().poll()
    end_run(desk)
    with ExitStack() as stack:
        debts = after_run.AfterRunDelivery(
            desk.folder.path.parent, desk.clock, stack, sinks_of=lambda _: {}
        )
        owing = [debts.poll(), debts.poll()]

    assert owing == [True, False]


def test_who_has_got_it_is_noted_before_anything_else_is_sent(tmp_path: Path) -> None:
    """The drive took nothing when part of them had it: no try until it is on disk."""
    desk = desk_with_digest(tmp_path)
    sink = FakeSink(desk.clock, PARTLY, DELIVERED)
    findings = desk.folder.findings
    moved = findings.with_suffix(".moved")

    def break_once(_message: Message) -> None:
        if not moved.exists():
            findings.rename(moved)
            findings.mkdir()

    desk.sink = Hooked(sink, break_once)  # type: ignore[assignment]  # as much as is asked of it
    alerts = desk.alerts()
    alerts.poll()
    desk.clock.advance(DIGEST_RETRY_NS / SECOND_NS)
    alerts.poll()
    tried = len(digests(sink))
    findings.rmdir()
    shutil.copy(moved, findings)
    alerts.poll()

    assert tried == 1
    assert [message.so_far for message in digests(sink)] == ["", "a has it"]


def test_a_damaged_note_is_an_error_and_no_guess(tmp_path: Path) -> None:
    desk = desk_with_digest(tmp_path)
    with FindingsStore(desk.folder.findings) as store:
        store.set_checkpoint("digest.mail.tried", "[")
        with pytest.raises(FindingsError, match="digests to mail is damaged"):
            pending_digests(store)


def test_the_farewell_of_a_pause_is_bounded_in_time(tmp_path: Path) -> None:
    """Twenty mails on a slow server would be cut off in the middle of one; the rest waits for who comes."""
    desk = Desk(tmp_path).without_pictures()
    desk.sink = FakeSink(desk.clock, DELIVERED, seconds=4.0)
    for number in range(20):
        desk.save("confirmed", key=f"synthetic-1-{200 + number}")
    desk.folder.phases.write_text(decision_line("soak", 0))
    desk.alerts().farewell()

    assert len(desk.sink.messages) == 3
    assert desk.states().count(("confirmed", "pending")) == 18


def test_a_round_that_is_to_stop_begins_nothing(tmp_path: Path) -> None:
    """Told to stop in the middle of a mail, it leaves digests and all else to the farewell."""
    desk = desk_with_digest(tmp_path)
    desk.sink = FakeSink(desk.clock, DELIVERED)
    desk.save("confirmed", key="synthetic-1-200")
    desk.alerts().poll(lambda: bool(desk.sink.messages))

    assert len(desk.sink.messages) == 1


def test_who_tells_ended_runs_stops_between_two_messages(tmp_path: Path) -> None:
    """A minute each of many on a slow server would outlast what a service is given to stop."""
    desk = Desk(tmp_path, DELIVERED).without_pictures()
    desk.save("confirmed", key="synthetic-1-200")
    end_run(desk)
    sink = FakeSink(desk.clock, DELIVERED)
    with ExitStack() as stack:
        debts = owed_runs(desk, sink, stack)
        debts.is_stopped = lambda: bool(sink.messages)
        debts.poll()

    assert len(sink.messages) == 1
