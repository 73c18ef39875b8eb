"""The alert daemon in trouble: unusable sinks and files, clocks that jump, and runs that have ended."""

from __future__ import annotations

import cProfile
import re
import shutil
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from soak.alerting.daemon import SHUTDOWN_LIMIT_NS, AlertDaemon
from soak.alerting.delivery import RESEND_PERIOD_NS
from soak.app import units
from soak.clients.deadline import DEADLINE_SECONDS
from soak.core.plan.phases import decision_line
from soak.core.plan.text import load
from soak.core.ports import Message
from soak.core.units import SECOND_NS, duration_ns
from soak.service.files import file_lock
from soak.store.findings.store import FindingsStore
from soak.store.run_folder import read_run, write_run
from soak.supervisor.run import roles_of
from tests.support.alerting.daemon import (
    DELIVERED,
    KEY,
    OTHER,
    RETRY,
    RUN,
    AlertWorld,
    FakeRepeatingSink,
    FakeSink,
    HookedSink,
)
from tests.support.alerting.findings import SERIES, finding


def broken(message: Message) -> None:
    if message.key.startswith(KEY):
        raise ValueError("Invalid header value b'Bearer swordfish'")


def test_an_error_in_a_sink_does_not_block_other_messages(tmp_path: Path) -> None:
    """The message is deferred, and its stored error does not quote a secret."""
    world = AlertWorld(tmp_path, DELIVERED).without_charts()
    world.save("confirmed", key=OTHER)
    world.sink = HookedSink(world.sink, broken)  # type: ignore[assignment]  # a sink of another make
    for _ in range(2):
        world.daemon().poll()

    with FindingsStore(world.folder.findings) as store:
        first, second = store.notifications(RUN)
    assert (first.state, first.attempts, second.state) == ("deferred", 1, "sent")
    assert first.detail.startswith("ValueError in test_alert_failures.py:")
    assert "fish" not in first.detail


def test_an_unavailable_sink_is_tried_once_a_round(tmp_path: Path) -> None:
    world = AlertWorld(tmp_path, RETRY).without_charts()
    for number in range(5):
        world.save("confirmed", key=f"synthetic-1-{200 + number}")
    world.daemon().poll()

    assert len(world.sink.messages) == 1


def test_the_shutdown_tries_a_sink_that_fails_only_once(tmp_path: Path) -> None:
    """Otherwise what may have arrived is repeated each time that another sink takes a message."""
    world = AlertWorld(tmp_path, RETRY, state="gone").without_charts()
    other = FakeSink(world.clock, DELIVERED)
    with FindingsStore(world.folder.findings) as store:
        store.queue_added(RUN, ["other"], 0, world.clock.wall_ns())
    plan, run = load(world.folder.plan.read_text(), "plan.yaml").plan, read_run(world.folder)
    sinks = {"mail": world.sink, "other": other}

    AlertDaemon(world.folder, plan, run, sinks, world.clock).shut_down()

    assert (len(world.sink.messages), len(other.messages)) == (1, 2)


def test_nothing_is_sent_while_the_file_cannot_be_used(tmp_path: Path) -> None:
    """The daemon goes on, and sends once the file is usable."""
    world = AlertWorld(tmp_path, DELIVERED).without_charts()
    daemon = world.daemon()
    whole = world.folder.findings.read_bytes()
    world.folder.findings.write_bytes(b"no database, but long enough to look" * 99)
    settled = [daemon.poll(), daemon.poll()]
    daemon.shut_down()
    within = len(world.sink.messages)
    world.folder.findings.write_bytes(whole)
    settled.append(daemon.poll())

    assert (within, settled, len(world.sink.messages)) == (0, [0, 0, 1], 1)


def test_a_sent_message_is_marked_as_soon_as_the_drive_takes_writes(tmp_path: Path) -> None:
    """It is not sent twice."""
    world = AlertWorld(tmp_path, DELIVERED).without_charts()
    sink = world.sink
    kept: list[bytes] = []

    def spoil(_message: Message) -> None:
        kept.append(world.folder.findings.read_bytes())
        world.folder.findings.write_bytes(b"no database, but long enough to look" * 99)

    world.sink = HookedSink(sink, spoil)  # type: ignore[assignment]  # a sink of another make
    daemon = world.daemon()
    daemon.poll()
    world.folder.findings.write_bytes(kept[0])
    world.clock.advance(60)
    daemon.poll()

    assert len(sink.messages) == 1
    assert world.states() == [("opened", "sent")]


