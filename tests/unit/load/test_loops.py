from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from soak.conductor.loop import is_drained
from soak.core import header
from soak.core.model import Record
from soak.core.plan import text as plan_text
from soak.core.plan.phases import Phase, decision_line, parse_phases, planned_phases
from soak.core.ports import EARLIEST, FAILED_OFFSET, UNKNOWN_OFFSET, Batch, Topics
from soak.core.units import SECOND_NS
from soak.load.consumer.interval import ConsumerInterval
from soak.load.consumer.loop import ConsumerLoop
from soak.load.consumer.sequence_tracker import SequenceTracker, restore_tracker
from soak.load.leaders import Leaders
from soak.load.producer.in_flight import Settled
from soak.load.producer.interval import ProducerInterval
from soak.load.producer.loop import ProducerLoop, is_first_start
from soak.load.producer.messages import Messages
from soak.runtime.context import Context, topics_of
from soak.runtime.recorder import Samples
from soak.store.journal.reader import read_source
from tests.support.daemon_context import context_of
from tests.support.fakes import FakeBell, FakeBroker, FakeClock, FakeConsumer, FakeProducer

PLAN = """
name: fake
broker: {kafka: {}}
topic: {partitions: 2}
load: {rate: 1k/s, backlog: 2s}
phases: {warm_up: 0s, soak: 20s, drain: 5s}
"""


def _context(tmp_path: Path, clock: FakeClock, role: str, phases: str | None = None) -> Context:
    """Return a run that starts now; `phases` replaces those that the plan gives."""
    plan = plan_text.load(PLAN, "plan").plan
    plan = dataclasses.replace(plan, topic=dataclasses.replace(plan.topic, name="soak-x"))
    steps = planned_phases(plan.phases)
    lines = [decision_line(name, k) for name, k in zip(steps.names, steps.from_k, strict=True)]
    text = "".join(lines) if phases is None else phases
    return context_of(tmp_path, plan, clock, role, text)


def _records(context: Context) -> list[tuple[Record, dict[str, float]]]:
    context.writer.close(is_end=True)
    return [
        (record, dict(zip((column.name for column in columns), record.values, strict=True)))
        for record, columns in read_source(context.folder.journal, context.source)
    ]


def _sent_and_missed(context: Context) -> tuple[float, float]:
    """Return what all records together count."""
    records = _records(context)
    return (
        sum(values["sent_messages"] for _, values in records),
        sum(values["missed_messages"] for _, values in records),
    )


def _produce_loop(context: Context, producer: FakeProducer, clock: FakeClock) -> ProducerLoop:
    plan, topics = context.plan, topics_of(context.plan)
    epoch, broker = context.writer.epoch, FakeBroker()
    messages = Messages(plan.load, topics, [5], epoch, 9, broker)
    second = ProducerInterval([5], epoch, topics.total)
    leaders = Leaders(broker, topics)
    return ProducerLoop(context, 0, [producer], messages, second, leaders, clock, FakeBell(clock))


def _consume_second(*, is_behind: bool = False) -> ConsumerInterval:
    return ConsumerInterval(9, Leaders(FakeBroker(), Topics(("soak-x",), 2)), is_behind=is_behind)


def _run_producer(
    context: Context, producer: FakeProducer, clock: FakeClock, seconds: float
) -> None:
    loop = _produce_loop(context, producer, clock)
    end_ns = clock.mono_ns() + round(seconds * SECOND_NS)
    while clock.mono_ns() < end_ns:
        loop.tick()
    loop.finish()


def test_the_producer_sends_what_the_schedule_says_and_records_each_second(tmp_path: Path) -> None:
    clock = FakeClock()
    context, producer = _context(tmp_path, clock, "produce.0"), FakeProducer(clock)

    _run_producer(context, producer, clock, 3.0)

    (_, first), (_, second), *_ = _records(context)
    assert (first["sent_messages"], second["sent_messages"]) == (1000, 1000)
    assert 0.001 <= second['publish_latency_seconds{quantile="0.5"}'] <= 0.0016


