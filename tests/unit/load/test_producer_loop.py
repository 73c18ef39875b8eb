"""The producer loop against a fake client: schedule, records, stalls, full queues and phases."""

from __future__ import annotations

import dataclasses
import json
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from soak.core import header
from soak.core.plan import text as plan_text
from soak.core.plan.phases import Decision, decision_line
from soak.core.units import SECOND_NS
from soak.load.producer.loop import is_first_start
from soak.runtime.context import Context
from soak.runtime.recorder import Recorder
from soak.service.metrics import Distributions, Samples
from soak.store.run_folder import copy_profile
from tests.support.fakes import FakeClock, FakeProducer
from tests.support.load.load_loops import context_of, producer_loop, records_of

PLAN = """
name: fake
broker: {{kafka: {{}}}}
topic: {{name: soak-x, partitions: 2}}
load: {{rate: 1k/s, backlog: 2s, {load}}}
phases: {{warm_up: 0s, soak: 20s, drain: 5s}}
"""
SOAK = decision_line("soak", 0)


def context_at(path: Path, clock: FakeClock, phases: str = SOAK, load: str = "") -> Context:
    path.mkdir(parents=True, exist_ok=True)
    plan = plan_text.load(PLAN.format(load=load), "plan").plan
    return context_of(path, plan, clock, "produce.0", phases)


def run_producer(
    context: Context, producer: FakeProducer, clock: FakeClock, seconds: float
) -> None:
    loop = producer_loop(context, [producer], clock)
    end_ns = clock.mono_ns() + round(seconds * SECOND_NS)
    while clock.mono_ns() < end_ns:
        loop.tick()
    loop.finish()


def totals(context: Context) -> tuple[float, float]:
    """Return the sent and the skipped messages of all records."""
    records = records_of(context)
    return (
        sum(values["sent_messages"] for _, values in records),
        sum(values["missed_messages"] for _, values in records),
    )


def sent_by_second(context: Context, clock: FakeClock, index: int, seconds: int) -> list[int]:
    """Run producer process `index`; return how many messages it sent in each second."""
    loop = producer_loop(context, [FakeProducer(clock)], clock, index=index)
    while clock.mono_ns() < context.grid.start_of(seconds):
        loop.tick()
    loop.finish()
    return [int(values["sent_messages"]) for _, values in records_of(context)][:seconds]


@pytest.mark.long
def test_a_producer_sends_on_schedule_and_records_each_second(tmp_path: Path) -> None:
    clock = FakeClock()
    context = context_at(tmp_path, clock)

    run_producer(context, FakeProducer(clock), clock, 3.0)

    (_, first), (_, second), *_ = records_of(context)
    assert (first["sent_messages"], second["sent_messages"]) == (1000, 1000)
    assert 0.001 <= second['publish_latency_seconds{quantile="0.5"}'] <= 0.0016


@pytest.mark.long
def test_a_record_is_written_between_sends_and_counts_only_its_own_second(tmp_path: Path) -> None:
    """Writing it at once would delay sends by milliseconds, and p99.9 would measure that."""
    clock, written = FakeClock(), list[tuple[float, int]]()
    context, producer = context_at(tmp_path, clock), FakeProducer(clock)

    def show(samples: Samples, _: Distributions) -> None:
        values = {column.name: value for column, value in samples}
        written.append((values["sent_messages"], len(producer.payloads)))

    recorder = Recorder(context.writer, context.grid, clock, show)
    run_producer(dataclasses.replace(context, recorder=recorder), producer, clock, 3.0)

    assert [sent for sent, _ in written[:2]] == [1000, 1000]
    # The next second has sent for at most 10 ms.
    assert all(0 < total - 1000 * k <= 10 for k, (_, total) in enumerate(written[:2], 1))


def test_headers_have_the_due_time_and_the_sequence_number(tmp_path: Path) -> None:
    clock = FakeClock()
    context, producer = context_at(tmp_path, clock), FakeProducer(clock)

    run_producer(context, producer, clock, 1.0)

    block, is_ours = header.parse([payload for _, payload in producer.payloads])
    assert is_ours.all()
    start, partition = context.grid.start_mono_ns, np.array([at for at, _ in producer.payloads])
    assert sorted(block["intended_mono_ns"].tolist()) == [
        start + index * 10**6 for index in range(len(block))
    ]
    for at in (0, 1):
        sequence = block["sequence"][partition == at].tolist()
        assert sequence == list(range(len(sequence)))


