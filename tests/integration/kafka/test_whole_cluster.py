"""What `retention_kafka` says of a whole real cluster: whose copies are behind, and what others write."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # its stubs

from probes.common.polling import ReadingBuffer
from probes.retention_kafka.cluster import GREW, Cluster
from probes.retention_kafka.probe import Config, connect
from soak.core.clock import SystemClock
from soak.core.model import Event
from soak.core.units import SECOND_NS
from soak.lab.brokers import kafka
from soak.lab.ports import Running

pytestmark = [pytest.mark.broker, pytest.mark.timeout(300)]

OURS, OTHER = "soak-ours", "bulk"
LIMIT_NS = 90 * SECOND_NS
NODES = 3
SHORT_SESSIONS = {"broker.session.timeout.ms": "3000", "broker.heartbeat.interval.ms": "500"}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    made = kafka.start(tmp_path_factory.mktemp("whole-cluster"), SHORT_SESSIONS, nodes=NODES)
    admin = AdminClient({"bootstrap.servers": made.bootstrap_servers})
    topics = [NewTopic(OURS, 2, NODES), NewTopic(OTHER, 4, NODES)]
    for future in admin.create_topics(topics).values():
        future.result(30)
    yield made
    made.kill()


class Watch:
    """Polls once a second, and keeps what was reported."""

    def __init__(self, cluster: Running) -> None:
        self.clock = SystemClock()
        self.buffer = ReadingBuffer(self.clock)
        self.part = Cluster([OURS], SECOND_NS, self.clock, self.buffer)
        self.offsets = connect(Config(bootstrap_servers=cluster.bootstrap_servers))
        self.rates: list[float] = []
        self.behind: dict[str, float] = {}
        self.events: list[Event] = []

    def poll(self) -> None:
        self.part.poll(self.offsets)
        reading = self.buffer.take(self.clock.mono_ns())
        self.events += reading.events
        for column, value in reading.samples:
            if column.metric == "cluster_other_messages":
                self.rates.append(value)
            elif column.metric == "cluster_under_replicated_partitions":
                self.behind[dict(column.labels)["follower"]] = value
        self.clock.sleep_until(self.clock.mono_ns() + SECOND_NS)

    def until(self, holds: Callable[[], bool], what: str) -> None:
        end_ns = self.clock.mono_ns() + LIMIT_NS
        while not holds():
            assert self.clock.mono_ns() < end_ns, f"{what}: {self.behind} {self.rates}"
            self.poll()


def write(servers: str, topic: str, messages: int) -> None:
    producer = Producer({"bootstrap.servers": servers})
    for _ in range(messages):
        producer.produce(topic, b"x" * 100)
    assert producer.flush(60) == 0


def test_messages_to_another_topic_are_counted_and_ours_are_not(cluster: Running) -> None:
    watch = Watch(cluster)
    watch.until(lambda: len(watch.rates) >= 4, "rates of a quiet cluster")
    write(cluster.bootstrap_servers, OURS, 3_000)
    watch.until(lambda: len(watch.rates) >= 6, "rates while we write")
    quiet = list(watch.rates)

    write(cluster.bootstrap_servers, OTHER, 2_300)
    watch.until(lambda: watch.rates[-1] > 0.0, "a rate while others write")
    watch.until(lambda: watch.rates[-1] == 0.0, "quiet afterwards")

    assert set(quiet) == {0.0}
    # 1 s and a little: a round is late by as long as its answers take
    assert 1_000 < sum(watch.rates) <= 2_300
    assert [one.fields["topic"] for one in watch.events if one.kind == GREW] == [OTHER]


def test_a_broker_that_is_killed_has_the_copies_that_are_behind(cluster: Running) -> None:
    watch = Watch(cluster)
    watch.until(lambda: len(watch.behind) == NODES, "all brokers")
    watch.until(lambda: set(watch.behind.values()) == {0.0}, "copies in sync")
    servers = cluster.bootstrap_servers.split(",")

    cluster.nodes[-1].kill()
    watch.until(lambda: any(watch.behind.values()), "copies behind")

    assert watch.behind == {**dict.fromkeys(servers[:-1], 0.0), servers[-1]: 6.0}
