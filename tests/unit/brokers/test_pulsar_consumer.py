"""A Pulsar consumer with a fake client whose messages arrive a few at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import pulsar
import pytest

from soak.brokers.pulsar.consumer import SHALLOW, PulsarConsumer
from soak.brokers.pulsar.partition_log import LogWatcher
from soak.core.ports import ReceiveError, Topics
from soak.core.units import SECOND_NS
from tests.support.fakes import FakeClock

MS = 1_000_000


@dataclass(frozen=True, slots=True)
class Message:
    """Both a message and its id."""

    entry: int
    clock: FakeClock
    cost_ns: int = 0  # of reading it

    def message_id(self) -> Message:
        return self

    def topic_name(self) -> str:
        return "persistent://public/default/t-partition-0"

    def data(self) -> bytes:
        self.clock.advance(self.cost_ns / SECOND_NS)
        return self.entry.to_bytes(8, "little")

    def ledger_id(self) -> int:
        return 1

    def entry_id(self) -> int:
        return self.entry

    def batch_index(self) -> int:
        return 0

    def partition(self) -> int:
        return 0


class Client:
    """A client that returns messages at their times (ns), singly or in batches; `entries` if out of order."""

    def __init__(
        self,
        clock: FakeClock,
        times_ns: Sequence[int],
        entries: Sequence[int] = (),
        cost_ns: int = 0,
    ) -> None:
        self._clock = clock
        self._cost_ns = cost_ns
        self._left = list(zip(times_ns, entries or range(len(times_ns)), strict=True))
        self.batches = 0
        self._consumer = self  # its own wrapper

    def receive(self, timeout_ms: int) -> Message:
        now_ns = self._clock.mono_ns()
        if not self._left or self._left[0][0] > now_ns + timeout_ms * MS:
            self._clock.sleep_until(now_ns + timeout_ms * MS)
            raise pulsar.Timeout
        at_ns, entry = self._left.pop(0)
        self._clock.sleep_until(max(at_ns, now_ns))
        return Message(entry, self._clock, self._cost_ns)

    def batch_receive(self) -> list[Message]:
        self.batches += 1
        there = [one for one in self._left if one[0] <= self._clock.mono_ns()]
        del self._left[: len(there)]
        return [Message(entry, self._clock, self._cost_ns) for _, entry in there]


def consumer(client: Client, clock: FakeClock) -> PulsarConsumer:
    played = cast("Any", client)
    topics = Topics(("t",), 1)
    return PulsarConsumer(played, played, topics, {0: 0}, cast("LogWatcher", None), clock)


def test_each_message_has_its_arrival_time() -> None:
    """They are returned together: for the caller one or many cost the same."""
    clock = FakeClock()
    begin_ns = clock.mono_ns()
    times_ns = [begin_ns + at * MS for at in (3, 4, 9, 30)]
    batch = consumer(Client(clock, times_ns), clock).receive(4000, 0.05)

    assert batch.came_mono_ns is not None
    assert batch.came_mono_ns.tolist() == times_ns
    assert [int.from_bytes(head, "little") for head in batch.heads] == [0, 1, 2, 3]
    assert batch.at_mono_ns <= begin_ns + 50 * MS


def test_a_message_is_read_on_arrival_so_that_hundreds_do_not_delay_the_next() -> None:
    """Of 50 that come each millisecond and take half of one, none waits for the others to be read."""
    clock = FakeClock()
    begin_ns = clock.mono_ns()
    times_ns = [begin_ns + at * MS for at in range(1, 51)]
    reading = consumer(Client(clock, times_ns, cost_ns=MS // 2), clock)
    batch = reading.receive(4000, 0.05)

    assert batch.came_mono_ns is not None
    assert batch.came_mono_ns.tolist() == times_ns
    assert clock.mono_ns() == batch.at_mono_ns


@pytest.mark.parametrize(("patience", "end_ms"), [(10.0, 1200), (1.01, 1010)])
def test_receive_waits_for_the_first_message_and_then_200_ms_but_no_longer_than_the_timeout(
    patience: float, end_ms: int
) -> None:
    clock = FakeClock()
    begin_ns = clock.mono_ns()
    times_ns = [begin_ns + 1000 * MS, *(begin_ns + at * MS for at in range(1005, 5000, 10))]
    batch = consumer(Client(clock, times_ns), clock).receive(4000, patience)

    assert len(batch.heads) == 1 + (end_ms - 1005 + 9) // 10
    assert batch.at_mono_ns == begin_ns + end_ms * MS


def test_a_redelivered_message_is_dropped_with_its_time() -> None:
    clock = FakeClock()
    begin_ns = clock.mono_ns()
    times_ns = [begin_ns + at * MS for at in (1, 2, 3, 4)]
    batch = consumer(Client(clock, times_ns, entries=(5, 6, 6, 7)), clock).receive(4000, 0.05)

    assert batch.redelivered == 1
    assert batch.came_mono_ns is not None
    assert batch.came_mono_ns.tolist() == [times_ns[0], times_ns[1], times_ns[3]]
    assert [int.from_bytes(head, "little") for head in batch.heads] == [5, 6, 7]


def test_many_waiting_messages_are_received_in_batches_until_few_remain() -> None:
    clock = FakeClock()
    begin_ns = clock.mono_ns()
    later_ns = begin_ns + 20 * MS
    client = Client(clock, [*[begin_ns] * (3 * SHALLOW), later_ns])
    reading = consumer(client, clock)
    sizes = [len(reading.receive(4000, 0.05).heads) for _ in range(3)]

    assert sizes == [SHALLOW, 2 * SHALLOW, 1]
    assert client.batches == 2  # the second found nothing


def test_errors_of_the_client_come_with_the_next_batch() -> None:
    clock, error = FakeClock(), ReceiveError("Connection refused", broker="b1:6650")
    client, topics = cast("Any", Client(clock, [])), Topics(("t",), 1)
    noted = [{error: 3}, {}]
    played = PulsarConsumer(
        client, client, topics, {0: 0}, cast("LogWatcher", None), clock, lambda: noted.pop(0)
    )

    assert [played.receive(10, 0.1).errors for _ in range(2)] == [{error: 3}, {}]
