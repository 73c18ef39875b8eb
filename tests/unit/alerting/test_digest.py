"""Digests: each reader gets each digest once, over restarts and the end of the run."""

from __future__ import annotations

import shutil
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from soak.alerting.after_run import AfterRunDelivery
from soak.alerting.document import COLUMNS
from soak.core.plan.phases import decision_line
from soak.core.ports import Message
from soak.sinks import webhook
from soak.store.findings.store import FindingsStore
from tests.support.alerting.daemon import DELIVERED, NEVER, RETRY, AlertWorld, FakeSink, HookedSink

PARTLY = replace(RETRY, progress="a has it")
DAY_SECONDS = 86_400
RETRY_SECONDS = 10


class SinkWithoutDigests(FakeSink):
    wants_digests = False


def world_with_digest(path: Path) -> AlertWorld:
    """Return a run whose finding was sent a day ago; a digest is due."""
    world = AlertWorld(path, DELIVERED).without_charts()
    world.change_plan("alerts: {digest: '0 7 * * *'}")
    world.daemon().poll()
    world.clock.advance(DAY_SECONDS)
    return world


def digests(sink: FakeSink) -> list[Message]:
    return [one for one in sink.messages if one.labels["finding"] == "digest"]


@pytest.mark.long
def test_a_digest_is_sent_once_a_day_and_repeated_until_it_is_taken(tmp_path: Path) -> None:
    """Also when nothing was found since; a repeat is the same message."""
    world = world_with_digest(tmp_path)
    before = len(digests(world.sink))
    world.sink = FakeSink(world.clock, RETRY, DELIVERED)
    daemon = world.daemon()
    for _ in range(3):
        daemon.poll()
        world.clock.advance(200)
    world.daemon().poll()

    first, second = world.sink.messages
    assert before == 0
    assert first == second
    assert first.subject == "[soakd] digest: 1 open, 1 new - synthetic"
    assert "incidents 1 in total: 1 open, 1 new since 2026-" in first.text
    assert max(map(len, first.text.splitlines())) <= COLUMNS


def test_a_digest_counts_the_messages_that_wait(tmp_path: Path) -> None:
    """Also one that was never tried, and follows the digest."""
    world = world_with_digest(tmp_path)
    world.save("gone")

    world.daemon().poll()

    (digest,) = digests(world.sink)
    assert "unsent    1 message waiting to be sent\n" in digest.text


@pytest.mark.long
def test_the_next_daemon_knows_which_recipients_have_a_digest(tmp_path: Path) -> None:
    """It died after a mail that some of the recipients took: the others get it then."""
    world = world_with_digest(tmp_path)
    world.sink = FakeSink(world.clock, PARTLY, DELIVERED)
    for _ in range(3):
        world.daemon().poll()
        world.clock.advance(RETRY_SECONDS)

    assert [message.progress for message in digests(world.sink)] == ["", "a has it"]


@pytest.mark.long
def test_the_digest_of_the_next_day_replaces_one_that_was_not_sent(tmp_path: Path) -> None:
    """It is new to all recipients."""
    world = world_with_digest(tmp_path)
    world.sink = FakeSink(world.clock, PARTLY, DELIVERED)
    world.daemon().poll()
    world.clock.advance(DAY_SECONDS)
    world.daemon().poll()
    world.daemon().poll()

    first, second = digests(world.sink)
    assert first.key != second.key
    assert second.progress == ""


@pytest.mark.long
def test_after_a_clock_that_ran_ahead_the_next_digest_is_the_next_one_due(tmp_path: Path) -> None:
    """None is sent at once, and no day goes without one."""
    world = world_with_digest(tmp_path)
    sent = []
    for step, seconds in [(DAY_SECONDS, 0), (-DAY_SECONDS, 0), (0, DAY_SECONDS), (0, DAY_SECONDS)]:
        world.clock.step_wall(step)
        world.clock.advance(seconds)
        world.daemon().poll()
        sent.append(len(digests(world.sink)))

    assert sent == [1, 1, 2, 3]


def test_a_digest_that_was_deferred_is_tried_at_the_end(tmp_path: Path) -> None:
    """Its wait is skipped, as no other daemon follows."""
    world = world_with_digest(tmp_path)
    world.folder.phases.write_text(decision_line("soak", 0) + decision_line("end", 130))
    world.sink = FakeSink(world.clock, PARTLY, DELIVERED)
    daemon = world.daemon()
    daemon.poll()
    daemon.poll()
    daemon.shut_down()

    assert [message.progress for message in digests(world.sink)] == ["", "a has it"]


