"""A report is stamped when the client is asked, and at ten messages a second nobody would ask for long."""

from __future__ import annotations

import logging
from pathlib import Path

import confluent_kafka
import numpy as np
import pytest

from soak.brokers.kafka import batch_calls
from soak.brokers.kafka.producer import BatchProducer
from soak.clients.kafka_log import ClientLog
from soak.clients.kafka_throttle import ThrottleTimes
from soak.core.clock import SystemClock
from soak.core.plan import text
from soak.core.plan.phases import decision_line, planned_phases
from soak.core.ports import FAILED_OFFSET, Acks, Outgoing, Topics, WakeUp
from soak.core.units import SECOND_NS
from soak.load.producer.loop import REPORT_DELAY_NS, ProducerLoop
from soak.runtime.context import Context
from soak.service.signals import WakeupFd
from soak.store.journal.reader import read_source
from tests.support.fakes import FakeBell, FakeClock, FakeProducer
from tests.support.load.load_loops import context_of, producer_loop

pytestmark = pytest.mark.long

PLAN = """
name: fake
broker: {{kafka: {{}}}}
topic: {{name: soak-x, partitions: 2}}
load: {{rate: {rate}/s}}
phases: {{warm_up: 0s, soak: 20s, drain: 5s}}
"""
SERVED = 'publish_service_seconds{quantile="0.99"}'
PATIENCE_NS = 30 * SECOND_NS


class AskedProducer(FakeProducer):
    """Stamps what has come when it is asked, as Kafka's client does."""

    has_bell = True

    def __init__(self, clock: FakeClock, latency_ns: int) -> None:
        super().__init__(clock, latency_ns)
        self._stamped: list[Acks] = []

    def rings(self, bell: int) -> bool:
        del bell
        return self.has_bell

    def serve(self) -> None:
        came = super().take()
        now = np.full(came.token.size, self._clock.mono_ns())
        self._stamped.append(Acks(came.token, came.offset, now))

    def take(self) -> Acks:
        taken, self._stamped = self._stamped, []
        parts = [(one.token, one.offset, one.at_mono_ns) for one in taken]
        token, offset, at_ns = (np.concatenate(column) for column in zip(*parts, strict=True))
        return Acks(token, offset, at_ns)

    def next_ns(self) -> int | None:
        return min((at for *_, at in self._out), default=None)


class PromptBell(FakeBell):
    """Rings at the moment at which a report comes."""

    def __init__(self, clock: FakeClock, producer: AskedProducer) -> None:
        super().__init__(clock)
        self._producer = producer
        self.waits = 0

    def wait(self, mono_ns: int) -> None:
        rung_ns = self._producer.next_ns()
        super().wait(mono_ns if rung_ns is None else min(mono_ns, rung_ns))
        self.waits += 1


def loop_of(
    folder: Path, rate: int, clock: FakeClock, producer: AskedProducer, bell: WakeUp | None = None
) -> tuple[Context, ProducerLoop]:
    plan = text.load(PLAN.format(rate=rate), "plan").plan
    steps = planned_phases(plan.phases)
    phases = "".join(decision_line(*one) for one in zip(steps.names, steps.from_k, strict=True))
    context = context_of(folder, plan, clock, "produce.0", phases)
    loop = producer_loop(context, [producer], clock, wake_up=bell or PromptBell(clock, producer))
    return context, loop


@pytest.mark.parametrize("rate", [10, 50, 200, 1000])
@pytest.mark.parametrize("latency_ns", [1_500_000, 4_000_000, 9_000_000])
@pytest.mark.parametrize(("has_bell", "late_ns"), [(True, 0), (False, REPORT_DELAY_NS)])
def test_a_report_is_stamped_when_it_comes_at_whatever_rate(
    tmp_path: Path, rate: int, latency_ns: int, late_ns: int, *, has_bell: bool
) -> None:
    """Not at the next send: at 50/s that would be 20 ms, whatever the cluster took."""
    clock = FakeClock()
    producer = AskedProducer(clock, latency_ns)
    producer.has_bell = has_bell
    context, loop = loop_of(tmp_path, rate, clock, producer)
    while clock.mono_ns() < 3 * SECOND_NS:
        loop.tick()
    loop.finish()
    context.writer.close(is_end=True)

    records = read_source(context.folder.journal, context.source)
    named = [dict(zip((c.name for c in cs), one.values, strict=True)) for one, cs in records]
    served_ns = named[1][SERVED] * SECOND_NS
    assert 0.98 * latency_ns <= served_ns <= 1.02 * (latency_ns + late_ns)


def test_who_is_held_up_by_a_full_queue_does_not_wake_for_each_report(tmp_path: Path) -> None:
    """Each would cost a wake-up; at full speed that took 6 % more CPU a message."""
    clock = FakeClock()
    producer = AskedProducer(clock, 3_000_000)
    bell = PromptBell(clock, producer)
    context, loop = loop_of(tmp_path, 1000, clock, producer, bell)
    while clock.mono_ns() < SECOND_NS:
        loop.tick()
    before = bell.waits
    producer.is_full = True
    while clock.mono_ns() < SECOND_NS + 10_000_000:  # until all is reported that is out
        loop.tick()
    producer.is_full = False
    held = bell.waits - before
    while clock.mono_ns() < 2 * SECOND_NS:
        loop.tick()
    loop.finish()
    context.writer.close(is_end=True)

    assert before > 500
    assert held <= 1
    assert bell.waits - before > 500


def test_kafka_s_client_rings_when_a_report_has_come() -> None:
    """A cluster that librdkafka plays; who waits is called long before he would look."""
    clock, log = SystemClock(), logging.getLogger("played")
    settings = {"bootstrap.servers": "127.0.0.1:1", "test.mock.num.brokers": "1"}
    client = confluent_kafka.Producer(settings, logger=log)
    library = batch_calls.load_library()
    assert library is not None
    producer = BatchProducer(
        library, client, Topics(("t",), 1), clock, ClientLog(log, clock), ThrottleTimes(clock)
    )
    bell, deadline_ns = WakeupFd(clock), clock.mono_ns() + PATIENCE_NS
    reported: list[int] = []
    assert producer.rings(bell.fd)
    for token in range(3):
        producer.send(Outgoing([0], [b"x"], token))
        while len(reported) == token and clock.mono_ns() < deadline_ns:
            bell.wait(deadline_ns)
            producer.serve()
            reported += producer.take().offset.tolist()
    before_ns = clock.mono_ns()
    producer.close(0.0)
    bell.close()

    assert len(reported) == 3
    assert FAILED_OFFSET not in reported
    assert before_ns < deadline_ns


def test_a_bell_that_was_rung_before_or_never() -> None:
    """The ring is not lost, and heard once; without one the wait ends at its time."""
    clock = SystemClock()
    bell, far_ns = WakeupFd(clock), clock.mono_ns() + PATIENCE_NS
    with open(bell.fd, "wb", buffering=0, closefd=False) as ringer:
        ringer.write((1).to_bytes(8, "little"))
        ringer.write((1).to_bytes(8, "little"))
    bell.wait(far_ns)
    heard_ns = clock.mono_ns()
    bell.wait(clock.mono_ns() + 1_000_000)
    ended_ns = clock.mono_ns()
    bell.wait(0)
    bell.close()

    assert heard_ns < far_ns
    assert ended_ns >= heard_ns + 1_000_000


def test_addresses_of_arm_are_in_reach() -> None:
    assert batch_calls._whole_memory(batch_calls.MESSAGE.itemsize).size > 0xFFFF_8C00_1000