@pytest.mark.long
def test_latency_counts_from_the_due_time_through_a_stall(tmp_path: Path) -> None:
    """The broker answers nothing for 1.5 s; 1,500 messages wait, the first of them that long."""
    clock = FakeClock()
    context, producer = context_at(tmp_path, clock), FakeProducer(clock)
    loop = producer_loop(context, [producer], clock)
    producer.is_stalled = True
    while clock.mono_ns() < context.grid.start_of(0) + 1_500_000_000:
        loop.tick()
    producer.is_stalled = False
    producer.latency_ns = 0
    while clock.mono_ns() < context.grid.start_of(3):
        loop.tick()
    loop.finish()

    (_, stalled), (record, _), *_ = records_of(context)
    assert np.isnan(stalled['publish_latency_seconds{quantile="0.5"}'])
    assert stalled["in_flight_messages"] == 1000
    assert stalled["publish_waiting_seconds"] == 1
    assert record.is_valid


@pytest.mark.long
def test_waiting_seconds_grow_while_messages_are_not_acknowledged_or_accepted(
    tmp_path: Path,
) -> None:
    """Meanwhile no latency is known, and in_flight does not change once the queue is full."""
    clock = FakeClock()
    context, producer = context_at(tmp_path, clock), FakeProducer(clock)
    producer.is_stalled = True
    loop = producer_loop(context, [producer], clock)
    while clock.mono_ns() < context.grid.start_of(1):
        loop.tick()
    producer.is_full = True
    while clock.mono_ns() < context.grid.start_of(4):
        loop.tick()
    producer.is_stalled = producer.is_full = False
    while clock.mono_ns() < context.grid.start_of(14):
        loop.tick()
    loop.finish()

    waits = [values["publish_waiting_seconds"] for _, values in records_of(context)]
    assert waits[:3] == [1, 2, 3]
    assert waits[-2] == 0  # the last record covers part of a second


@pytest.mark.long
def test_with_a_full_queue_the_oldest_sends_are_skipped(tmp_path: Path) -> None:
    """At 5.002 s with a backlog of 2 s all sends due before 3.002 s are skipped: 3,002 of them."""
    clock = FakeClock()
    context, producer = context_at(tmp_path, clock), FakeProducer(clock)
    producer.is_full = True

    run_producer(context, producer, clock, 5.003)

    records = records_of(context)
    assert sum(values["sent_messages"] for _, values in records) == 0
    assert sum(values["missed_messages"] for _, values in records) == 3002
    assert all(record.is_valid for record, _ in records[:5])  # the cluster is slow, not the client


@pytest.mark.long
def test_messages_that_the_client_gives_up_are_counted_and_named(tmp_path: Path) -> None:
    clock = FakeClock()
    context, producer = context_at(tmp_path, clock), FakeProducer(clock)
    producer.is_stalled = True

    run_producer(context, producer, clock, 0.5)

    records = records_of(context)
    failed = sum(values["failed_messages"] for _, values in records)
    named = [event.fields for record, _ in records for event in record.events]
    assert failed == len(producer.payloads) > 0
    assert sum(int(one["last"]) - int(one["first"]) + 1 for one in named) == failed


@pytest.mark.long
def test_outside_the_load_phases_no_message_is_sent_or_skipped(tmp_path: Path) -> None:
    clock = FakeClock()
    context = context_at(tmp_path, clock, decision_line("warm-up", 3) + decision_line("drain", 5))

    run_producer(context, FakeProducer(clock), clock, 8.0)

    records = records_of(context)
    assert [values["sent_messages"] for _, values in records[:8]] == [0, 0, 0, 1000, 1000, 0, 0, 0]
    assert sum(values["missed_messages"] for _, values in records) == 0


@pytest.mark.long
def test_messages_that_are_still_due_at_the_end_of_the_load_are_skipped(tmp_path: Path) -> None:
    """The client accepts nothing in the last 2 s: 2,000 sends are skipped, none is forgotten."""
    clock = FakeClock()
    context = context_at(tmp_path, clock, SOAK + decision_line("drain", 4))
    producer = FakeProducer(clock)
    loop = producer_loop(context, [producer], clock)
    while clock.mono_ns() < context.grid.start_of(6):
        producer.is_full = clock.mono_ns() >= context.grid.start_of(2)
        loop.tick()
    loop.finish()

    sent, skipped = totals(context)
    assert sent + skipped == 4000
    assert 1999 <= skipped <= 2001


@pytest.mark.long
def test_a_stall_over_the_end_of_the_load_skips_the_messages_due_until_then(tmp_path: Path) -> None:
    """The process does not run from 2.5 s to 6.5 s; the load ends at 4 s."""
    clock = FakeClock()
    context = context_at(tmp_path, clock, SOAK + decision_line("drain", 4))
    loop = producer_loop(context, [FakeProducer(clock)], clock)
    while clock.mono_ns() < context.grid.start_of(2) + SECOND_NS // 2:
        loop.tick()
    clock.advance(4)
    loop.tick()
    loop.finish()

    assert sum(totals(context)) == 4000