def test_a_second_is_written_down_between_sends_and_counts_none_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one go it would hold them up for milliseconds: p99.9 would be of that, not of the cluster."""
    clock, written = FakeClock(), list[tuple[int, float, int]]()
    context, producer = _context(tmp_path, clock, "produce.0"), FakeProducer(clock)

    def append(k: int, samples: Samples, **_: object) -> None:
        values = {column.name: value for column, value in samples}
        written.append((k, values["sent_messages"], len(producer.payloads)))

    monkeypatch.setattr(context.recorder, "append", append)
    _run_producer(context, producer, clock, 3.0)

    assert [(k, sent) for k, sent, _ in written[:2]] == [(0, 1000), (1, 1000)]
    assert all(0 < so_far - 1000 * (k + 1) <= 10 for k, _, so_far in written[:2])  # within 10 ms


def test_every_payload_says_where_it_stands_and_when_it_was_due(tmp_path: Path) -> None:
    clock = FakeClock()
    context, producer = _context(tmp_path, clock, "produce.0"), FakeProducer(clock)

    _run_producer(context, producer, clock, 1.0)

    block, is_ours = header.parse([payload for _, payload in producer.payloads])
    assert is_ours.all()
    due = sorted(block["intended_mono_ns"].tolist())
    start = context.grid.start_mono_ns
    assert due == [start + index * 10**6 for index in range(len(due))]
    for at in (0, 1):
        stream = [
            p for p, (q, _) in zip(block["sequence"], producer.payloads, strict=True) if q == at
        ]
        assert stream == list(range(len(stream)))


def test_latency_counts_from_the_intended_time_through_a_stall(tmp_path: Path) -> None:
    """The broker answers nothing for 1.5 s; 1,500 messages wait, the first of them that long."""
    clock = FakeClock()
    context, producer = _context(tmp_path, clock, "produce.0"), FakeProducer(clock)
    loop = _produce_loop(context, producer, clock)
    producer.is_stalled = True
    while clock.mono_ns() < context.grid.start_of(0) + 1_500_000_000:
        loop.tick()
    producer.is_stalled = False
    producer.latency_ns = 0
    while clock.mono_ns() < context.grid.start_of(3):
        loop.tick()
    loop.finish()

    (_, silent), (record, _), *_ = _records(context)
    assert np.isnan(silent['publish_latency_seconds{quantile="0.5"}'])
    assert silent["in_flight_messages"] == 1000
    assert silent["publish_waiting_seconds"] == 1
    assert record.is_valid


def test_what_nobody_acknowledges_or_takes_waits_longer_each_second(tmp_path: Path) -> None:
    """While it lasts no latency is known, and in_flight stands still once the client's queue is full."""
    clock = FakeClock()
    context, producer = _context(tmp_path, clock, "produce.0"), FakeProducer(clock)
    producer.is_stalled = True
    loop = _produce_loop(context, producer, clock)
    while clock.mono_ns() < context.grid.start_of(1):
        loop.tick()
    producer.is_full = True
    while clock.mono_ns() < context.grid.start_of(4):
        loop.tick()
    producer.is_stalled = producer.is_full = False
    while clock.mono_ns() < context.grid.start_of(30):
        loop.tick()
    loop.finish()

    waits = [values["publish_waiting_seconds"] for _, values in _records(context)]
    assert waits[:3] == [1, 2, 3]
    assert waits[-2] == 0  # the last is a part of a second


def test_a_full_queue_is_counted_and_the_oldest_sends_are_given_up(tmp_path: Path) -> None:
    """At 5.002 s with a backlog of 2 s all sends due before 3.002 s are missed: 3,002 of them."""
    clock = FakeClock()
    context, producer = _context(tmp_path, clock, "produce.0"), FakeProducer(clock)
    producer.is_full = True

    _run_producer(context, producer, clock, 5.003)

    records = _records(context)
    assert sum(values["sent_messages"] for _, values in records) == 0
    assert sum(values["missed_messages"] for _, values in records) == 3002
    assert all(record.is_valid for record, _ in records[:5])  # it is not us who are slow


