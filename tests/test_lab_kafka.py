"""The lab's Kafka: it starts, keeps its data, and is never left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # their stubs

from soak.core import plugins
from soak.core.errors import LabError
from soak.lab.brokers import _kafka_files as files
from soak.lab.brokers import kafka
from soak.lab.ports import Running
from tests.test_lab_children import has_ended

PARENT = """
import sys
from pathlib import Path
from soak.lab.brokers import kafka
print(kafka.start(Path(sys.argv[1]), {}).pid, flush=True)
sys.stdin.read()
"""


def test_every_lab_broker_and_fault_has_its_seam() -> None:
    """A new file is under test the moment it exists."""
    for name in plugins.names("soak.lab.brokers"):
        assert callable(plugins.load("soak.lab.brokers", name).start), name
    for name in plugins.names("soak.lab.faults"):
        module = plugins.load("soak.lab.faults", name)
        assert callable(module.inject), name
        module.Config()


def test_settings_reach_the_broker_but_not_those_that_the_lab_decides(tmp_path: Path) -> None:
    """Where it listens and where its data lies is not for a plan to say."""
    text = files.server_properties(tmp_path, 1, 2, {"log.retention.check.interval.ms": "300"})

    assert "log.retention.check.interval.ms=300\n" in text
    with pytest.raises(LabError, match=r"decides log\.dirs"):
        files.server_properties(tmp_path, 1, 2, {"log.dirs": "/"})
    with pytest.raises(LabError, match="line break"):
        files.server_properties(tmp_path, 1, 2, {"a": "1\nlog.dirs=/"})


def test_ports_lie_below_those_that_the_kernel_gives_away() -> None:
    """Else a client's own connection could take the broker's port while it restarts."""
    low = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])

    first, second = kafka._free_ports()

    assert first != second
    assert max(first, second) < max(low, 32_768)


@pytest.mark.broker
def test_a_message_that_was_acknowledged_outlives_a_kill(tmp_path: Path) -> None:
    """The same data and the same address after SIGKILL."""
    # Its old registration must run out first: nine seconds by default.
    quick = {"broker.session.timeout.ms": "3000", "broker.heartbeat.interval.ms": "500"}
    broker = kafka.start(tmp_path, quick)
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

    assert len(admin.list_topics(topic, timeout=30).topics[topic].partitions) == 2