@pytest.mark.long
def test_a_stall_over_the_beginning_of_the_load_forgets_no_message(tmp_path: Path) -> None:
    """The process does not run from 0.5 s to 3.5 s; the load lasts from 1 s to 4 s."""
    clock = FakeClock()
    context = context_at(tmp_path, clock, decision_line("soak", 1) + decision_line("drain", 4))
    loop = producer_loop(context, [FakeProducer(clock)], clock)
    while clock.mono_ns() < SECOND_NS // 2:
        loop.tick()
    clock.advance(3)
    while clock.mono_ns() < context.grid.start_of(5):
        loop.tick()
    loop.finish()

    assert sum(totals(context)) == 3000


@pytest.mark.long
@pytest.mark.parametrize("before", ["100/s", "1k/s"])
def test_a_late_start_is_the_producers_fault_and_skips_what_is_too_old(
    before: str, tmp_path: Path
) -> None:
    """It starts after 7.5 s and still sends the last 2 s of them; the second is not valid."""
    clock = FakeClock()
    first = json.dumps({"phase": "ramp", "from_k": 0, "rate": before})
    phases = f"{first}\n" + decision_line("soak", 4) + decision_line("drain", 20)
    context = context_at(tmp_path, clock, phases)
    clock.advance(7.5)
    loop = producer_loop(context, [FakeProducer(clock)], clock)
    loop.include_past()
    while clock.mono_ns() < context.grid.start_of(20):
        loop.tick()
    loop.finish()

    (late, values), *others = records_of(context)
    due = {"100/s": 400, "1k/s": 4000}[before]
    assert (late.k, late.is_valid, values["missed_messages"]) == (7, False, due + 1500)
    sent = values["sent_messages"] + sum(one["sent_messages"] for _, one in others)
    assert sent + values["missed_messages"] == due + 16_000


@pytest.mark.long
def test_after_a_restart_the_past_is_a_gap(tmp_path: Path) -> None:
    """The last second before it may have been sent and not recorded, so it cannot be judged."""
    clock = FakeClock()
    context = context_at(tmp_path, clock)
    before = is_first_start(context)
    run_producer(context, FakeProducer(clock), clock, 2.0)
    context.writer.close(is_end=False)

    assert (before, is_first_start(context)) == (True, False)


@pytest.mark.long
def test_a_ramp_is_sent_at_the_decided_rates(tmp_path: Path) -> None:
    clock = FakeClock()
    ramp = (
        Decision("warm-up", 0),
        Decision("ramp", 1, rate=Fraction(200)),
        Decision("ramp", 3, rate=Fraction(3000)),
        Decision("ramp", 4, part="rest", rate=Fraction(0)),
        Decision("soak", 6, rate=Fraction(500)),
        Decision("drain", 7),
    )
    context = context_at(tmp_path, clock, "".join(one.to_line() for one in ramp))

    assert sent_by_second(context, clock, 0, 8) == [1000, 200, 200, 3000, 0, 0, 500, 0]


@pytest.mark.long
def test_processes_share_a_load_profile_to_the_message(tmp_path: Path) -> None:
    """Three processes and a file of rates: every second has the rate of the file, shared evenly."""
    table = tmp_path / "rates.csv"
    table.write_text("seconds,rate\n0,1k/s\n1,100\n3,2.5k/s\n")
    sent = []
    for index in range(3):
        clock = FakeClock()
        load = "producers: 3, profile: {file: rates.csv}"
        phases = SOAK + decision_line("drain", 4)
        context = context_at(tmp_path / str(index), clock, phases, load)
        copy_profile(table, context.folder)
        sent.append(sent_by_second(context, clock, index, 5))

    assert np.sum(sent, axis=0).tolist() == [1000, 100, 100, 2500, 0]
    assert np.max(sent, axis=0).tolist() == [334, 34, 34, 834, 0]


@pytest.mark.long
def test_a_restarted_producer_continues_at_the_current_rate(tmp_path: Path) -> None:
    clock = FakeClock()
    load = "profile: {steps: [{after: 2s, rate: 100/s}, {after: 5s, rate: 300/s}]}"
    context = context_at(tmp_path, clock, SOAK + decision_line("drain", 9), load)
    clock.advance(4)

    assert sent_by_second(context, clock, 0, 8) == [100, 300, 300, 300]
