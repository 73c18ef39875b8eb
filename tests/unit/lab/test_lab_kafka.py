"""The lab's Kafka: it starts, keeps its data, and is never left behind."""

from __future__ import annotations

import inspect
import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # their stubs

from soak.core import plugins
from soak.core.errors import LabError, PlanError
from soak.lab.broker_setup import free_ports
from soak.lab.brokers import kafka
from soak.lab.brokers import kafka as files
from soak.lab.brokers import kafka as jvm
from soak.lab.faults.registry import all_faults
from soak.lab.lab import start_lab
from soak.lab.ports import Running
from tests.unit.service.test_children import has_ended

ONE = files.NodePorts(1, 9092, 9093)
PLACED_SECONDS = 60
SOON_BACK = {"broker.session.timeout.ms": "3000", "broker.heartbeat.interval.ms": "500"}
"""A killed broker's registration must run out before it is back: nine seconds by default."""

PARENT = """
import sys
from pathlib import Path
from soak.lab.brokers import kafka
print(kafka.start(Path(sys.argv[1]), {}).pid, flush=True)
sys.stdin.read()
"""


def leaders_of(admin: AdminClient, topic: str, partitions: int) -> set[int]:
    """Who leads its partitions, once each has a leader.

    A topic is made when the controller has it; the node that is asked may hear of it later.
    """
    deadline = time.monotonic() + PLACED_SECONDS
    while True:
        found = admin.list_topics(topic, timeout=30).topics[topic].partitions
        leaders = [one.leader for one in found.values()]
        if len(leaders) == partitions and min(leaders) >= 0:
            return set(leaders)
        assert time.monotonic() < deadline, f"no leaders in {PLACED_SECONDS} s: {leaders}"
        time.sleep(0.1)


def test_every_lab_broker_and_fault_has_its_seam() -> None:
    """A new file is under test the moment it exists."""
    for name in plugins.names("soak.lab.brokers"):
        module = plugins.load("soak.lab.brokers", name)
        assert {"nodes", "partitions"} <= inspect.signature(module.start).parameters.keys(), name
        assert module.MAX_NODES >= 1, name
        assert module.LOCK.is_file(), name
    for fault in all_faults().values():
        fault.config()


def test_settings_reach_the_broker_but_not_those_that_the_lab_decides(tmp_path: Path) -> None:
    """Where it listens and where its data lies is not for a plan to say."""

    def configured(settings: dict[str, str]) -> str:
        return files.server_properties(tmp_path, ONE, [ONE], settings)

    text = configured({"log.retention.check.interval.ms": "300"})

    assert "log.retention.check.interval.ms=300\n" in text
    with pytest.raises(LabError, match=r"sets log\.dirs"):
        configured({"log.dirs": "/"})
    with pytest.raises(LabError, match="line break"):
        configured({"a": "1\nlog.dirs=/"})


def test_listeners_of_the_settings_come_beside_the_labs_own(tmp_path: Path) -> None:
    """One that demands a password, say; on loopback as the others, and not for several nodes."""
    settings = {
        "listeners": "GUARDED://127.0.0.1:9094",
        "listener.security.protocol.map": "GUARDED:SASL_SSL",
    }
    outside = {"listeners": "GUARDED://0.0.0.0:9094"}

    text = files.server_properties(tmp_path, ONE, [ONE], settings)

    assert "\nlisteners=PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093,GUARDED://" in text
    assert "\nadvertised.listeners=PLAINTEXT://127.0.0.1:9092,GUARDED://127.0.0.1:9094\n" in text
    assert "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,GUARDED:SASL_SSL\n" in text
    with pytest.raises(LabError, match=r"127\.0\.0\.1:PORT, not 'GUARDED://0\.0\.0\.0:9094'"):
        files.server_properties(tmp_path, ONE, [ONE], outside)
    with pytest.raises(LabError, match="cannot share a listener's port"):
        files.server_properties(tmp_path, ONE, [ONE, files.NodePorts(2, 9192, 9193)], settings)


@pytest.mark.parametrize(
    ("nodes", "voters", "copies"),
    [(1, "1", "1"), (2, "1", "2"), (3, "1 2 3", "3"), (9, "1 2 3", "3")],
)
def test_a_quorum_is_of_three_or_of_one(
    nodes: int, voters: str, copies: str, tmp_path: Path
) -> None:
    """Of two controllers each would have to live; what clusters keep for themselves has three copies."""
    cluster = [files.NodePorts(at, 9000 + at, 9100 + at) for at in range(1, nodes + 1)]

    texts = [files.server_properties(tmp_path, one, cluster, {}) for one in cluster]

    quorum = ",".join(f"{number}@127.0.0.1:{9100 + int(number)}" for number in voters.split())
    assert all(f"controller.quorum.voters={quorum}\n" in text for text in texts)
    assert [("broker,controller" in text, "CONTROLLER://" in text) for text in texts] == [
        (str(one.number) in voters.split(),) * 2 for one in cluster
    ]
    assert f"offsets.topic.replication.factor={copies}\n" in texts[0]