@pytest.mark.long
def test_a_pause_keeps_to_the_hourly_limit(tmp_path: Path) -> None:
    """Only at the end of a run all messages are sent at once."""
    world = AlertWorld(tmp_path, DELIVERED).without_charts()
    world.change_plan("alerts: {max_per_hour: 2}")
    for number in range(12):
        world.save("confirmed", key=f"synthetic-1-{200 + number}")
    world.folder.phases.write_text(decision_line("soak", 0))
    daemon = world.daemon()
    daemon.poll()
    daemon.shut_down()
    paused = len(world.sink.messages)
    world.folder.phases.write_text(decision_line("soak", 0) + decision_line("end", 130))
    daemon.shut_down()

    assert (paused, len(world.sink.messages)) == (2, 13)


@pytest.mark.long
def test_a_clock_that_ran_ahead_does_not_use_up_the_hourly_limit(tmp_path: Path) -> None:
    """Two messages were sent in an hour that is yet to come."""
    world = AlertWorld(tmp_path, DELIVERED).without_charts()
    world.change_plan("alerts: {max_per_hour: 2, digest: '0 7 * * *'}")
    world.save("confirmed", key=OTHER)
    world.clock.advance(48 * 3600)
    world.daemon().poll()
    ahead = len(world.sink.messages)
    world.clock.step_wall(-48 * 3600)
    world.save("confirmed", key="synthetic-1-150")
    world.daemon().poll()
    back = len(world.sink.messages)
    world.clock.advance(24 * 3600)
    world.daemon().poll()

    assert (ahead, back) == (3, 4)  # two findings and the digest; the third finding
    assert "digest" in world.sink.messages[-1].subject


def test_a_finding_that_is_the_clients_fault_is_withdrawn(tmp_path: Path) -> None:
    """The message says that it was a false alarm, refers to the first one, and ends the alert."""
    world = AlertWorld(tmp_path, DELIVERED).without_charts()
    world.daemon().poll()
    cleared = finding(
        key=KEY, run=RUN, series=SERIES.replace("@h", "@host"), is_about_cluster=False
    )
    with FindingsStore(world.folder.findings) as store:
        store.save_finding(cleared, ["mail"], world.clock.wall_ns())
    world.daemon().poll()

    first, second = world.sink.messages
    assert second.subject.startswith("[soakd] false alarm withdrawn: p99 end-to-end")
    assert "Withdrawn: data recorded since" in second.text
    assert (second.follows, second.end_wall_ns) == (first.key, world.clock.wall_ns())


@pytest.mark.long
def test_a_finding_that_comes_back_is_reopened(tmp_path: Path) -> None:
    """Its message has a key of its own and refers to the message that it was resolved."""
    world = AlertWorld(tmp_path, DELIVERED).without_charts()
    for state in ("confirmed", "gone", "confirmed", "gone"):
        world.save(state)
        world.daemon().poll()

    assert [message.key.removeprefix(KEY) for message in world.sink.messages] == [
        ".confirmed",
        ".gone",
        ".confirmed-2",
        ".gone-2",
    ]
    _, over, again, last = world.sink.messages
    assert again.subject.startswith("[soakd] again: retention cliff: p99 end-to-end")
    assert again.text.startswith("The finding was resolved and is open again.\n")
    assert (again.follows, last.follows) == (over.key, again.key)


def test_open_findings_are_sent_again_to_a_repeating_sink(tmp_path: Path) -> None:
    """Every two minutes; resolved findings are not."""
    world = AlertWorld(tmp_path, DELIVERED).without_charts()
    sink = world.sink = FakeRepeatingSink(world.clock, DELIVERED)
    world.save("confirmed", key=OTHER)
    daemon = world.daemon()
    daemon.poll()
    first = [message.key for message in sink.again]
    world.save("gone", key=OTHER)
    daemon.poll()
    world.clock.advance(RESEND_PERIOD_NS / SECOND_NS)
    daemon.poll()

    assert first == [f"{KEY}.confirmed", f"{OTHER}.confirmed"]
    assert [message.key for message in sink.again] == [f"{KEY}.confirmed"]
    assert len(sink.messages) == 3


