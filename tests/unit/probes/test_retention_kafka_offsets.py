"""The requests of `retention_kafka` while a leader is down: how many, to whom, and what the others answer."""

from __future__ import annotations

import socket
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from probes.retention_kafka.log_starts import Partition
from probes.retention_kafka.offsets import KafkaOffsets, Leader, is_unreachable
from soak.core.errors import ProbeError
from tests.support.fakes import FakeClock

TOPIC = "t"
PARTITIONS: list[Partition] = [(TOPIC, at) for at in range(3)]
POLLS = 40


class TickingClock(FakeClock):
    """Time passes with each look at it."""

    def mono_ns(self) -> int:
        self.advance(0.005)
        return super().mono_ns()


class Cluster:
    """Three brokers; partition p is led by broker p. One that is down or slow never answers."""

    def __init__(self, clock: FakeClock | None = None) -> None:
        self.clock = clock or FakeClock()
        self.leaders = {0: 0, 1: 1, 2: 2}
        self.down: set[int] = set()
        self.slow: set[int] = set()
        self.clients = self.lists = self.looks = 0
        self.asked: list[set[int]] = []  # the partitions of each request
        self.errors: list[str] = []

    def offsets(self) -> KafkaOffsets:
        made = KafkaOffsets({}, 0.01, clock=self.clock, connect=self._client, is_down=self._is_down)
        assert made.partitions([TOPIC], self._failed) == PARTITIONS
        return made

    def poll(self, offsets: KafkaOffsets) -> dict[Partition, int]:
        self.clock.advance(1)
        return offsets.earliest(PARTITIONS, self._failed)

    def _failed(self, error: ProbeError) -> None:
        self.errors.append(str(error))

    def _is_down(self, leader: Leader) -> bool:
        self.looks += 1
        return leader.number in self.down

    def _client(self, _settings: dict[str, str]) -> Any:
        self.clients += 1
        return SimpleNamespace(list_topics=self._list, list_offsets=self._ask, poll=lambda _: None)

    def _list(self, timeout: float) -> Any:
        del timeout
        self.lists += 1
        brokers = {at: SimpleNamespace(host=f"b{at}", port=9092) for at in range(3)}
        partitions = {at: SimpleNamespace(leader=leader) for at, leader in self.leaders.items()}
        topic = SimpleNamespace(error=None, partitions=partitions)
        return SimpleNamespace(brokers=brokers, topics={TOPIC: topic})

    def _ask(self, wanted: dict[Any, Any], request_timeout: float) -> dict[Any, Future[Any]]:
        del request_timeout
        self.asked.append({one.partition for one in wanted})
        futures: dict[Any, Future[Any]] = {one: Future() for one in wanted}
        if all(self.leaders[one.partition] not in self.down | self.slow for one in wanted):
            for one, future in futures.items():
                future.set_result(SimpleNamespace(offset=23 + one.partition))
        return futures


ALL = {(TOPIC, 0): 23, (TOPIC, 1): 24, (TOPIC, 2): 25}
OTHERS = {(TOPIC, 0): 23, (TOPIC, 2): 25}


def test_each_leader_is_asked_by_a_request_of_its_own() -> None:
    cluster = Cluster()
    offsets = cluster.offsets()

    assert [cluster.poll(offsets) for _ in range(2)] == [ALL, ALL]
    assert cluster.asked == [{0}, {1}, {2}] * 2
    assert (cluster.clients, cluster.lists, cluster.looks) == (1, 1, 0)


def test_a_leader_that_is_down_is_asked_once_and_the_others_answer() -> None:
    """In 40 s: one request, one look a second, and every five seconds who leads by now."""
    cluster = Cluster()
    offsets = cluster.offsets()
    cluster.down = {1}

    found = [cluster.poll(offsets) for _ in range(POLLS)]

    assert found == [OTHERS] * POLLS
    assert cluster.asked.count({1}) == 1
    assert cluster.clients == 2
    assert cluster.looks == POLLS
    assert cluster.lists == 1 + POLLS // 5
    assert set(cluster.errors) == {
        "cannot list offsets of t, partition 1: its leader does not answer"
    }


def test_the_next_leader_is_asked_once_the_cluster_has_elected_it() -> None:
    cluster = Cluster()
    offsets = cluster.offsets()
    cluster.down = {1}
    cluster.poll(offsets)
    cluster.leaders = {0: 0, 1: 2, 2: 2}

    found = [cluster.poll(offsets) for _ in range(6)]

    assert found[-1] == ALL
    assert cluster.asked[-2:] == [{0}, {1, 2}]


def test_a_leader_that_is_up_again_is_asked_again() -> None:
    cluster = Cluster()
    offsets = cluster.offsets()
    cluster.down = {1}
    cluster.poll(offsets)
    cluster.down = set()

    assert cluster.poll(offsets) == ALL


def test_when_every_leader_is_down_nobody_is_asked_at_all() -> None:
    """Not who leads either, which would wait for a broker."""
    cluster = Cluster()
    offsets = cluster.offsets()
    cluster.down = {0, 1, 2}
    for _ in range(POLLS):
        with pytest.raises(ProbeError, match="its leader does not answer"):
            cluster.poll(offsets)

    assert (len(cluster.asked), cluster.lists) == (3, 1)


def test_a_leader_that_is_only_slow_is_waited_for() -> None:
    """It accepts connections: the client is kept, and its answer may come at the next poll."""
    cluster = Cluster(TickingClock())
    offsets = cluster.offsets()
    cluster.slow = {1}
    first = cluster.poll(offsets)
    cluster.slow = set()

    assert (first, cluster.poll(offsets)) == (OTHERS, ALL)
    assert cluster.clients == 1
    assert cluster.errors == ["cannot list offsets of t, partition 1: no answer in time"]


def test_a_port_without_a_listener_is_unreachable_and_one_that_never_answers_is_not() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        listening = is_unreachable(Leader(1, "127.0.0.1", port))
    closed = is_unreachable(Leader(1, "127.0.0.1", port))

    assert (listening, closed) == (False, True)