def test_a_node_of_many_partitions_gets_a_larger_heap(tmp_path: Path) -> None:
    """512 MB do for hundreds; more, and more time, is taken only where it is needed."""
    few, many = jvm.NodeMachine(tmp_path, 0), jvm.NodeMachine(tmp_path, 10_000)

    assert (few.heap, few.limit_seconds(60)) == (("-Xms256m", "-Xmx512m"), 60)
    assert (many.heap, many.limit_seconds(60)) == (("-Xms256m", "-Xmx1512m"), 260)


def test_a_node_of_many_partitions_soon_forgets_the_fetches_that_waited_at_them() -> None:
    """Else notes of them fill its heap within minutes; with few partitions the default does."""
    name = "fetch.purgatory.purge.interval.requests"
    few, many = jvm.NodeMachine(Path(), 500), jvm.NodeMachine(Path(), 10_000)

    assert (few.settings, many.settings) == ({}, {name: "50"})


def test_a_lab_with_more_nodes_than_it_can_have_is_refused(tmp_path: Path) -> None:
    """Before anything was started."""
    with pytest.raises(PlanError, match="at most 1 nodes, not 3"):
        start_lab(tmp_path, {}, kind="pulsar", nodes=3, with_mailbox=True, on_mail=print)


def test_ports_lie_below_those_that_the_kernel_gives_away() -> None:
    """Else a client's own connection could take the broker's port while it restarts."""
    low = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])

    ports = free_ports(18)

    assert len(set(ports)) == 18
    assert max(ports) < max(low, 32_768)


@pytest.mark.broker
def test_a_message_that_was_acknowledged_outlives_a_kill(tmp_path: Path) -> None:
    """The same data and the same address after SIGKILL."""
    broker = kafka.start(tmp_path, SOON_BACK)
    try:
        first_pid = broker.pid
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "acks": "all"})
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        admin.create_topics([NewTopic("t", 1, 1)])["t"].result(30)
        producer.produce("t", b"kept", partition=0)
        assert producer.flush(30) == 0

        broker.kill()
        broker.restart()

        consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "g"})
        consumer.assign([TopicPartition("t", 0, 0)])
        message = consumer.poll(60)
        consumer.close()
        assert message is not None
        assert message.value() == b"kept"
        assert broker.pid != first_pid
    finally:
        broker.stop()


@pytest.mark.broker
def test_kill_9_of_the_parent_leaves_no_broker(tmp_path: Path) -> None:
    """Not even a stopped one, as the fault would leave it."""
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        descriptor = os.pidfd_open(pid)
        os.kill(pid, signal.SIGSTOP)
        parent.kill()

    try:
        assert has_ended(descriptor)
    finally:
        os.close(descriptor)


@pytest.mark.broker
def test_a_broker_that_cannot_start_says_why(tmp_path: Path) -> None:
    """The message ends with the broker's own last lines."""
    with pytest.raises(LabError, match=r"(?s)ended with status 1.*num\.io\.threads"):
        kafka.start(tmp_path, {"num.io.threads": "many"})


@pytest.mark.broker
def test_topics_can_be_made_in_the_sessions_broker(lab_kafka: Running) -> None:
    """What each broker test relies on."""
    topic = f"t-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": lab_kafka.bootstrap_servers})

    admin.create_topics([NewTopic(topic, 2, 1)])[topic].result(30)

    assert leaders_of(admin, topic, 2) == {1}


@pytest.mark.broker
def test_three_nodes_outlive_the_loss_of_one(tmp_path: Path) -> None:
    """A topic of three copies is led by all three nodes; without one of them it still takes messages."""
    cluster = kafka.start(tmp_path, SOON_BACK, nodes=3)
    try:
        servers = {"bootstrap.servers": cluster.addresses["bootstrap_servers"]}
        admin = AdminClient({**servers})
        settings = {"min.insync.replicas": "2"}
        admin.create_topics([NewTopic("t", 6, 3, config=settings)])["t"].result(30)
        leaders = leaders_of(admin, "t", 6)

        cluster.nodes[2].kill()
        producer = Producer({**servers, "acks": "all"})
        failed: list[object] = []
        for partition in range(6):
            producer.produce(
                "t", b"x", partition=partition, on_delivery=lambda error, _: failed.append(error)
            )
        left = producer.flush(60)

        assert leaders == {1, 2, 3}
        assert left == 0
        assert failed == [None] * 6
        assert len({node.pid for node in cluster.nodes}) == 3
    finally:
        cluster.kill()  # nothing in it is needed any more; to end it in order takes six seconds