def test_what_the_client_gives_up_is_failed_and_named(tmp_path: Path) -> None:
    clock = FakeClock()
    context, producer = _context(tmp_path, clock, "produce.0"), FakeProducer(clock)
    producer.is_stalled = True

    _run_producer(context, producer, clock, 0.5)

    records = _records(context)
    failed = sum(values["failed_messages"] for _, values in records)
    named = [event.fields for record, _ in records for event in record.events]
    assert failed == len(producer.payloads) > 0
    assert sum(int(one["last"]) - int(one["first"]) + 1 for one in named) == failed


def test_nothing_is_sent_outside_the_loaded_phases_and_it_is_not_missed(tmp_path: Path) -> None:
    clock = FakeClock()
    phases = decision_line("warm-up", 3) + decision_line("drain", 5)
    context, producer = _context(tmp_path, clock, "produce.0", phases), FakeProducer(clock)

    _run_producer(context, producer, clock, 8.0)

    records = _records(context)
    assert [values["sent_messages"] for _, values in records[:8]] == [0, 0, 0, 1000, 1000, 0, 0, 0]
    assert sum(values["missed_messages"] for _, values in records) == 0


def test_a_clock_step_is_an_event_and_the_second_is_not_trusted(tmp_path: Path) -> None:
    clock = FakeClock()
    context = _context(tmp_path, clock, "probe")
    clock.advance(1)
    context.recorder.append(0, [])
    clock.step_wall(-7)
    clock.advance(1)
    context.recorder.append(1, [])
    clock.advance(1)
    context.recorder.append(2, [])

    (good, _), (stepped, _), (after, _) = _records(context)
    assert (good.events, after.events) == ((), ())
    assert [(event.kind, event.fields["seconds"]) for event in stepped.events] == [
        ("clock_step", -7)
    ]
    assert not stepped.is_valid


def test_a_suspend_asks_for_a_new_incarnation(tmp_path: Path) -> None:
    clock = FakeClock()
    context = _context(tmp_path, clock, "probe")
    clock.suspend(600)
    clock.advance(1)
    context.recorder.append(0, [])

    ((record, _),) = _records(context)
    assert context.recorder.is_suspended
    assert record.events[0].kind == "suspend"


def _batch(clock: FakeClock, rows: list[tuple[int, int]], epoch: int = 1, run: str = "x") -> Batch:
    """Return messages (sequence, offset) of one lane in partition 0, due a millisecond ago."""
    block = header.headers(len(rows), 5, epoch, 9, header.run_of(run))
    block["sequence"] = [sequence for sequence, _ in rows]
    block["intended_mono_ns"] = clock.mono_ns() - 1_000_000
    return Batch(
        heads=[row.tobytes() + b"body" for row in block],
        partition=np.zeros(len(rows), dtype=np.int64),
        offset=np.array([offset for _, offset in rows], dtype=np.int64),
        at_mono_ns=clock.mono_ns(),
        at_wall_ns=clock.wall_ns(),
    )


def _consume(
    tmp_path: Path, rows: list[list[tuple[int, int]]], low: int = 0
) -> list[tuple[Record, dict[str, float]]]:
    clock = FakeClock()
    context = _context(tmp_path, clock, "consume.0")
    batches = [_batch(clock, batch) for batch in rows]
    high = max(offset for batch in rows for _, offset in batch) + 1
    consumer = FakeConsumer(batches, {0: (low, high), 1: (0, 0)})
    received = SequenceTracker({0: EARLIEST, 1: EARLIEST})
    loop = ConsumerLoop(context, consumer, received, _consume_second(), clock)
    for _ in rows:
        loop.tick()
    loop.finish()
    return _records(context)


def test_end_to_end_latency_counts_from_the_intended_time(tmp_path: Path) -> None:
    ((_, values),) = _consume(tmp_path, [[(0, 0), (1, 1)]])

    assert values['end_to_end_latency_seconds{quantile="0.5"}'] == pytest.approx(0.001, rel=0.002)
    assert values["received_messages"] == 2


