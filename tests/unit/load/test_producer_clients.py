"""The clients of one producer process behave like as many processes of one client each."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from statistics import median

import numpy as np
import pytest
from numpy.typing import NDArray

from soak.core import header
from soak.core.plan import text as plan_text
from soak.core.plan.phases import decision_line
from soak.core.ports import Outgoing
from soak.core.units import SECOND_NS
from soak.load.producer.client import MAX_PARTITION_TRIES
from soak.load.producer.loop import ProducerLoop
from soak.runtime.context import Context
from soak.store.journal.reader import read_source
from tests.support.fakes import FakeClock, FakeProducer
from tests.support.load.load_loops import context_of, producer_loop

pytestmark = pytest.mark.long

PLAN = """
name: fake
broker: {{kafka: {{}}}}
topic: {{name: soak-x, partitions: {partitions}}}
load:
  rate: {rate}/s
  backlog: 2s
  message_size: {size}B
  producers: {producers}
  clients_per_producer: {clients}
  keys: {{kind: {keys}, count: {count}}}
"""
LINGER_NS, MOST = 1_000_000, 128


@dataclasses.dataclass(frozen=True, slots=True)
class Call:
    at_ns: int
    partition: int
    count: int


class Recorder(FakeProducer):
    """Notes when it was called, too."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock)
        self._now_ns = clock.mono_ns
        self.calls: list[Call] = []

    def send(self, messages: Outgoing) -> int:
        taken = super().send(messages)
        self.calls.append(Call(self._now_ns(), messages.partition[0], taken))
        return taken

    @property
    def heads(self) -> NDArray[np.void]:
        block, is_ours = header.parse([payload for _, payload in self.payloads])
        assert is_ours.all()
        return block


@dataclasses.dataclass(frozen=True, slots=True)
class Process:
    """Producer process 0 of a plan, on a clock of the test's."""

    context: Context
    clock: FakeClock
    loop: ProducerLoop
    clients: list[Recorder]

    def run(self, seconds: float) -> list[Recorder]:
        end_ns = self.clock.mono_ns() + round(seconds * SECOND_NS)
        while self.clock.mono_ns() < end_ns:
            self.loop.tick()
        return self.clients

    def total(self, *metrics: str) -> int:
        """End it; return the sum of counts over all its records."""
        self.loop.finish()
        self.context.writer.close(is_end=True)
        return sum(
            int(value)
            for record, columns in read_source(self.context.folder.journal, self.context.source)
            for column, value in zip(columns, record.values, strict=True)
            if column.metric in metrics
        )


def process(
    path: Path,
    clients: int,
    rate: int,
    *,
    producers: int = 1,
    partitions: int = 288,
    size: int = 1024,
    keys: str = "none",
    count: int = 12,
) -> Process:
    path.mkdir(exist_ok=True)
    text = PLAN.format(
        clients=clients,
        rate=rate,
        producers=producers,
        partitions=partitions,
        size=size,
        keys=keys,
        count=count,
    )
    plan, clock = plan_text.load(text, "plan").plan, FakeClock()
    context = context_of(path, plan, clock, "produce.0", decision_line("soak", 0))
    made = [Recorder(clock) for _ in range(clients)]
    loop = producer_loop(context, made, clock)
    return Process(context, clock, loop, made)


def batches(calls: list[Call]) -> list[int]:
    """Return how many messages share a batch: what comes within 1 ms for one partition, at most 128."""
    sizes: list[int] = []
    open_since: dict[int, tuple[int, int]] = {}  # by partition: when, how many
    for call in calls:
        since_ns, count = open_since.pop(call.partition, (call.at_ns, 0))
        if call.at_ns - since_ns >= LINGER_NS:
            sizes.append(count)
            since_ns, count = call.at_ns, 0
        full, count = divmod(count + call.count, MOST)
        sizes += [MOST] * full
        if count:
            open_since[call.partition] = (call.at_ns if full else since_ns, count)
    return [*sizes, *(count for _, count in open_since.values())]


def test_one_of_five_clients_makes_the_batches_it_would_make_alone(tmp_path: Path) -> None:
    """50,000 messages a second by five clients: each like a process of its own at 10,000."""
    alone = process(tmp_path / "alone", 1, 10_000).run(0.5)
    five = process(tmp_path / "five", 5, 50_000).run(0.5)

    expected = median(batches(alone[0].calls))
    sizes = [median(batches(one.calls)) for one in five]

    assert 8 <= expected <= 14
    assert all(size == pytest.approx(expected, rel=0.2) for size in sizes)


def test_few_connections_make_large_batches_and_many_make_small_ones(tmp_path: Path) -> None:
    """The plans producers-4 and producers-50 at a hundredth: one client, and five."""
    few = process(tmp_path / "few", 1, 10_000).run(0.5)
    many = process(tmp_path / "many", 5, 10_000).run(0.5)

    large, small = (median(batches(one[0].calls)) for one in (few, many))

    assert large >= 3 * small


@pytest.mark.parametrize("rate", [300, 40_000])
@pytest.mark.parametrize("producers", [1, 3])
def test_each_client_sends_every_nth_message_when_it_is_due(
    tmp_path: Path, rate: int, producers: int
) -> None:
    made = process(tmp_path, 4, rate * producers, producers=producers)
    clients = made.run(1.0)
    begin = made.context.grid.start_mono_ns

    for number, client in enumerate(clients):
        due = client.heads["intended_mono_ns"] - begin
        expected = [
            (number + 4 * at) * producers * SECOND_NS // (rate * producers)
            for at in range(due.size)
        ]

        assert due.tolist() == expected
        assert due.size == pytest.approx(rate / 4, abs=rate / 1000 + 1)
        assert client.heads["delay_ns"].max() <= 300_000


