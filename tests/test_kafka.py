"""The Kafka broker port against a real Kafka."""

from __future__ import annotations

import secrets
from pathlib import Path

import numpy as np
import pytest

from soak.brokers import kafka
from soak.cli import _checks
from soak.core.clock import SystemClock
from soak.core.errors import BrokerError, PlanError
from soak.lab.ports import Running

pytestmark = pytest.mark.broker
COUNT = 1009  # a prime


@pytest.fixture
def broker(lab_kafka: Running) -> kafka.KafkaBroker:
    config = kafka.Config(bootstrap_servers=lab_kafka.bootstrap_servers)
    return kafka.connect(config, SystemClock())


@pytest.fixture
def topic(broker: kafka.KafkaBroker) -> str:
    name = f"soak-test-{secrets.token_hex(4)}"
    broker.create_topic(name, 2, 1, {"retention.ms": "600000"})
    return name


def test_what_is_sent_is_acknowledged_and_received_in_order(
    broker: kafka.KafkaBroker, topic: str
) -> None:
    producer = broker.producer(topic)
    for token in range(COUNT):
        while not producer.send(token % 2, token.to_bytes(8, "little"), token):
            producer.serve()
    acks = producer.close(30)
    consumer = broker.consumer(topic, {0: -2, 1: -2})
    heads: list[bytes] = []
    partitions: list[int] = []
    offsets: list[int] = []
    for _ in range(600):
        batch = consumer.receive(100, 0.1)
        heads += batch.heads
        partitions += batch.partition.tolist()
        offsets += batch.offset.tolist()
        if len(heads) >= COUNT:
            break
    bounds = [consumer.log_bounds(at) for at in (0, 1)]
    consumer.close()

    assert sorted(acks.token.tolist()) == list(range(COUNT))
    assert (acks.offset >= 0).all()
    assert sorted(int.from_bytes(head, "little") for head in heads) == list(range(COUNT))
    for at in (0, 1):
        mine = [offset for offset, where in zip(offsets, partitions, strict=True) if where == at]
        assert np.diff(mine).tolist() == [1] * (len(mine) - 1)
        assert bounds[at] == (0, len(mine))


def test_a_topic_knows_whether_it_is_there(broker: kafka.KafkaBroker, topic: str) -> None:
    assert broker.topic_exists(topic)
    assert not broker.topic_exists(topic + "-not")


def test_a_setting_that_the_cluster_refuses_is_told_in_its_words(broker: kafka.KafkaBroker) -> None:
    with pytest.raises(BrokerError, match=r"cannot create topic .*segment\.bytes"):
        broker.create_topic(f"soak-{secrets.token_hex(4)}", 1, 1, {"segment.bytes": "many"})


def test_a_topic_that_exists_already_is_refused_with_file_line_and_key(
    lab_kafka: Running, topic: str, tmp_path: Path
) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text(
        f"name: x\nbroker:\n  kafka:\n    bootstrap_servers: {lab_kafka.bootstrap_servers}\n"
        f"topic:\n  name: {topic}\n"
    )

    with pytest.raises(
        PlanError, match=rf"plan\.yaml:6: topic\.name: topic {topic} exists already"
    ):
        _checks.check_cluster(_checks.load_plan(path))


def test_the_topic_to_be_used_must_be_there(lab_kafka: Running, tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text(
        f"name: x\nbroker:\n  kafka:\n    bootstrap_servers: {lab_kafka.bootstrap_servers}\n"
        "topic:\n  name: soak-nowhere\n  use_existing: true\n"
    )

    with pytest.raises(PlanError, match=r"plan\.yaml:7: topic\.use_existing: there is no topic"):
        _checks.check_cluster(_checks.load_plan(path))