def test_every_instance_number_names_its_own_lane() -> None:
    """It is a crc32, so half of all numbers have their highest bit set."""
    received = SequenceTracker({0: EARLIEST})
    batch = _batch(FakeClock(), [(0, 0), (1, 1)])
    block, is_ours = header.parse(list(batch.heads))
    block = block.copy()
    block["instance"] = [2**32 - 1, 2**31]

    received.add(block, is_ours, batch.partition, batch.offset)

    assert set(received.take_spans()) == {f"{2**32 - 1}.1.0", f"{2**31}.1.0"}


def test_duplicates_and_late_messages_are_counted_apart(tmp_path: Path) -> None:
    """Twice the same number at two offsets is a duplicate; 3 after 4 is reordered."""
    rows = [[(0, 0), (1, 1), (1, 2)], [(2, 3), (4, 4), (3, 5)]]

    ((record, values),) = _consume(tmp_path, rows)

    assert (values["duplicated_messages"], values["reordered_messages"]) == (1, 1)
    assert sum(last - first + 1 for first, last, _, _ in record.received["5.1.0"]) == 5


def test_a_hole_that_retention_made_is_an_event_and_another_hole_is_not(tmp_path: Path) -> None:
    """Offsets 0 to 99 are below the log start at 100; 150 to 159 are simply not there."""
    rows = [[(100 + at, 100 + at) for at in range(50)], [(160, 160)]]

    ((record, _),) = _consume(tmp_path, rows, low=100)

    expired = [event.fields for event in record.events if event.kind == "expired"]
    assert expired == [{"partition": 0, "from_offset": 0, "to_offset": 100}]


def test_whole_blocks_that_retention_deleted_are_expired_where_offsets_have_holes() -> None:
    """Blocks of 16: offsets 3 and 9 lie in block 0, 37 in block 2; the log now begins with block 2."""
    clock, received = FakeClock(), SequenceTracker({0: EARLIEST}, block_bits=4)
    batch = _batch(clock, [(0, 3), (1, 9), (5, 37), (6, 44)])
    block, is_ours = header.parse(list(batch.heads))

    received.add(block, is_ours, batch.partition, batch.offset)
    events = received.take_events(FakeConsumer([], {0: (32, 48)}), clock)

    assert [dict(event.fields) for event in events] == [
        {"partition": 0, "from_offset": 10, "to_offset": 32}
    ]


@pytest.mark.parametrize(
    ("run", "heads"), [("x", [b"hello", b""]), ("another", None)], ids=["no header", "another run"]
)
def test_foreign_messages_are_counted_and_left_alone(
    tmp_path: Path, run: str, heads: list[bytes] | None
) -> None:
    clock = FakeClock()
    context = _context(tmp_path, clock, "consume.0")
    batch = _batch(clock, [(0, 0), (1, 1)], run=run)
    batch = dataclasses.replace(batch, heads=heads or batch.heads)
    consumer = FakeConsumer([batch], {0: (0, 2), 1: (0, 0)})
    received = SequenceTracker({0: EARLIEST, 1: EARLIEST})
    loop = ConsumerLoop(context, consumer, received, _consume_second(), clock)
    loop.tick()
    loop.finish()

    ((record, values),) = _records(context)
    assert (values["foreign_messages"], values["received_messages"], record.received) == (2, 0, {})


def test_a_message_counts_in_the_second_in_which_it_came_though_the_wait_ended_after_it(
    tmp_path: Path,
) -> None:
    """The last wait of a second ends some of a millisecond late, with what came within 200."""
    clock = FakeClock()
    context = _context(tmp_path, clock, "consume.0")
    edge_ns = context.grid.start_of(1)
    late = dataclasses.replace(
        _batch(clock, [(at, at) for at in range(5)]),
        at_mono_ns=edge_ns + 300_000,
        came_mono_ns=edge_ns + np.array([-194, -94, -1, 0, 200]) * 1000,
    )
    consumer = FakeConsumer([late], {0: (0, 5), 1: (0, 0)})
    loop = ConsumerLoop(context, consumer, SequenceTracker({0: EARLIEST}), _consume_second(), clock)
    loop.tick()
    loop.finish()

    assert [values["received_messages"] for _, values in _records(context)] == [3, 2]


