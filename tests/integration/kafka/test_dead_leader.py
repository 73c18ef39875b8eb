"""What the retention probe costs after a broker has died: the client would connect to it without a pause."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # its stubs

from probes.retention_kafka.offsets import KafkaOffsets
from soak.core.clock import SystemClock
from soak.core.units import SECOND_NS
from soak.lab.brokers import kafka
from soak.lab.ports import Running

pytestmark = pytest.mark.broker

TOPIC = "led-by-all"
SECONDS = 10
READY_SECONDS = 30
MOST_RATIO = 25.0
"""Of the CPU time while all brokers are up; it was above 100 when the client was left to reconnect."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    made = kafka.start(tmp_path_factory.mktemp("dead-leader"), {}, nodes=3)
    yield made
    made.stop()


def wait_until_all_lead(offsets: KafkaOffsets) -> None:
    """Ask until each partition answers: a broker may hear that it leads one later than the client does."""
    clock, failures = SystemClock(), ["not asked yet"]
    deadline_ns = clock.mono_ns() + READY_SECONDS * SECOND_NS
    while failures:
        assert clock.mono_ns() < deadline_ns, failures
        failures.clear()
        offsets.earliest(
            [(TOPIC, at) for at in range(3)], lambda error: failures.append(str(error))
        )


def cpu_seconds(offsets: KafkaOffsets, failures: list[str]) -> float:
    """Return the CPU time of this process in which offsets are asked for once a second."""
    clock, begin = SystemClock(), time.process_time()
    partitions = [(TOPIC, at) for at in range(3)]
    for _ in range(SECONDS):
        next_ns = clock.mono_ns() + SECOND_NS
        offsets.earliest(partitions, lambda error: failures.append(str(error)))
        clock.sleep_until(next_ns)
    return time.process_time() - begin


def test_a_dead_leader_costs_little_and_the_others_answer(cluster: Running) -> None:
    """Ten seconds from its end on, in which the cluster still names it as the leader."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    admin.create_topics([NewTopic(TOPIC, 3, 3)])[TOPIC].result(30)
    offsets = KafkaOffsets({"bootstrap.servers": cluster.bootstrap_servers}, 10.0)
    failures: list[str] = []
    offsets.partitions([TOPIC], lambda error: failures.append(str(error)))
    wait_until_all_lead(offsets)
    assert failures == []
    before = cpu_seconds(offsets, failures)
    assert failures == []
    led = admin.list_topics(TOPIC, timeout=30).topics[TOPIC].partitions[0].leader
    (victim,) = (node for node in cluster.nodes if node.number == led)

    os.kill(victim.pid, signal.SIGKILL)
    after = cpu_seconds(offsets, failures)

    assert after < MOST_RATIO * before
    assert all("its leader does not answer" in one for one in failures)
