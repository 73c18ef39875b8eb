"""The requests of `retention_kafka` while a leader is down: how many, to whom, and what the others answer."""

from __future__ import annotations

import socket
import threading
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]  # its stubs

from probes.retention_kafka.log_starts import Partition
from probes.retention_kafka.offsets import (
    MAX_LOOKS,
    PARTITIONS_PER_REQUEST,
    KafkaOffsets,
    Leader,
    is_unreachable,
    servers_of,
)
from soak.core.errors import ProbeError
from tests.support.fakes import FakeClock

TOPIC = "t"
PARTITIONS: list[Partition] = [(TOPIC, at) for at in range(3)]
POLLS = 40
BROKERS = 6
BOOTSTRAP = -1


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
        self.in_sync: dict[
            int, list[int]
        ] = {}  # by partition; copies are on the first three brokers
        self.down: set[int] = set()
        self.slow: set[int] = set()
        self.failing: set[int] = set()
        self.clients = self.lists = self.looks = 0
        self.asked: list[set[int]] = []  # the partitions of each request
        self.errors: list[str] = []

    def offsets(self, bootstrap_servers: str = "") -> KafkaOffsets:
        made = self.connected(bootstrap_servers)
        assert len(made.partitions([TOPIC], self._failed)) == len(self.leaders)
        return made

    def connected(self, bootstrap_servers: str = "") -> KafkaOffsets:
        settings = {"bootstrap.servers": bootstrap_servers}
        return KafkaOffsets(
            settings, 0.01, clock=self.clock, connect=self._client, is_down=self._is_down
        )

    def poll(self, offsets: KafkaOffsets) -> dict[Partition, int]:
        self.clock.advance(1)
        return offsets.earliest([(TOPIC, at) for at in self.leaders], self._failed)

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
        brokers = {at: SimpleNamespace(host=f"b{at}", port=9092) for at in range(BROKERS)}
        copies = [0, 1, 2]
        partitions = {
            at: SimpleNamespace(leader=leader, replicas=copies, isrs=self.in_sync.get(at, copies))
            for at, leader in self.leaders.items()
        }
        topic = SimpleNamespace(error=None, partitions=partitions)
        return SimpleNamespace(brokers=brokers, topics={TOPIC: topic})

    def _ask(self, wanted: dict[Any, Any], request_timeout: float) -> dict[Any, Future[Any]]:
        del request_timeout
        self.asked.append({one.partition for one in wanted})
        futures: dict[Any, Future[Any]] = {one: Future() for one in wanted}
        if any(self.leaders[one.partition] in self.failing for one in wanted):
            for future in futures.values():
                future.set_exception(ValueError("no leaders found"))
        elif all(self.leaders[one.partition] not in self.down | self.slow for one in wanted):
            for (one, spec), future in zip(wanted.items(), futures.values(), strict=True):
                start = 1023 if spec is OffsetSpec.latest() else 23  # type: ignore[no-untyped-call]  # the client's
                future.set_result(SimpleNamespace(offset=start + one.partition))
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


def test_a_leader_whose_request_fails_at_once_is_looked_at_too() -> None:
    """The client may know that its leader is away; then it is not asked again either."""
    cluster = Cluster()
    offsets = cluster.offsets()
    cluster.down = cluster.failing = {1}

    found = [cluster.poll(offsets) for _ in range(POLLS)]

    assert found == [OTHERS] * POLLS
    assert cluster.asked.count({1}) == 1


def test_a_leader_that_refuses_a_request_and_is_up_is_asked_again() -> None:
    """As for lack of a right."""
    cluster = Cluster()
    offsets = cluster.offsets()
    cluster.failing = {1}
    first = cluster.poll(offsets)
    cluster.failing = set()

    assert (first, cluster.poll(offsets)) == (OTHERS, ALL)
    assert cluster.clients == 1


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
    with pytest.raises(ProbeError, match="its leader does not answer"):
        cluster.poll(offsets)
    for _ in range(POLLS):
        with pytest.raises(ProbeError, match="no broker of the cluster answers"):
            cluster.poll(offsets)
        with pytest.raises(ProbeError, match="no broker of the cluster answers"):
            offsets.partitions([TOPIC], lambda _: None)

    assert (len(cluster.asked), cluster.lists) == (3, 1)


def test_a_dead_cluster_of_any_size_is_looked_at_a_few_times_a_second() -> None:
    cluster = Cluster()
    cluster.leaders = {at: at for at in range(BROKERS)}
    offsets = cluster.offsets()
    cluster.down = set(range(BROKERS))
    for _ in range(POLLS):
        with pytest.raises(ProbeError):
            cluster.poll(offsets)

    first = BROKERS  # each once, when it does not answer
    assert cluster.looks == first + (POLLS - 1) * MAX_LOOKS
    assert cluster.clients == 2