def test_what_the_client_does_after_its_wait_counts_as_a_pause(tmp_path: Path) -> None:
    """Meanwhile nothing is stamped: what comes then seems to have come later."""
    clock = FakeClock()
    context = _context(tmp_path, clock, "consume.0")

    class Reading(FakeConsumer):
        def receive(self, limit: int, timeout_seconds: float) -> Batch:
            batch = super().receive(limit, timeout_seconds)
            clock.advance(0.067)
            return batch

    consumer = Reading([_batch(clock, [(at, at)]) for at in range(2)], {0: (0, 2), 1: (0, 0)})
    loop = ConsumerLoop(context, consumer, SequenceTracker({0: EARLIEST}), _consume_second(), clock)
    loop.tick()
    loop.tick()
    loop.finish()

    ((record, values),) = _records(context)
    assert values["consumer_pause_seconds"] == pytest.approx(0.067)
    assert record.validity["reason"] == "consumer_pause"


def test_what_the_cluster_delivered_again_is_counted_where_nothing_else_came(
    tmp_path: Path,
) -> None:
    clock = FakeClock()
    context = _context(tmp_path, clock, "consume.0")
    again = dataclasses.replace(_batch(clock, []), redelivered=23)
    consumer = FakeConsumer([again], {0: (0, 0), 1: (0, 0)})
    received = SequenceTracker({0: EARLIEST, 1: EARLIEST})
    loop = ConsumerLoop(context, consumer, received, _consume_second(), clock)
    loop.tick()
    loop.finish()

    ((_, values),) = _records(context)
    assert (values["redelivered_messages"], values["received_messages"]) == (23, 0)


def test_a_message_that_was_delivered_nowhere_known_is_counted_among_the_acknowledged() -> None:
    """As with acks=0, or a repeat that Pulsar dropped; one that failed is neither."""
    offset = np.array([7, UNKNOWN_OFFSET, UNKNOWN_OFFSET, FAILED_OFFSET])
    zeros = np.zeros(4, dtype=np.int64)
    second = ProducerInterval([1], 1, 1)
    leaders = Leaders(FakeBroker(), Topics(("t",), 1))

    second.note_settled(Settled(zeros, np.arange(4), offset, zeros, zeros), leaders)

    values = {column.metric: value for column, value in second.samples(0, 0, 0.0, 0.0, 0.0)}
    assert (values["acked_messages"], values["unplaced_messages"]) == (3, 2)
    assert values["failed_messages"] == 1


def test_a_restarted_consumer_goes_on_where_its_journal_ends(tmp_path: Path) -> None:
    _consume(tmp_path, [[(at, at) for at in range(23)]])

    received, is_restart = restore_tracker(
        tmp_path / "journal", "consume.0@host", {0: EARLIEST, 1: EARLIEST}
    )

    assert is_restart
    assert received.positions == {0: 23, 1: EARLIEST}
    assert list(received.streams["5.1.0"]) == [(0, 22)]


def test_what_is_read_again_after_a_restart_is_reread_and_no_duplicate(tmp_path: Path) -> None:
    _consume(tmp_path, [[(at, at) for at in range(23)]])
    received, _ = restore_tracker(
        tmp_path / "journal", "consume.0@host", {0: EARLIEST, 1: EARLIEST}
    )
    batch = _batch(FakeClock(), [(20, 20), (21, 21), (22, 22), (23, 23)])
    block, is_ours = header.parse(list(batch.heads))

    counts = received.add(block, is_ours, batch.partition, batch.offset)

    assert (counts.reread, counts.duplicated) == (3, 0)
    assert received.take_spans() == {"5.1.0": ((23, 23, 23, 23),)}