def test_no_connection_is_idle_for_long_while_others_send(tmp_path: Path) -> None:
    """At 10,000/s each of four sends every 0.4 ms or a tick later."""
    for client in process(tmp_path, 4, 10_000).run(0.5):
        gaps = [after.at_ns - before.at_ns for before, after in pairwise(client.calls)]

        assert max(gaps) <= 800_000


@pytest.mark.parametrize("size", [256, 64 * 2**10])
@pytest.mark.parametrize("keys", ["none", "random"])
def test_open_blocks_do_not_disturb_each_other(tmp_path: Path, size: int, keys: str) -> None:
    """Large messages leave few rows for each; all sequence numbers are sent, in order of their due times."""
    made = process(tmp_path, 7, 6000, partitions=3, size=size, keys=keys)
    clients = made.run(0.5)

    for number, client in enumerate(clients):
        heads = client.heads
        assert set(heads["instance"]) == {5 + number}
        streams: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for (partition, payload), head in zip(client.payloads, heads, strict=True):
            assert len(payload) == size
            streams[partition].append((head["sequence"], head["intended_mono_ns"]))
        for found in streams.values():
            sequence, due_ns = zip(*found, strict=True)
            assert list(sequence) == list(range(len(found)))
            assert list(due_ns) == sorted(due_ns)
    assert made.total("sent_messages") == sum(len(one.payloads) for one in clients)


def test_a_full_client_does_not_delay_the_others(tmp_path: Path) -> None:
    """One of four accepts nothing for 3 s with a backlog of 2 s: only its own messages are skipped."""
    made = process(tmp_path, 4, 2000)
    made.run(0.5)
    full, *others = made.clients
    before = len(full.payloads)
    full.is_full = True
    made.run(3.0)
    during = [len(one.payloads) for one in made.clients]
    full.is_full = False
    made.run(10.0)

    assert during[0] == before
    assert all(count == pytest.approx(1750, abs=10) for count in during[1:])
    assert all(one.heads["delay_ns"].max() <= 1_000_000 for one in others)
    assert len(full.payloads) == pytest.approx(6750 - 500, abs=20)
    assert made.total("missed_messages") == pytest.approx(500, abs=20)


@pytest.mark.parametrize("full", [{5}, {1, 5, 9}, set(range(9))])
@pytest.mark.parametrize("keys", ["round_robin", "random", "zipf", "none"])
def test_full_partitions_do_not_delay_the_others(tmp_path: Path, keys: str, full: set[int]) -> None:
    """For 2 s, in a client with a queue for each partition. All messages are sent in the end."""
    made = process(tmp_path, 1, 2000, partitions=12, keys=keys)
    (client,) = made.run(0.5)
    before, partitions = len(client.payloads), {at for at, _ in client.payloads}
    client.full = full
    made.run(2.0)
    during = client.payloads[before:]
    client.full = set()
    made.run(1.0)

    assert {at for at, _ in during} == partitions - full
    assert len(during) == pytest.approx(4000, abs=20)
    assert client.heads["delay_ns"].max() <= 20_000_000
    assert len(client.payloads) == pytest.approx(7000, abs=10)
    assert {at for at, _ in client.payloads[-1600:]} == partitions
    assert made.total("missed_messages", "held_back_messages") == 0


def test_a_third_of_many_partitions_does_not_delay_the_others(tmp_path: Path) -> None:
    """One broker of three leads 50 of 150."""
    made = process(tmp_path, 1, 20_000, partitions=150, keys="random", count=3000)
    (client,) = made.run(0.5)
    client.full = set(range(50))
    made.run(1.0)

    assert len(client.payloads) == pytest.approx(30_000, abs=50)
    assert client.heads["delay_ns"].max() <= 20_000_000


@pytest.mark.parametrize("keys", ["random", "none"])
def test_while_all_partitions_are_full_few_are_tried(tmp_path: Path, keys: str) -> None:
    """Each client tries one of 96 every 2 ms, and prepares few messages for it."""
    made = process(tmp_path, 4, 20_000, partitions=96, keys=keys)
    made.run(0.5)
    before = [len(client.calls) for client in made.clients]
    for client in made.clients:
        client.full = set(range(96))
    made.run(1.0)

    calls = [client.calls[at:] for client, at in zip(made.clients, before, strict=True)]
    assert all(400 <= len(own) <= 500 + MAX_PARTITION_TRIES + 1 for own in calls)


def test_a_partition_with_room_again_is_found_soon(tmp_path: Path) -> None:
    made = process(tmp_path, 1, 5000, partitions=12, keys="random")
    (client,) = made.run(0.5)
    client.full = set(range(12))
    made.run(1.0)
    client.full = set(range(11))
    before = len(client.payloads)
    made.run(0.2)

    assert {at for at, _ in client.payloads[before:]} == {11}


def test_each_client_uses_all_keys_by_itself(tmp_path: Path) -> None:
    """Round robin: with one turn for all, each client would see the same few keys for ever."""
    clients = process(tmp_path, 4, 4000, partitions=12, keys="round_robin").run(1.0)

    ways = [[at for at, _ in client.payloads] for client in clients]
    assert all(way[:12] == way[12:24] == way[24:36] for way in ways)
    assert all(sorted(way[:12]) == sorted(ways[0][:12]) for way in ways)
    assert len({tuple(way[:12]) for way in ways}) == 4