def test_a_finding_that_was_damaged_since_blocks_no_other_that_is_sent_again(
    tmp_path: Path,
) -> None:
    """Nor does it end the daemon, which would meet it again at once."""
    world = AlertWorld(tmp_path, DELIVERED).without_charts()
    sink = world.sink = FakeRepeatingSink(world.clock, DELIVERED)
    world.save("confirmed", key=OTHER)
    daemon = world.daemon()
    daemon.poll()
    damaged = finding("confirmed", key=OTHER, run=RUN, kind="objective")  # its series names none
    with FindingsStore(world.folder.findings) as store:
        store.save_finding(damaged, ["mail"], world.clock.wall_ns())
    world.clock.advance(RESEND_PERIOD_NS / SECOND_NS)
    daemon.poll()

    assert [message.key for message in sink.again] == [f"{KEY}.confirmed"]


@pytest.mark.long
def test_the_findings_are_read_once_for_all_messages_that_are_sent_again(tmp_path: Path) -> None:
    """Each message names the others, so that reading them for each would be quadratic."""
    world = AlertWorld(tmp_path, DELIVERED).without_charts()
    sink = world.sink = FakeRepeatingSink(world.clock, DELIVERED)
    for number in range(6):
        world.save("confirmed", key=f"{OTHER}{number}")
    daemon = world.daemon()
    daemon.poll()
    world.clock.advance(RESEND_PERIOD_NS / SECOND_NS)
    with cProfile.Profile() as profile:
        daemon.poll()
    readings = [
        one.callcount
        for one in profile.getstats()
        if not isinstance(one.code, str) and one.code.co_qualname == "FindingsStore.findings"
    ]

    assert (len(sink.again), readings) == (7, [1])
    assert all(", and 5\n" in message.text for message in sink.again)


def test_pending_messages_of_an_ended_run_are_sent_when_the_server_is_back(tmp_path: Path) -> None:
    """While the run goes on, its own daemon does that."""
    world = AlertWorld(tmp_path, RETRY, state="gone").without_charts()
    sink = FakeSink(world.clock, RETRY, RETRY, DELIVERED)
    with ExitStack() as stack:
        delivery = world.after_run(sink, stack)
        write_run(world.folder, replace(read_run(world.folder), state="running"))
        while_it_runs = delivery.poll()
        world.end_run()
        rounds = 0
        while delivery.poll():
            rounds += 1
            world.clock.advance(1)

    assert not while_it_runs
    assert rounds > 15
    assert world.states() == [("opened", "sent"), ("resolved", "sent")]
    assert len(sink.messages) == 4


def test_messages_of_an_ended_run_are_tried_for_a_day(tmp_path: Path) -> None:
    """One outbox is opened by one daemon only."""
    world = AlertWorld(tmp_path, RETRY).without_charts()
    world.end_run()
    with ExitStack() as stack:
        with file_lock(world.folder.path / "alert.lock", "the outbox"):
            in_use = world.after_run(world.sink, stack).poll()
        delivery = world.after_run(world.sink, stack)
        is_tried = delivery.poll()
        world.clock.advance(86_400)

        assert (in_use, is_tried, delivery.poll()) == (False, True, False)
        assert not world.after_run(world.sink, stack).poll(), "nor does the next daemon"


def test_a_deleted_run_has_no_pending_messages(tmp_path: Path) -> None:
    world = AlertWorld(tmp_path, RETRY).without_charts()
    world.end_run()
    with ExitStack() as stack:
        delivery = world.after_run(world.sink, stack)
        before = delivery.poll()
        shutil.rmtree(world.folder.path)

        assert (before, delivery.poll()) == (True, False)
    assert not world.folder.path.exists()


def test_the_last_messages_have_time_in_a_terminal_and_under_systemd() -> None:
    """For a message in progress and one that begins in the last round, in both places."""
    plan = load("name: p\nbroker: {kafka: {}}\nprobes: {host: {}}\n", "p").plan
    grace_ns = {role.name: role.grace_ns for role in roles_of(plan)}["alert"]
    unit = units.rendered_files()[units.UNITS / "soak-alert@.service"]

    stops = re.findall(r"^TimeoutStopSec=(.+)$", unit, re.MULTILINE)

    assert [duration_ns(one) for one in stops] == [grace_ns]
    assert grace_ns > 2 * DEADLINE_SECONDS * SECOND_NS + SHUTDOWN_LIMIT_NS