def test_phases_follow_the_file_and_a_later_decision_overrules() -> None:
    text = decision_line("warm-up", 0) + decision_line("soak", 10) + decision_line("drain", 90)

    early = parse_phases(text + decision_line("end", 42) + '{"phase": "torn')

    assert [early.at(k) for k in (-1, 0, 10, 41, 42, 99)] == [
        "", "warm-up", "soak", "soak", "end", "end",
    ]  # fmt: skip


def test_the_drain_is_over_after_a_quiet_second_without_lag(tmp_path: Path) -> None:
    clock = FakeClock()
    context = _context(tmp_path, clock, "consume.0")
    phases = parse_phases(decision_line("drain", 0))
    consumer = FakeConsumer([], {0: (0, 0), 1: (0, 0)})
    received = SequenceTracker({0: EARLIEST, 1: EARLIEST})
    second = _consume_second()
    empty = dataclasses.replace(_batch(clock, []), heads=[])
    before = is_drained(context.folder, phases, 3)
    consumer._batches = [dataclasses.replace(empty, at_mono_ns=at * SECOND_NS) for at in (2, 3, 4)]
    loop = ConsumerLoop(context, consumer, received, second, clock)
    for _ in range(3):
        loop.tick()

    assert not before
    assert is_drained(context.folder, phases, 4)


def test_the_drain_is_not_over_while_a_producer_waits_for_acknowledgements(tmp_path: Path) -> None:
    """A broker that stands still when the load ends looks quiet: what is out may still arrive."""
    clock = FakeClock()
    phases = decision_line("soak", 0) + decision_line("drain", 2)
    context, producer = _context(tmp_path, clock, "produce.0", phases), FakeProducer(clock)
    loop = _produce_loop(context, producer, clock)
    quiet = [
        dataclasses.replace(_batch(clock, []), heads=[], at_mono_ns=at * SECOND_NS)
        for at in (5, 6, 7, 7, 7)  # a record is written while the next second begins
    ]
    reader = ConsumerLoop(
        _context(tmp_path, clock, "consume.0", phases),
        FakeConsumer(quiet, {0: (0, 0), 1: (0, 0)}),
        SequenceTracker({0: EARLIEST, 1: EARLIEST}),
        _consume_second(),
        clock,
    )
    for _ in quiet:
        reader.tick()
    producer.is_stalled = True
    while clock.mono_ns() < context.grid.start_of(7):
        loop.tick()
    before = is_drained(context.folder, parse_phases(phases), 7)
    producer.is_stalled = False
    while clock.mono_ns() < context.grid.start_of(10):
        loop.tick()

    assert not before
    assert is_drained(context.folder, parse_phases(phases), 9)


@pytest.mark.parametrize(("phase", "closed"), [("end", "for good"), ("drain", "left")])
def test_only_a_consumer_whose_phases_have_ended_gives_up_what_the_cluster_keeps_for_it(
    tmp_path: Path, phase: Phase, closed: str
) -> None:
    """One that is stopped, or suspended, starts again and reads on."""
    clock = FakeClock()
    context = _context(tmp_path, clock, "consume.0", decision_line(phase, 0))
    consumer = FakeConsumer([_batch(clock, [(0, 0)])], {0: (0, 1), 1: (0, 0)})
    received = SequenceTracker({0: EARLIEST, 1: EARLIEST})
    loop = ConsumerLoop(context, consumer, received, _consume_second(), clock)
    loop.tick()
    loop.finish()

    assert consumer.closed == closed


@pytest.mark.parametrize(
    ("lag_ms", "latency_ms", "reason"),
    [(5, 6, ""), (30, 35, "schedule_lag"), (30, 90, ""), (200, 250, "schedule_lag")],
)
def test_a_second_is_not_trusted_when_our_own_lag_is_most_of_the_latency(
    lag_ms: int, latency_ms: int, reason: str
) -> None:
    second = ProducerInterval([1], 1, 1)
    second.note_sent(np.full(100, lag_ms * 10**6))
    second.latency.record_ns(np.full(100, latency_ms * 10**6))

    assert second.reason(0.2) == reason


