"""The lab's Kafka: it starts, keeps its data, and is never left behind."""

from __future__ import annotations

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

from soak.core.errors import LabError
from soak.lab.brokers import kafka
from soak.lab.jars import cache
from soak.lab.ports import Running
from soak.service import java
from soak.service.class_archive import ClassArchive
from tests.support.lab.lab import SHORT_SESSIONS
from tests.unit.service.test_children import has_ended

PLACED_SECONDS = 60


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


@pytest.mark.broker
def test_a_message_outlives_a_kill_and_the_classes_of_a_broker_its_end(tmp_path: Path) -> None:
    """The same data and address after SIGKILL; an end in order leaves an archive that a JVM accepts."""
    broker = kafka.start(tmp_path, SHORT_SESSIONS)
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

    home, jars = java.java_home(), cache.fetch(kafka.LOCK)
    archived = ClassArchive(jars / "classes", home).options()
    command = kafka.java_command(
        tmp_path, jars, (*archived, "-Xshare:on")
    )  # refused where it differs
    subprocess.run([*command, "kafka.admin.ConfigCommand", "--version"], check=True, timeout=60)
    assert archived


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
    cluster = kafka.start(tmp_path, SHORT_SESSIONS, nodes=3)
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
