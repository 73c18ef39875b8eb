"""The consumer loop against a fake client: latency, audit, pauses and phases."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from soak.core import header
from soak.core.model import Record
from soak.core.plan import text as plan_text
from soak.core.plan.load import Consumers
from soak.core.plan.phases import Decision, Phase, decision_line
from soak.core.ports import EARLIEST, Batch, ReceiveError
from soak.core.units import SECOND_NS
from soak.load.consumer.sequence_tracker import restore_tracker
from soak.runtime.context import Context
from tests.support.fakes import FakeClock, FakeConsumer
from tests.support.load.load_loops import (
    batch_of,
    consumer_interval,
    consumer_loop,
    context_of,
    records_of,
)

PLAN = """
name: fake
broker: {kafka: {}}
topic: {name: soak-x, partitions: 2}
load: {rate: 1k/s, backlog: 2s}
phases: {warm_up: 0s, soak: 20s, drain: 5s}
"""
START = {0: EARLIEST, 1: EARLIEST}


def context_at(path: Path, clock: FakeClock, *phases: Decision, role: str = "consume.0") -> Context:
    plan = plan_text.load(PLAN, "plan").plan
    lines = "".join(one.to_line() for one in phases or (Decision("soak", 0),))
    return context_of(path, plan, clock, role, lines)


def empty_at(second: float) -> Batch:
    """Return a batch without messages, received at an instant."""
    return dataclasses.replace(batch_of(FakeClock()), at_mono_ns=round(second * SECOND_NS))


def consume(
    path: Path, batches: list[list[tuple[int, int]]], low: int = 0
) -> list[tuple[Record, dict[str, float]]]:
    """Let a consumer receive batches of (sequence, offset); return its records."""
    clock = FakeClock()
    context = context_at(path, clock)
    high = max(offset for rows in batches for _, offset in rows) + 1
    bounds = {0: (low, high), 1: (0, 0)}
    consumer = FakeConsumer([batch_of(clock, rows) for rows in batches], bounds)
    loop = consumer_loop(context, consumer, clock)
    for _ in batches:
        loop.tick()
    loop.finish()
    return records_of(context)


def test_end_to_end_latency_counts_from_the_due_time(tmp_path: Path) -> None:
    ((_, values),) = consume(tmp_path, [[(0, 0), (1, 1)]])

    assert values['end_to_end_latency_seconds{quantile="0.5"}'] == pytest.approx(0.001, rel=0.002)
    assert values["received_messages"] == 2


def test_duplicated_and_reordered_messages_are_counted_apart(tmp_path: Path) -> None:
    """The same number at two offsets is duplicated; 3 after 4 is reordered."""
    batches = [[(0, 0), (1, 1), (1, 2)], [(2, 3), (4, 4), (3, 5)]]

    ((record, values),) = consume(tmp_path, batches)

    assert (values["duplicated_messages"], values["reordered_messages"]) == (1, 1)
    assert sum(last - first + 1 for first, last, _, _ in record.received["5.1.0"]) == 5


def test_only_a_gap_that_retention_made_is_an_event(tmp_path: Path) -> None:
    """Offsets 0 to 99 are below the log start at 100; 150 to 159 do not exist."""
    batches = [[(100 + at, 100 + at) for at in range(50)], [(160, 160)]]

    ((record, _),) = consume(tmp_path, batches, low=100)

    expired = [event.fields for event in record.events if event.kind == "expired"]
    assert expired == [{"partition": 0, "from_offset": 0, "to_offset": 100}]


@pytest.mark.parametrize(
    ("run", "heads"), [("x", [b"hello", b""]), ("another", None)], ids=["no header", "another run"]
)
def test_foreign_messages_are_only_counted(
    tmp_path: Path, run: str, heads: list[bytes] | None
) -> None:
    clock = FakeClock()
    context = context_at(tmp_path, clock)
    batch = batch_of(clock, [(0, 0), (1, 1)], run=run)
    batch = dataclasses.replace(batch, heads=heads or batch.heads)
    loop = consumer_loop(context, FakeConsumer([batch], {0: (0, 2), 1: (0, 0)}), clock)
    loop.tick()
    loop.finish()

    ((record, values),) = records_of(context)
    assert (values["foreign_messages"], values["received_messages"], record.received) == (2, 0, {})


def test_a_message_counts_in_the_second_of_its_arrival(tmp_path: Path) -> None:
    """The last `receive` of a second returns a little late, with messages of both seconds."""
    clock = FakeClock()
    context = context_at(tmp_path, clock)
    edge_ns = context.grid.start_of(1)
    late = dataclasses.replace(
        batch_of(clock, [(at, at) for at in range(5)]),
        at_mono_ns=edge_ns + 300_000,
        came_mono_ns=edge_ns + np.array([-194, -94, -1, 0, 200]) * 1000,
    )
    consumer = FakeConsumer([late], {0: (0, 5)})
    loop = consumer_loop(context, consumer, clock, partitions=[0])
    loop.tick()
    loop.finish()

    assert [values["received_messages"] for _, values in records_of(context)] == [3, 2]


def test_errors_of_the_client_are_events_of_their_second(tmp_path: Path) -> None:
    """Of each kind one event, with how often it came; of more than five kinds the most frequent."""
    clock = FakeClock()
    context = context_at(tmp_path, clock)
    refused = ReceiveError("Connection refused", "_TRANSPORT", broker="b1:9092")
    denied = ReceiveError("Topic authorization failed", partition="soak-x-1")
    rare = {ReceiveError(f"kind {at}"): 1 for at in range(5)}
    edge_ns = context.grid.start_of(1)
    batches = [
        dataclasses.replace(batch_of(clock, [(0, 0)]), errors={refused: 20, denied: 2}),
        dataclasses.replace(batch_of(clock, [(1, 1)]), errors={refused: 3, **rare}),
        dataclasses.replace(batch_of(clock), at_mono_ns=edge_ns + 300_000, errors={denied: 7}),
    ]
    loop = consumer_loop(context, FakeConsumer(batches, {0: (0, 2)}), clock, partitions=[0])
    for _ in range(3):
        loop.tick()
    loop.finish()

    first, second = (list(record.events) for record, _ in records_of(context))
    assert [event.kind for event in first] == ["receive_errors"] * 5
    assert [dict(event.fields) for event in first[:2]] == [
        {"reason": refused.reason, "code": "_TRANSPORT", "broker": "b1:9092", "errors": 23},
        {"reason": denied.reason, "partition": "soak-x-1", "errors": 2},
    ]
    assert [event.fields["errors"] for event in second if event.kind == "receive_errors"] == [7]


def test_time_between_two_receives_counts_as_a_pause(tmp_path: Path) -> None:
    """Messages that arrive meanwhile are stamped later."""
    clock = FakeClock()
    context = context_at(tmp_path, clock)

    class SlowConsumer(FakeConsumer):
        def receive(self, limit: int, timeout_seconds: float) -> Batch:
            batch = super().receive(limit, timeout_seconds)
            clock.advance(0.067)
            return batch

    batches = [batch_of(clock, [(at, at)]) for at in range(2)]
    loop = consumer_loop(context, SlowConsumer(batches, {0: (0, 2)}), clock, partitions=[0])
    loop.tick()
    loop.tick()
    loop.finish()

    ((record, values),) = records_of(context)
    assert values["consumer_pause_seconds"] == pytest.approx(0.067)
    assert record.validity["reason"] == "consumer_pause"


def test_redelivered_messages_are_counted_without_any_other_message(tmp_path: Path) -> None:
    clock = FakeClock()
    context = context_at(tmp_path, clock)
    again = dataclasses.replace(batch_of(clock), redelivered=23)
    loop = consumer_loop(context, FakeConsumer([again], {0: (0, 0), 1: (0, 0)}), clock)
    loop.tick()
    loop.finish()

    ((_, values),) = records_of(context)
    assert (values["redelivered_messages"], values["received_messages"]) == (23, 0)


def test_a_restarted_consumer_continues_where_its_journal_ends(tmp_path: Path) -> None:
    consume(tmp_path, [[(at, at) for at in range(23)]])

    tracker, is_restart = restore_tracker(tmp_path / "journal", "consume.0@host", START)

    assert is_restart
    assert tracker.positions == {0: 23, 1: EARLIEST}
    assert list(tracker.streams["5.1.0"]) == [(0, 22)]


def test_messages_that_are_read_again_after_a_restart_are_no_duplicates(tmp_path: Path) -> None:
    consume(tmp_path, [[(at, at) for at in range(23)]])
    tracker, _ = restore_tracker(tmp_path / "journal", "consume.0@host", START)
    batch = batch_of(FakeClock(), [(20, 20), (21, 21), (22, 22), (23, 23)])
    block, is_ours = header.parse(list(batch.heads))

    counts = tracker.add(block, is_ours, batch.partition, batch.offset)

    assert (counts.reread, counts.duplicated) == (3, 0)
    assert tracker.take_spans() == {"5.1.0": ((23, 23, 23, 23),)}


@pytest.mark.parametrize(("phase", "closed"), [("end", "for good"), ("drain", "left")])
def test_only_after_the_end_of_the_run_is_the_subscription_deleted(
    tmp_path: Path, phase: Phase, closed: str
) -> None:
    """A consumer that is stopped or suspended starts again and continues."""
    clock = FakeClock()
    context = context_at(tmp_path, clock, Decision(phase, 0))
    consumer = FakeConsumer([batch_of(clock, [(0, 0)])], {0: (0, 1), 1: (0, 0)})
    loop = consumer_loop(context, consumer, clock)
    loop.tick()
    loop.finish()

    assert consumer.closed == closed


def test_a_restarted_consumer_is_invalid_until_it_has_caught_up(tmp_path: Path) -> None:
    clock = FakeClock()
    context = context_at(tmp_path, clock)
    batches = [batch_of(clock, [(at, at) for at in range(100)])]
    batches += [empty_at(second) for second in (1, 2, 2, 2, 2)]
    consumer = FakeConsumer(batches, {0: (0, 100), 1: (0, 0)})
    loop = consumer_loop(context, consumer, clock, is_behind=True)
    for _ in range(6):  # a record is written during the next ticks
        loop.tick()

    reasons = [record.validity["reason"] for record, _ in records_of(context)]
    assert reasons == ["catching_up", ""]


def test_reread_messages_have_no_latency(tmp_path: Path) -> None:
    """A truncated log is read from its start: the age of its messages says nothing about now."""
    clock = FakeClock()
    context = context_at(tmp_path, clock)
    batch = batch_of(clock, [(at, at) for at in range(100)])
    again = dataclasses.replace(batch, at_mono_ns=15 * SECOND_NS // 10)
    batches = [batch, empty_at(1), again, empty_at(2), empty_at(3), empty_at(3)]
    loop = consumer_loop(context, FakeConsumer(batches, {0: (0, 100), 1: (0, 0)}), clock)
    for _ in range(6):
        loop.tick()

    record, values = records_of(context)[1]
    assert (values["received_messages"], values["reread_messages"]) == (100, 100)
    assert np.isnan(values['end_to_end_latency_seconds{quantile="0.99"}'])
    assert record.validity["reason"] == "catching_up"


def test_a_consumer_has_caught_up_by_its_own_share_of_the_load() -> None:
    """190,000 messages are 19 s of its 10,000/s, although they are 2 s of all 100,000/s."""
    interval = consumer_interval(is_behind=True)

    assert interval.following(190_000, 10_000.0).reason() == "catching_up"
    assert interval.following(19_000, 10_000.0).reason() == ""


@pytest.mark.parametrize(
    ("partitions", "lag", "reason"),
    [((0, 1), 1999, ""), ((0, 1), 2001, "catching_up"), ((1,), 1001, "catching_up")],
)
def test_the_share_of_a_consumer_is_that_of_its_partitions(
    tmp_path: Path, partitions: tuple[int, ...], lag: int, reason: str
) -> None:
    """At 1,000 messages a second, 2 s of both partitions are 2,000 messages, of one 1,000."""
    clock = FakeClock()
    context = context_at(tmp_path, clock)
    consumer = FakeConsumer(
        [empty_at(second) for second in (0, 1, 2, 3, 3, 3)], {0: (0, 0), 1: (0, lag)}
    )
    loop = consumer_loop(context, consumer, clock, partitions=partitions, is_behind=True)
    for _ in range(6):
        loop.tick()

    *_, (record, _) = records_of(context)
    assert record.validity["reason"] == reason


def test_consumers_pause_while_a_catch_up_builds_its_backlog(tmp_path: Path) -> None:
    """One tick a second: each follows the phase of the second of the tick before."""
    clock = FakeClock()
    build, drain = Decision("catch-up", 2, part="build"), Decision("catch-up", 4, part="drain")
    context = context_at(tmp_path, clock, Decision("soak", 0), build, drain)
    consumer = FakeConsumer([empty_at(at) for at in range(7)], {0: (0, 0), 1: (0, 0)})
    loop = consumer_loop(context, consumer, clock)
    paused = []
    for _ in range(7):
        loop.tick()
        paused.append(consumer.is_paused)

    assert paused == [False, False, False, True, True, False, False]


def test_a_consumer_that_starts_during_the_build_pauses_too(tmp_path: Path) -> None:
    clock = FakeClock()
    context = context_at(tmp_path, clock, Decision("catch-up", 0, part="build"))
    consumer = FakeConsumer([empty_at(1)], {0: (0, 0), 1: (0, 0)})
    consumer_loop(context, consumer, clock).tick()

    assert consumer.is_paused


def test_a_live_subscription_does_not_pause_for_a_catch_up(tmp_path: Path) -> None:
    """The first of three subscriptions, of two processes each: processes 0 and 1."""
    clock, paused = FakeClock(), []
    for index in range(6):
        build = Decision("catch-up", 0, part="build")
        context = context_at(tmp_path, clock, build, role=f"consume.{index}")
        consumers = Consumers(subscriptions=3, per_subscription=2, live_subscriptions=1)
        plan = dataclasses.replace(context.plan, consumers=consumers)
        consumer = FakeConsumer([empty_at(1)], {0: (0, 0), 1: (0, 0)})
        consumer_loop(dataclasses.replace(context, plan=plan), consumer, clock).tick()
        paused.append(consumer.is_paused)

    assert paused == [False, False, True, True, True, True]


def test_a_phase_begins_without_a_restart(tmp_path: Path) -> None:
    clock = FakeClock()
    context = context_at(tmp_path, clock)
    consumer = FakeConsumer([empty_at(0), empty_at(1)], {0: (0, 0), 1: (0, 0)})
    loop = consumer_loop(context, consumer, clock)
    loop.tick()
    context.folder.phases.write_text(decision_line("soak", 0) + decision_line("end", 1))
    loop.tick()

    assert loop.is_over