@pytest.mark.parametrize(
    ("held_back", "busy_ratio", "reason"),
    [(100, 0.2, ""), (10, 0.2, "schedule_lag"), (100, 0.95, "schedule_lag")],
)
def test_a_schedule_that_the_cluster_holds_back_is_the_clusters_doing(
    held_back: int, busy_ratio: float, reason: str
) -> None:
    second = ProducerInterval([1], 1, 1)
    second.note_sent(np.full(100, 2 * SECOND_NS))
    second.latency.record_ns(np.full(100, 2 * SECOND_NS))
    second.backpressured = held_back

    assert second.reason(busy_ratio) == reason


def test_a_second_without_time_for_acknowledgements_is_not_trusted() -> None:
    second = ProducerInterval([1], 1, 1)
    second.latency.record_ns(np.full(100, 70_000_000))
    second.note_pause(60_000_000)

    assert second.reason(0.2) == "callback_delay"


def test_what_the_last_second_of_a_phase_owes_is_missed(tmp_path: Path) -> None:
    """The client takes nothing in the 2 s before the drain: 2,000 sends are missed, none forgotten."""
    clock = FakeClock()
    phases = decision_line("soak", 0) + decision_line("drain", 4)
    context, producer = _context(tmp_path, clock, "produce.0", phases), FakeProducer(clock)
    loop = _produce_loop(context, producer, clock)
    while clock.mono_ns() < context.grid.start_of(6):
        producer.is_full = clock.mono_ns() >= context.grid.start_of(2)
        loop.tick()
    loop.finish()

    sent, missed = _sent_and_missed(context)
    assert sent + missed == 4000
    assert 1999 <= missed <= 2001


def test_what_was_due_in_a_stall_over_the_end_of_a_phase_is_missed(tmp_path: Path) -> None:
    """The process stands still from 2.5 s to 6.5 s; the load ends at 4 s, and all until then counts."""
    clock = FakeClock()
    phases = decision_line("soak", 0) + decision_line("drain", 4)
    context, producer = _context(tmp_path, clock, "produce.0", phases), FakeProducer(clock)
    loop = _produce_loop(context, producer, clock)
    while clock.mono_ns() < context.grid.start_of(2) + SECOND_NS // 2:
        loop.tick()
    clock.advance(4)
    loop.tick()
    loop.finish()

    sent, missed = _sent_and_missed(context)
    assert sent + missed == 4000


def test_what_was_due_in_a_stall_over_the_beginning_of_the_load_counts(tmp_path: Path) -> None:
    """The process stands still from 0.5 s to 3.5 s; the load lasts from 1 s to 4 s."""
    clock = FakeClock()
    phases = decision_line("soak", 1) + decision_line("drain", 4)
    context, producer = _context(tmp_path, clock, "produce.0", phases), FakeProducer(clock)
    loop = _produce_loop(context, producer, clock)
    while clock.mono_ns() < SECOND_NS // 2:
        loop.tick()
    clock.advance(3)
    while clock.mono_ns() < context.grid.start_of(5):
        loop.tick()
    loop.finish()

    sent, missed = _sent_and_missed(context)
    assert sent + missed == 3000


@pytest.mark.parametrize("before", ["100/s", "1k/s"])
def test_what_was_due_before_a_late_producer_came_is_missed_and_not_the_clusters(
    before: str, tmp_path: Path
) -> None:
    """It comes 7.5 s after the start: of what was due then it still sends 2 s, late."""
    clock = FakeClock()
    first = json.dumps({"phase": "ramp", "from_k": 0, "rate": before})
    phases = f"{first}\n" + decision_line("soak", 4) + decision_line("drain", 20)
    context, producer = _context(tmp_path, clock, "produce.0", phases), FakeProducer(clock)
    clock.advance(7.5)
    loop = _produce_loop(context, producer, clock)
    if is_first_start(context):
        loop.include_past()
    while clock.mono_ns() < context.grid.start_of(20):
        loop.tick()
    loop.finish()

    (late, values), *rest = _records(context)
    due = {"100/s": 400, "1k/s": 4000}[before]
    assert (late.k, late.is_valid, values["missed_messages"]) == (7, False, due + 1500)
    sent = values["sent_messages"] + sum(one["sent_messages"] for _, one in rest)
    assert sent + values["missed_messages"] == due + 16_000


