"""Producer and consumer loops through ramps, catch-ups and profiles."""

from __future__ import annotations

import dataclasses
from fractions import Fraction
from pathlib import Path

import numpy as np

from soak.core.plan import text
from soak.core.plan.load import Consumers
from soak.core.plan.phases import Decision
from soak.core.ports import EARLIEST, Batch
from soak.core.units import SECOND_NS
from soak.load.consumer.interval import ConsumerInterval
from soak.load.consumer.loop import ConsumerLoop
from soak.load.consumer.sequence_tracker import SequenceTracker
from soak.load.leaders import Leaders
from soak.load.producer.interval import ProducerInterval
from soak.load.producer.loop import ProducerLoop
from soak.load.producer.messages import Messages
from soak.runtime.context import Context, topics_of
from soak.store.journal.reader import read_source
from soak.store.run_folder import copy_profile
from tests.support.daemon_context import context_of
from tests.support.fakes import FakeBell, FakeBroker, FakeClock, FakeConsumer, FakeProducer

PLAN = """
name: fake
broker: {{kafka: {{}}}}
topic: {{name: soak-x, partitions: 2}}
load: {{rate: 1k/s, backlog: 2s, {load}}}
phases: {{soak: 20s}}
"""


def _context(path: Path, clock: FakeClock, role: str, *phases: Decision, load: str = "") -> Context:
    path.mkdir(parents=True, exist_ok=True)
    plan = text.load(PLAN.format(load=load), "plan").plan
    return context_of(path, plan, clock, role, "".join(one.to_line() for one in phases))


def _sent(context: Context, clock: FakeClock, index: int, seconds: int) -> list[int]:
    """Run producer process `index`; return what it sent in each second."""
    plan, topics, broker = context.plan, topics_of(context.plan), FakeBroker()
    messages = Messages(plan.load, topics, [5], 1, 9, broker)
    second = ProducerInterval([5], 1, topics.total)
    producer = FakeProducer(clock)
    loop = ProducerLoop(
        context,
        index,
        [producer],
        messages,
        second,
        Leaders(broker, topics),
        clock,
        FakeBell(clock),
    )
    while clock.mono_ns() < context.grid.start_of(seconds):
        loop.tick()
    loop.finish()
    context.writer.close(is_end=True)
    found = read_source(context.folder.journal, context.source)
    return [
        int(dict(zip((c.metric for c in columns), record.values, strict=True))["sent_messages"])
        for record, columns in found
    ][:seconds]


def test_a_ramp_is_sent_at_the_rates_that_were_decided(tmp_path: Path) -> None:
    clock = FakeClock()
    ramp = (
        Decision("warm-up", 0),
        Decision("ramp", 1, rate=Fraction(200)),
        Decision("ramp", 3, rate=Fraction(3000)),
        Decision("ramp", 4, part="rest", rate=Fraction(0)),
        Decision("soak", 6, rate=Fraction(500)),
        Decision("drain", 7),
    )
    context = _context(tmp_path, clock, "produce.0", *ramp)

    assert _sent(context, clock, 0, 8) == [1000, 200, 200, 3000, 0, 0, 500, 0]


def test_processes_share_a_profile_to_the_message(tmp_path: Path) -> None:
    """Three processes and a file of rates: all seconds have the file's rate, shared evenly."""
    table = tmp_path / "rates.csv"
    table.write_text("seconds,rate\n0,1k/s\n1,100\n3,2.5k/s\n")
    sent = []
    for index in range(3):
        clock, path = FakeClock(), tmp_path / str(index)
        load = "producers: 3, profile: {file: rates.csv}"
        phases = (Decision("soak", 0), Decision("drain", 4))
        context = _context(path, clock, "produce.0", *phases, load=load)
        copy_profile(table, context.folder)
        sent.append(_sent(context, clock, index, 5))

    assert np.sum(sent, axis=0).tolist() == [1000, 100, 100, 2500, 0]
    assert np.max(sent, axis=0).tolist() == [334, 34, 34, 834, 0]


def test_a_producer_that_starts_anew_goes_on_at_the_rate_of_now(tmp_path: Path) -> None:
    clock = FakeClock()
    phases = (Decision("soak", 0), Decision("drain", 9))
    load = "profile: {steps: [{after: 2s, rate: 100/s}, {after: 5s, rate: 300/s}]}"
    context = _context(tmp_path, clock, "produce.0", *phases, load=load)
    clock.advance(4)

    assert _sent(context, clock, 0, 8) == [100, 300, 300, 300]


def test_consumers_pause_while_a_backlog_is_built(tmp_path: Path) -> None:
    """A tick a second: each follows what held in the second of the tick before."""
    clock = FakeClock()
    phases = (
        Decision("soak", 0),
        Decision("catch-up", 2, part="build"),
        Decision("catch-up", 4, part="drain"),
    )
    context = _context(tmp_path, clock, "consume.0", *phases)
    broker, topics = FakeBroker(), topics_of(context.plan)
    consumer = FakeConsumer([_nothing(at) for at in range(7)], {0: (0, 0), 1: (0, 0)})
    second = ConsumerInterval(9, Leaders(broker, topics), is_behind=False)
    received = SequenceTracker({0: EARLIEST, 1: EARLIEST})
    loop = ConsumerLoop(context, consumer, received, second, clock)
    paused = []
    for _ in range(7):
        loop.tick()
        paused.append(consumer.is_paused)

    assert paused == [False, False, False, True, True, False, False]


def test_a_consumer_that_starts_within_a_build_pauses_too(tmp_path: Path) -> None:
    clock = FakeClock()
    context = _context(tmp_path, clock, "consume.0", Decision("catch-up", 0, part="build"))
    consumer = FakeConsumer([_nothing(1)], {0: (0, 0), 1: (0, 0)})
    second = ConsumerInterval(9, Leaders(FakeBroker(), topics_of(context.plan)), is_behind=False)
    loop = ConsumerLoop(context, consumer, SequenceTracker({0: EARLIEST}), second, clock)
    loop.tick()

    assert consumer.is_paused


def test_a_live_subscription_reads_on_while_the_others_build_a_backlog(tmp_path: Path) -> None:
    """Of three subscriptions of two processes one is live: processes 0 and 1."""
    clock, paused = FakeClock(), []
    for index in range(6):
        context = _context(
            tmp_path, clock, f"consume.{index}", Decision("catch-up", 0, part="build")
        )
        consumers = Consumers(subscriptions=3, per_subscription=2, live_subscriptions=1)
        plan = dataclasses.replace(context.plan, consumers=consumers)
        context = dataclasses.replace(context, plan=plan)
        consumer = FakeConsumer([_nothing(1)], {0: (0, 0), 1: (0, 0)})
        second = ConsumerInterval(9, Leaders(FakeBroker(), topics_of(plan)), is_behind=False)
        ConsumerLoop(context, consumer, SequenceTracker({0: EARLIEST}), second, clock).tick()
        paused.append(consumer.is_paused)

    assert paused == [False, False, True, True, True, True]


def _nothing(at: int) -> Batch:
    empty = np.zeros(0, dtype=np.int64)
    batch = Batch([], empty, empty, 0, 0)
    return dataclasses.replace(batch, at_mono_ns=at * SECOND_NS)
