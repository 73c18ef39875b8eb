"""The leaders of Kafka's partitions, requested throughout a run."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import KafkaError, KafkaException

from soak.brokers import kafka
from soak.brokers.kafka.leaders import LEADER_TOPICS_PER_CALL, LeaderCache
from soak.clients.kafka_log import ErrorCallback
from soak.core.clock import SystemClock
from soak.core.errors import BrokerError
from soak.core.ports import Topics

OURS = Topics(("a", "b"), 2)


class Cluster:
    """Makes clients of a cluster where node 7 leads the first partition of each topic and 8 the second."""

    def __init__(self, topics: tuple[str, ...]) -> None:
        self.topics = topics
        self.connected = 0
        self.asked: Counter[str | None] = Counter()
        self.is_silent = False
        self.port = 9092

    def connect(self, *, error_cb: ErrorCallback) -> Any:
        self.connected += 1
        self._note = error_cb
        return self

    def list_topics(self, *, topic: str | None, timeout: float) -> Any:
        assert timeout == 3.0
        self.asked[topic] += 1
        if self.is_silent:
            raise KafkaException(KafkaError(KafkaError._TRANSPORT, "broker transport failure"))
        partitions = {at: SimpleNamespace(leader=7 + at) for at in range(2)}
        there = {topic: SimpleNamespace(partitions=partitions)} if topic in self.topics else {}
        nodes = {7: SimpleNamespace(host="kafka1", port=self.port)}
        nodes[8] = SimpleNamespace(host='h",x="1', port=1)
        nodes[10] = SimpleNamespace(host="a" * 300, port=self.port)
        return SimpleNamespace(topics=there, brokers=nodes)

    def poll(self, _: float) -> None:
        if self.is_silent:
            self._note(KafkaError(KafkaError._AUTHENTICATION, "the password has expired"))


def test_one_connection_requests_only_the_topics_of_the_run() -> None:
    """A handshake every 15 s in every daemon would load the cluster."""
    cluster = Cluster(("a", "b", "somebody-else-s"))
    leaders = LeaderCache(cluster.connect, "b1:9092", 3.0)

    found = [leaders.leaders(OURS).tolist() for _ in range(3)]

    assert found == [[7, 8, 7, 8]] * 3
    assert cluster.connected == 1
    assert cluster.asked == {"a": 3, "b": 3}


def test_each_answer_updates_the_addresses_of_nodes() -> None:
    """A node that was never listed has none, nor has one whose host is no valid label."""
    cluster = Cluster(OURS.names)
    leaders = LeaderCache(cluster.connect, "b1:9092", 3.0)
    addresses = [leaders.address(7)]
    for port in (9092, 9093):
        cluster.port = port
        leaders.leaders(OURS)
        addresses.append(leaders.address(7))

    assert addresses == ["", "kafka1:9092", "kafka1:9093"]
    assert [leaders.address(number) for number in (8, 9, 10)] == ["", "", ""]


def test_a_failed_client_is_replaced_and_its_error_has_the_cause() -> None:
    """The settings of the connection may have changed."""
    cluster = Cluster(OURS.names)
    leaders = LeaderCache(cluster.connect, "b1:9092", 3.0)
    leaders.leaders(OURS)
    cluster.is_silent = True
    with pytest.raises(BrokerError, match="at b1:9092 refused the login: the password has expired"):
        leaders.leaders(OURS)
    cluster.is_silent = False

    assert leaders.leaders(OURS).tolist() == [7, 8, 7, 8]
    assert cluster.connected == 2


def test_a_deleted_topic_has_no_leaders() -> None:
    leaders = LeaderCache(Cluster(("b",)).connect, "b1:9092", 3.0)

    assert leaders.leaders(OURS).tolist() == [-1, -1, 7, 8]


def test_many_topics_are_requested_in_turn() -> None:
    names = tuple(f"t{at}" for at in range(LEADER_TOPICS_PER_CALL + 7))
    cluster = Cluster(names)
    leaders = LeaderCache(cluster.connect, "b1:9092", 3.0)

    first = leaders.leaders(Topics(names, 1)).tolist()
    second = leaders.leaders(Topics(names, 1)).tolist()

    assert first == [7] * LEADER_TOPICS_PER_CALL + [-1] * 7
    assert second == [7] * len(names)
    assert cluster.asked.total() == 2 * LEADER_TOPICS_PER_CALL


def test_the_client_finds_leaders_and_creates_no_topic() -> None:
    """A mock cluster of librdkafka, which would create any topic requested."""
    player = confluent_kafka.Producer(
        {"bootstrap.servers": "b1:9092", "test.mock.num.brokers": "3", "log_level": "0"}
    )
    player.produce("a", b"it is made by this")
    player.flush(30)
    one = player.list_topics(timeout=30).brokers[1]
    config = kafka.Config(bootstrap_servers=f"{one.host}:{one.port}")
    leaders = kafka.connect(config, SystemClock()).leaders(OURS).tolist()

    assert set(leaders[:2]) <= {1, 2, 3}
    assert leaders[2:] == [-1, -1]
    assert list(player.list_topics(timeout=30).topics) == ["a"]


def test_a_missing_certificate_file_is_a_broker_error() -> None:
    """It may be deleted during a run, which must go on."""
    common = {"security.protocol": "SSL", "ssl.ca.location": "/nowhere/ca.pem"}
    broker = kafka.connect(kafka.Config(bootstrap_servers="b1:9093", common=common), SystemClock())

    with pytest.raises(BrokerError, match=r"refuses its settings: .*ssl\.ca\.location"):
        broker.leaders(Topics(("t",), 1))