def test_what_was_due_while_no_producer_lived_is_a_gap(tmp_path: Path) -> None:
    """Its last second may be sent and not recorded: nobody knows what of it was missed."""
    clock = FakeClock()
    context = _context(tmp_path, clock, "produce.0")
    assert is_first_start(context)
    _run_producer(context, FakeProducer(clock), clock, 2.0)
    context.writer.close(is_end=False)

    assert not is_first_start(context)


def test_the_second_in_which_a_restarted_consumer_catches_up_is_not_trusted(tmp_path: Path) -> None:
    clock = FakeClock()
    context = _context(tmp_path, clock, "consume.0")
    batch = _batch(clock, [(at, at) for at in range(100)])
    later = [
        dataclasses.replace(batch, heads=[], at_mono_ns=at * SECOND_NS) for at in (1, 2, 2, 2, 2)
    ]
    consumer = FakeConsumer([batch, *later], {0: (0, 100), 1: (0, 0)})
    second = _consume_second(is_behind=True)
    loop = ConsumerLoop(
        context, consumer, SequenceTracker({0: EARLIEST, 1: EARLIEST}), second, clock
    )
    for _ in range(6):  # what is written goes out between the next ones
        loop.tick()

    reasons = [record.validity["reason"] for record, _ in _records(context)]
    assert reasons == ["catching_up", ""]


def test_what_is_read_again_has_no_second_latency(tmp_path: Path) -> None:
    """A log that was cut short is read from its begin: what is as old as the log says nothing of now."""
    clock = FakeClock()
    context = _context(tmp_path, clock, "consume.0")
    batch = _batch(clock, [(at, at) for at in range(100)])
    again = dataclasses.replace(batch, at_mono_ns=15 * SECOND_NS // 10)
    later = [dataclasses.replace(batch, heads=[], at_mono_ns=at * SECOND_NS) for at in (1, 2, 3, 3)]
    batches = [batch, later[0], again, *later[1:]]
    consumer = FakeConsumer(batches, {0: (0, 100), 1: (0, 0)})
    received = SequenceTracker({0: EARLIEST, 1: EARLIEST})
    loop = ConsumerLoop(context, consumer, received, _consume_second(), clock)
    for _ in range(6):
        loop.tick()

    seconds = [(values, record.validity["reason"]) for record, values in _records(context)]
    values, reason = seconds[1]
    assert (values["received_messages"], values["reread_messages"]) == (100, 100)
    assert np.isnan(values['end_to_end_latency_seconds{quantile="0.99"}'])
    assert reason == "catching_up"


def test_who_reads_a_part_of_the_load_has_caught_up_by_his_part_of_it() -> None:
    """190,000 messages are 19 s of a tenth of 100,000/s, and not two of all."""
    second = _consume_second(is_behind=True)

    assert second.following(190_000, 10_000.0).reason() == "catching_up"
    assert second.following(19_000, 10_000.0).reason() == ""


@pytest.mark.parametrize(("partitions", "rate"), [((0, 1), 1000.0), ((1,), 500.0)])
def test_a_consumer_s_load_is_that_of_its_partitions(
    tmp_path: Path, partitions: tuple[int, ...], rate: float
) -> None:
    clock = FakeClock()
    received = SequenceTracker(dict.fromkeys(partitions, EARLIEST))
    consumer, second = FakeConsumer([], {}), _consume_second()
    loop = ConsumerLoop(_context(tmp_path, clock, "consume.0"), consumer, received, second, clock)

    assert loop._rate(1) == rate


def test_a_torn_decision_is_passed_over() -> None:
    phases = parse_phases(
        decision_line("soak", 0)
        + '{"phase": "dr'
        + decision_line("drain", 9)
        + decision_line("end", 12)
    )

    assert [phases.at(k) for k in (0, 9, 12)] == ["soak", "soak", "end"]
