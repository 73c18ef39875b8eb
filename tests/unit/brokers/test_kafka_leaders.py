"""Who leads Kafka's partitions, as it is asked for all through a run."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import KafkaError, KafkaException

from soak.brokers import kafka
from soak.brokers.kafka.broker import LEADER_TOPICS_PER_CALL, LeaderCache
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


def test_one_connection_asks_about_our_own_topics_alone() -> None:
    """As often as it is asked: a handshake every 15 s in every daemon is the cluster's to bear."""
    cluster = Cluster(("a", "b", "somebody-else-s"))
    leaders = LeaderCache(cluster.connect, "b1:9092", 3.0)

    found = [leaders.leaders(OURS).tolist() for _ in range(3)]

    assert found == [[7, 8, 7, 8]] * 3
    assert cluster.connected == 1
    assert cluster.asked == {"a": 3, "b": 3}


def test_each_answer_tells_where_the_nodes_are() -> None:
    """Of one that was never listed nothing, nor of one whose host could be no label."""
    cluster = Cluster(OURS.names)
    leaders = LeaderCache(cluster.connect, "b1:9092", 3.0)
    told = [leaders.address(7)]
    for port in (9092, 9093):
        cluster.port = port
        leaders.leaders(OURS)
        told.append(leaders.address(7))

    assert told == ["", "kafka1:9092", "kafka1:9093"]
    assert [leaders.address(number) for number in (8, 9, 10)] == ["", "", ""]


def test_a_client_that_failed_is_replaced_and_its_reason_told() -> None:
    """What it was connected with may have changed."""
    cluster = Cluster(OURS.names)
    leaders = LeaderCache(cluster.connect, "b1:9092", 3.0)
    leaders.leaders(OURS)
    cluster.is_silent = True
    with pytest.raises(BrokerError, match="answered at b1:9092: the password has expired"):
        leaders.leaders(OURS)
    cluster.is_silent = False

    assert leaders.leaders(OURS).tolist() == [7, 8, 7, 8]
    assert cluster.connected == 2


def test_a_topic_that_is_gone_has_no_leaders() -> None:
    leaders = LeaderCache(Cluster(("b",)).connect, "b1:9092", 3.0)

    assert leaders.leaders(OURS).tolist() == [-1, -1, 7, 8]


def test_many_topics_are_asked_about_in_turn() -> None:
    names = tuple(f"t{at}" for at in range(LEADER_TOPICS_PER_CALL + 7))
    cluster = Cluster(names)
    leaders = LeaderCache(cluster.connect, "b1:9092", 3.0)

    first = leaders.leaders(Topics(names, 1)).tolist()
    second = leaders.leaders(Topics(names, 1)).tolist()

    assert first == [7] * LEADER_TOPICS_PER_CALL + [-1] * 7
    assert second == [7] * len(names)
    assert cluster.asked.total() == 2 * LEADER_TOPICS_PER_CALL


def test_the_client_itself_finds_leaders_and_makes_no_topic_by_asking() -> None:
    """At a cluster that librdkafka plays, which would make whatever is asked for."""
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


def test_a_certificate_s_file_that_has_gone_is_an_error_of_the_broker() -> None:
    """It was there when the run began; whoever asks in its middle goes on asking."""
    common = {"security.protocol": "SSL", "ssl.ca.location": "/nowhere/ca.pem"}
    broker = kafka.connect(kafka.Config(bootstrap_servers="b1:9093", common=common), SystemClock())

    with pytest.raises(BrokerError, match=r"refuses its settings: .*ssl\.ca\.location"):
        broker.leaders(Topics(("t",), 1))
