"""Faults that other clients cause, on a real Kafka: load and topics while active, nothing afterwards."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest
from confluent_kafka import Consumer, KafkaException
from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import AdminClient

from soak.brokers import kafka
from soak.core.clock import SystemClock
from soak.core.ports import Topics
from soak.lab.ports import Running, Target
from soak.service import children
from soak.store.journal.reader import read_source, sources
from tests.support.lab.faults import inject
from tests.support.load.load_run import LoadRun

pytestmark = [pytest.mark.broker, pytest.mark.timeout(300)]

LIMIT_SECONDS = 60
PLAN = """
name: throttled
broker: {{kafka: {{bootstrap_servers: "{servers}"}}}}
load: {{rate: 500/s, message_size: 1KiB}}
topic: {{partitions: 2}}
"""


def until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + LIMIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"not in time: {what}"
        time.sleep(0.1)


@pytest.fixture
def lines() -> list[Mapping[str, object]]:
    return []


@pytest.fixture
def target(lab_kafka: Running, lines: list[Mapping[str, object]]) -> Target:
    return Target(lab_kafka, lines.append, SystemClock())


def topics(broker: Running, prefix: str) -> dict[str, int]:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    found = admin.list_topics(timeout=LIMIT_SECONDS).topics.items()
    return {name: len(topic.partitions) for name, topic in found if name.startswith(prefix)}


def messages(broker: Running, names: Mapping[str, int]) -> int:
    """Return the offsets at the ends of all partitions together; 0 while a new one has no leader."""
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "test"})
    try:
        return sum(
            consumer.get_watermark_offsets(Place(name, at), timeout=LIMIT_SECONDS)[1]
            for name, partitions in names.items()
            for at in range(partitions)
        )
    except KafkaException:
        return 0
    finally:
        consumer.close()


def other_clients() -> list[psutil.Process]:
    return [
        one
        for one in psutil.Process().children(recursive=True)
        if one.status() != psutil.STATUS_ZOMBIE and "soak.lab.other_clients" in one.cmdline()
    ]


@pytest.mark.parametrize(
    ("name", "settings"),
    [("foreign_flood", {"bytes_per_second": 2**20}), ("topic_compaction", {"bytes": 2**21})],
)
def test_another_client_writes_until_it_is_lifted(
    name: str, settings: dict[str, Any], target: Target, lab_kafka: Running
) -> None:
    before = topics(lab_kafka, "other-")
    active = inject(name, target, **settings)
    try:
        (own,) = topics(lab_kafka, "other-").keys() - before.keys()
        until(
            lambda: messages(lab_kafka, {own: topics(lab_kafka, own)[own]}) > 50,
            "messages of another client",
        )
    finally:
        active.close()

    until(lambda: topics(lab_kafka, "other-") == before, "its topic is deleted")
    assert other_clients() == []


def test_other_readers_end_with_the_fault(target: Target) -> None:
    active = inject("foreign_reads", target, readers=2)
    found = len(other_clients())
    active.close()

    assert (found, other_clients()) == (2, [])


def test_partitions_are_created_and_deleted(target: Target, lab_kafka: Running) -> None:
    before = topics(lab_kafka, "other-")
    active = inject("create_partitions", target, partitions=250)
    try:
        until(
            lambda: sum(topics(lab_kafka, "other-").values()) == sum(before.values()) + 250,
            "they are created",
        )
    finally:
        active.close()

    until(lambda: topics(lab_kafka, "other-") == before, "they are deleted")


def test_a_quota_throttles_clients_until_it_is_lifted(
    target: Target, lab_kafka: Running, tmp_path: Path
) -> None:
    """The load records how long, and notes once which broker begins to."""
    topic = f"soak-{tmp_path.name}"
    config = kafka.Config(bootstrap_servers=lab_kafka.bootstrap_servers)
    kafka.connect(config, SystemClock()).create_topics(Topics((topic,), 2), 1, {})
    run = LoadRun(tmp_path / "run", PLAN.format(servers=lab_kafka.bootstrap_servers), topic)
    try:
        daemons = [run.start("consume"), run.start("produce")]
        run.until(lambda: run.newest("throttle_seconds") == 0.0, "a client that is not throttled")
        active = inject("client_quota", target, bytes_per_second=65_536)
        try:
            run.until(lambda: (run.newest("throttle_seconds") or 0.0) > 0.1, "a throttled client")
        finally:
            active.close()
        for process in daemons:
            run.kill(process)
    finally:
        run.close()

    brokers = [
        (name.partition(".")[0], event.fields["broker"])
        for name in sources(run.folder.journal)
        for record, _ in read_source(run.folder.journal, name)
        for event in record.events
        if event.kind == "throttled"
    ]
    assert ("produce", lab_kafka.bootstrap_servers) in brokers
    assert len(brokers) == len(set(brokers))  # one event of each daemon


def test_what_is_usual_on_a_cluster_goes_on_by_itself(lab_kafka: Running) -> None:
    """Two topics with a wave, one that is compacted, and groups that come and go."""
    command = ["soak.lab.other_clients", lab_kafka.bootstrap_servers, "usual", "7"]
    log = lab_kafka.log_path.with_name("usual.log")

    process = children.spawn([sys.executable, "-m", *command], log_path=log)
    try:
        until(lambda: len(topics(lab_kafka, "usual-")) == 3, "its topics")
        until(lambda: messages(lab_kafka, topics(lab_kafka, "usual-")) > 20, "its messages")
        assert process.poll() is None, log.read_text()
    finally:
        children.kill(process)