@pytest.mark.parametrize("back", [{0, 1, 2}, {1}], ids=["all", "one"])
def test_a_cluster_that_is_back_is_measured_in_the_same_second(back: set[int]) -> None:
    """A new client asks: the old one waits up to ten seconds before it connects again."""
    cluster = Cluster()
    offsets = cluster.offsets()
    cluster.down = {0, 1, 2}
    for _ in range(POLLS):
        with pytest.raises(ProbeError):
            cluster.poll(offsets)
    cluster.down -= back

    assert cluster.poll(offsets) == {one: ALL[one] for one in PARTITIONS if one[1] in back}
    assert cluster.clients == 3


def test_a_cluster_that_is_back_at_other_addresses_is_found_through_its_bootstrap_servers() -> None:
    """As brokers in containers: a name that stays, behind which addresses change."""
    cluster = Cluster()
    offsets = cluster.offsets("PLAINTEXT://bootstrap:9092")
    cluster.down = {0, 1, 2, BOOTSTRAP}
    for _ in range(POLLS):
        with pytest.raises(ProbeError):
            cluster.poll(offsets)
    cluster.leaders = {0: 3, 1: 4, 2: 5}
    cluster.down = {0, 1, 2}

    assert cluster.poll(offsets) == ALL


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("b1:9092, b2:9093", [("b1", 9092), ("b2", 9093)]),
        ("SASL_SSL://b1:9092", [("b1", 9092)]),
        ("[2001:db8::1]:9092", [("2001:db8::1", 9092)]),
        ("", []),
        ("b1:9092,b2", []),
    ],
)
def test_bootstrap_servers_are_read_as_the_client_reads_them(
    text: str, expected: list[tuple[str, int]]
) -> None:
    assert [(one.host, one.port) for one in servers_of(text)] == expected


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


def test_a_balancer_that_ends_each_connection_has_no_broker_behind_it() -> None:
    """The client would connect to it a thousand times a second."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def end_each() -> None:
            server.accept()[0].close()

        ending = threading.Thread(target=end_each)
        ending.start()
        found = is_unreachable(Leader(1, "127.0.0.1", server.getsockname()[1]))
        ending.join()

    assert found


# --- the whole cluster


def test_copies_that_are_not_in_sync_are_counted_by_the_broker_that_holds_them() -> None:
    """Of all topics, whichever are followed; a partition without a leader is not followed."""
    cluster = Cluster()
    cluster.leaders = {0: 0, 1: -1, 2: 2}
    cluster.in_sync = {0: [0, 1], 1: [], 2: [2, 0, 1]}
    offsets = cluster.connected()

    one = offsets.listing(list)
    none = offsets.listing(lambda _: [])

    assert (one.behind, one.partitions) == ({0: 1, 1: 1, 2: 2}, 3)
    assert one.addresses == {at: f"b{at}:9092" for at in range(BROKERS)}
    assert (one.followed, none.followed) == ([(TOPIC, 0), (TOPIC, 2)], [])
    assert none.behind == one.behind


def test_the_newest_offsets_are_asked_for_by_leader_and_in_bounded_requests() -> None:
    cluster = Cluster()
    cluster.leaders = dict.fromkeys(range(PARTITIONS_PER_REQUEST + 23), 1)
    offsets = cluster.connected()
    followed = offsets.listing(list).followed

    found = offsets.latest(followed, lambda _: None)

    assert found == {(TOPIC, at): 1023 + at for at in range(PARTITIONS_PER_REQUEST + 23)}
    assert [len(one) for one in cluster.asked] == [PARTITIONS_PER_REQUEST, 23]


def test_a_dead_leader_costs_the_newest_offsets_of_its_own_partitions_alone() -> None:
    cluster = Cluster()
    offsets = cluster.connected()
    followed = offsets.listing(list).followed
    cluster.down = {1}

    found = [offsets.latest(followed, lambda _: None) for _ in range(POLLS)]

    assert found == [{one: 1000 + offset for one, offset in OTHERS.items()}] * POLLS
    assert cluster.asked.count({1}) == 1


def test_a_dead_cluster_that_is_back_is_listed_again() -> None:
    cluster = Cluster()
    offsets = cluster.connected()
    followed = offsets.listing(list).followed
    cluster.down = {0, 1, 2}
    with pytest.raises(ProbeError):
        offsets.latest(followed, lambda _: None)
    with pytest.raises(ProbeError, match="no broker of the cluster answers"):
        offsets.listing(list)
    cluster.down = set()

    assert offsets.listing(list).followed == followed
