"""The memory of the load daemons does not grow with the run: resident, of the whole process.

Figures of a 2-core machine, MB at a tenth of the way and at the end: ten million messages through the
producer 90.5 and 90.6, the consumer 90.1 and 90.1; a week of seconds 90.2 and 90.2 both.
"""

from __future__ import annotations

import gc
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import psutil
import pytest
from numpy.typing import NDArray

from soak.core import header
from soak.core.plan import text
from soak.core.plan.phases import decision_line
from soak.core.ports import Acks, Batch, Outgoing
from soak.core.units import SECOND_NS
from soak.load.consumer.loop import BATCH_MESSAGES, ConsumerLoop
from soak.load.producer.loop import ProducerLoop
from soak.runtime.context import Context
from tests.support.fakes import FakeBroker, FakeClock
from tests.support.load.load_loops import consumer_loop, context_of, producer_loop

pytestmark = [pytest.mark.memory, pytest.mark.timeout(1800)]

MESSAGES = 10_000_000
WEEK_SECONDS = 7 * 86_400
WEEK_STEP = 10  # of a week's seconds every tenth is recorded
PARTITIONS = 8
SLACK_MB = 4.0
PLAN = """
name: fake
broker: {kafka: {}}
topic: {name: soak-x, partitions: 8}
load: {rate: RATE, message_size: 256B}
"""


class Memory:
    """Resident megabytes, noted as the work goes on."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self.seen: list[float] = []

    def note(self) -> None:
        gc.collect()
        self.seen.append(self._process.memory_info().rss / 1e6)

    def judge(self) -> None:
        early, late = self.seen[len(self.seen) // 10], self.seen[-1]
        figures = f"{early:.1f} MB at a tenth, {late:.1f} MB at the end"
        print(figures)  # noqa: T201  # what the target is run for
        assert late - early < SLACK_MB, figures


class Acknowledger:
    """A client that accepts all messages and acknowledges them on the next call; all in numpy."""

    refused_by_partition = False

    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock
        self._next = 0
        self._out: list[NDArray[np.int64]] = []

    def rings(self, bell: int) -> bool:
        del bell
        return True

    def send(self, messages: Outgoing) -> int:
        size = len(messages.payload)
        self._out.append(np.arange(messages.first_token, messages.first_token + size))
        return size

    def serve(self) -> None:
        pass

    def take(self) -> Acks:
        token = np.concatenate([np.zeros(0, dtype=np.int64), *self._out])
        self._out = []
        return Acks(token, token, np.full(token.size, self._clock.mono_ns()))

    def throttle_seconds(self) -> None:
        pass

    def close(self, timeout_seconds: float) -> Acks:
        del timeout_seconds
        return self.take()


class Log:
    """A log of `PARTITIONS` partitions, written by one instance as fast as it is read."""

    def __init__(self, clock: FakeClock, seconds: float) -> None:
        self._clock = clock
        self._seconds = seconds  # a batch
        at = np.arange(BATCH_MESSAGES)
        self._partition, self._row = at % PARTITIONS, at // PARTITIONS
        self._block = header.headers(BATCH_MESSAGES, 5, 1, 9, header.run_of("x"))
        self.batches = 0

    def receive(self, limit: int, timeout_seconds: float) -> Batch:
        del limit, timeout_seconds
        self._clock.advance(self._seconds)
        offset = self.batches * (BATCH_MESSAGES // PARTITIONS) + self._row
        self.batches += 1
        self._block["sequence"] = offset
        self._block["intended_mono_ns"] = self._clock.mono_ns() - 1_000_000
        heads = self._block.view(f"V{header.SIZE}").tolist()
        return Batch(heads, self._partition, offset, self._clock.mono_ns(), self._clock.wall_ns())

    def pause(self, *, is_paused: bool) -> None:
        pass

    def lag(self, positions: Mapping[int, int]) -> int | None:
        del positions
        return 0

    def log_bounds(self, partitions: Sequence[int]) -> dict[int, tuple[int, int]]:
        end = self.batches * (BATCH_MESSAGES // PARTITIONS)
        return dict.fromkeys(partitions, (0, end))

    def throttle_seconds(self) -> None:
        pass

    def close(self) -> None:
        pass

    def close_for_good(self) -> None:
        pass


def context(folder: Path, clock: FakeClock, role: str, rate: str) -> Context:
    plan = text.load(PLAN.replace("RATE", rate), "plan").plan
    phases = decision_line("soak", 0) + decision_line("end", 10 * WEEK_SECONDS)
    return context_of(folder, plan, clock, role, phases, write=lambda _, raw: len(raw))


def produce_loop(folder: Path, clock: FakeClock, rate: str) -> ProducerLoop:
    broker = FakeBroker((1, 2, 3))
    found = context(folder, clock, "produce.0", rate)
    return producer_loop(found, [Acknowledger(clock)], clock, broker=broker)


def consume_loop(folder: Path, clock: FakeClock, log: Log) -> ConsumerLoop:
    found = context(folder, clock, "consume.0", "1/s")
    return consumer_loop(found, log, clock, partitions=range(PARTITIONS))


def test_the_producers_memory_does_not_grow_with_ten_million_messages(tmp_path: Path) -> None:
    clock, memory = FakeClock(), Memory()
    loop = produce_loop(tmp_path, clock, "100k/s")
    for k in range(MESSAGES // 100_000):
        while clock.mono_ns() < (k + 1) * SECOND_NS:
            loop.tick()
        memory.note()

    memory.judge()


def test_the_consumers_memory_does_not_grow_with_ten_million_messages(tmp_path: Path) -> None:
    clock, memory = FakeClock(), Memory()
    log = Log(clock, seconds=0.04)
    loop = consume_loop(tmp_path, clock, log)
    while log.batches < MESSAGES // BATCH_MESSAGES:
        loop.tick()
        if log.batches % 25 == 0:
            memory.note()

    memory.judge()


def test_the_producers_memory_does_not_grow_in_a_week(tmp_path: Path) -> None:
    """One message every ten seconds; the seconds between are gaps."""
    clock, memory = FakeClock(), Memory()
    loop = produce_loop(tmp_path, clock, "0.1/s")
    for number in range(WEEK_SECONDS // WEEK_STEP):
        end_ns = (number * WEEK_STEP + 1) * SECOND_NS
        while clock.mono_ns() < end_ns:
            loop.tick()
        clock.sleep_until((number + 1) * WEEK_STEP * SECOND_NS)
        if number % 600 == 0:
            memory.note()

    memory.judge()


def test_the_consumers_memory_does_not_grow_in_a_week(tmp_path: Path) -> None:
    """One batch every ten seconds."""
    clock, memory = FakeClock(), Memory()
    log = Log(clock, seconds=WEEK_STEP)
    loop = consume_loop(tmp_path, clock, log)
    while log.batches < WEEK_SECONDS // WEEK_STEP:
        loop.tick()
        if log.batches % 600 == 0:
            memory.note()

    memory.judge()