def test_a_digest_that_is_pending_at_the_end_is_sent_after_it(tmp_path: Path) -> None:
    """Once; no other digest becomes due after the run, although another day begins."""
    world = world_with_digest(tmp_path)
    world.folder.phases.write_text(decision_line("soak", 0) + decision_line("end", 130))
    world.sink = FakeSink(world.clock, PARTLY)
    world.daemon().shut_down()
    world.end_run()
    sink = FakeSink(world.clock, RETRY, DELIVERED)
    world.clock.advance(DAY_SECONDS // 2)
    with ExitStack() as stack:
        delivery = world.after_run(sink, stack)
        pending = [delivery.poll()]
        world.clock.advance(RETRY_SECONDS)
        pending += [delivery.poll(), delivery.poll()]

    assert [message.progress for message in sink.messages] == ["a has it", "a has it"]
    assert {message.key for message in sink.messages} == {digests(world.sink)[0].key}
    assert pending == [True, True, False]


def test_a_digest_that_a_maintenance_window_delayed_is_sent_at_the_end(tmp_path: Path) -> None:
    world = AlertWorld(tmp_path, DELIVERED).without_charts()
    world.change_plan(
        "alerts: {digest: '0 7 * * *', maintenance: [{cron: '* * * * *', length: 1h}]}"
    )
    world.folder.phases.write_text(decision_line("soak", 0) + decision_line("end", 130))
    world.clock.advance(DAY_SECONDS)
    daemon = world.daemon()
    daemon.poll()
    before = len(world.sink.messages)
    daemon.shut_down()

    assert (before, len(digests(world.sink))) == (0, 1)


def test_a_sink_that_wants_no_digests_gets_none(tmp_path: Path) -> None:
    """In an Alertmanager each would be an alert that fires every day."""
    world = world_with_digest(tmp_path)
    world.sink = SinkWithoutDigests(world.clock, DELIVERED)
    world.daemon().poll()
    world.daemon().shut_down()
    world.end_run()
    with ExitStack() as stack:
        is_pending = world.after_run(world.sink, stack).poll()

    assert (world.sink.messages, is_pending) == ([], False)
    assert not webhook.build(webhook.Config(url="http://127.0.0.1:9")).wants_digests


def test_a_digest_to_a_sink_that_left_the_plan_is_dropped(tmp_path: Path) -> None:
    world = world_with_digest(tmp_path)
    world.sink = FakeSink(world.clock, RETRY)
    world.daemon().poll()
    world.end_run()
    world.clock.advance(RETRY_SECONDS)
    runs = world.folder.path.parent
    with ExitStack() as stack:
        delivery = AfterRunDelivery(runs, world.clock, stack, sinks_of=lambda _: {})
        pending = [delivery.poll(), delivery.poll()]

    assert pending == [True, False]


def test_a_digest_is_dropped_once_the_plan_has_none(tmp_path: Path) -> None:
    world = world_with_digest(tmp_path)
    world.sink = FakeSink(world.clock, RETRY)
    world.daemon().poll()
    world.change_plan("alerts: {}")
    world.clock.advance(RETRY_SECONDS)
    world.sink = FakeSink(world.clock, DELIVERED)
    world.daemon().poll()

    with FindingsStore(world.folder.findings) as store:
        assert store.open_notifications() == []
    assert world.sink.messages == []


def test_nothing_is_sent_before_the_last_result_is_on_disk(tmp_path: Path) -> None:
    """The drive took no writes when one recipient had the digest: no try until that is stored."""
    world = world_with_digest(tmp_path)
    sink = FakeSink(world.clock, PARTLY, DELIVERED)
    findings = world.folder.findings
    moved = findings.with_suffix(".moved")

    def break_once(_message: Message) -> None:
        if not moved.exists():
            findings.rename(moved)
            findings.mkdir()

    world.sink = HookedSink(sink, break_once)  # type: ignore[assignment]  # all that is called of it
    daemon = world.daemon()
    daemon.poll()
    world.clock.advance(RETRY_SECONDS)
    daemon.poll()
    tried = len(digests(sink))
    findings.rmdir()
    shutil.copy(moved, findings)
    daemon.poll()
    world.clock.advance(RETRY_SECONDS)
    daemon.poll()

    assert tried == 1
    assert [message.progress for message in digests(sink)] == ["", "a has it"]


def test_a_bug_in_a_sink_is_retried_and_a_refusal_is_final(tmp_path: Path) -> None:
    world = world_with_digest(tmp_path)
    faults = [ValueError("no")]

    def fail_once(_message: Message) -> None:
        if faults:
            raise faults.pop()

    sink = FakeSink(world.clock, NEVER)
    world.sink = HookedSink(sink, fail_once)  # type: ignore[assignment]  # all that is called of it
    daemon = world.daemon()
    states = []
    for _ in range(3):
        daemon.poll()
        with FindingsStore(world.folder.findings) as store:
            states.append([row.state for row in store.open_notifications()])
        world.clock.advance(RETRY_SECONDS)

    assert states == [["deferred"], [], []]
    assert len(sink.messages) == 1


def test_a_round_that_is_stopped_begins_no_other_message(tmp_path: Path) -> None:
    """Stopped during a mail, it leaves the digest to the shutdown."""
    world = world_with_digest(tmp_path)
    world.sink = FakeSink(world.clock, DELIVERED)
    world.save("confirmed", key="synthetic-1-200")
    world.daemon().poll(lambda: bool(world.sink.messages))

    assert len(world.sink.messages) == 1
