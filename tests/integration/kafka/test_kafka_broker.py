"""The Kafka broker port against a real Kafka."""

from __future__ import annotations

import secrets
from pathlib import Path

import numpy as np
import pytest

from soak.app import plan_files
from soak.app.preflight.cluster import check_cluster
from soak.brokers import kafka
from soak.brokers.kafka.batch_calls import load_library
from soak.core.clock import SystemClock
from soak.core.errors import BrokerError, PlanError
from soak.core.ports import EARLIEST, Outgoing, Rows, Topics
from soak.lab.jars import cache
from soak.lab.ports import Running

pytestmark = pytest.mark.broker
COUNT = 1009  # a prime
LIMIT_NS = 30 * 10**9


def broker_with(config: kafka.Config, *, has_batches: bool) -> kafka.KafkaBroker:
    library = load_library() if has_batches else None
    return kafka.KafkaBroker(config, SystemClock(), kafka.KafkaGuarantees(config), library)


@pytest.fixture(params=[True, False], ids=["batched calls", "public API"])
def broker(lab_kafka: Running, request: pytest.FixtureRequest) -> kafka.KafkaBroker:
    config = kafka.Config(bootstrap_servers=lab_kafka.bootstrap_servers)
    return broker_with(config, has_batches=request.param)


@pytest.fixture
def topics(broker: kafka.KafkaBroker) -> Topics:
    found = Topics((f"soak-test-{secrets.token_hex(4)}", f"soak-test-{secrets.token_hex(4)}"), 2)
    broker.create_topics(found, 1, {"retention.ms": "600000"})
    return found


def test_sent_messages_are_acknowledged_and_received_in_order(
    broker: kafka.KafkaBroker, topics: Topics
) -> None:
    producer = broker.producer(topics)
    payloads = [token.to_bytes(8, "little") for token in range(COUNT)]
    partitions = [token % topics.total for token in range(COUNT)]
    sent = 0
    while sent < COUNT:
        sent += producer.send(Outgoing(partitions[sent:], payloads[sent:], sent))
        producer.serve()
    acks = producer.close(30)
    consumer = broker.consumer(topics, "audit", dict.fromkeys(range(topics.total), EARLIEST))
    heads: list[bytes] = []
    seen: list[int] = []
    offsets: list[int] = []
    for _ in range(600):
        batch = consumer.receive(100, 0.1)
        heads += [bytes(head) for head in batch.heads]
        seen += batch.partition.tolist()
        offsets += batch.offset.tolist()
        if len(heads) >= COUNT:
            break
    bounds = consumer.log_bounds(range(topics.total))
    consumer.close()

    assert sorted(acks.token.tolist()) == list(range(COUNT))
    assert (acks.offset >= 0).all()
    assert sorted(int.from_bytes(head, "little") for head in heads) == list(range(COUNT))
    for at in range(topics.total):
        mine = [offset for offset, where in zip(offsets, seen, strict=True) if where == at]
        assert np.diff(mine).tolist() == [1] * (len(mine) - 1)
        assert bounds[at] == (0, len(mine))


def test_existing_topics_and_leaders_are_known(broker: kafka.KafkaBroker, topics: Topics) -> None:
    assert broker.existing([*topics.names, "soak-not"]) == list(topics.names)
    assert broker.leaders(topics).tolist() == [1] * topics.total
    assert broker.existing(["soak-not"]) == []


def test_a_setting_refused_by_the_cluster_is_an_error_with_its_reason(
    broker: kafka.KafkaBroker,
) -> None:
    with pytest.raises(BrokerError, match=r"cannot create topic .*segment\.bytes"):
        broker.create_topics(
            Topics((f"soak-{secrets.token_hex(4)}",), 1), 1, {"segment.bytes": "many"}
        )


def test_a_topic_that_exists_already_is_refused_with_file_line_and_key(
    lab_kafka: Running, topics: Topics, tmp_path: Path
) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text(
        f"name: x\nbroker:\n  kafka:\n    bootstrap_servers: {lab_kafka.bootstrap_servers}\n"
        f"topic:\n  name: {topics.names[0]}\n"
    )

    with pytest.raises(
        PlanError, match=rf"plan\.yaml:6: topic\.name: topic {topics.names[0]} exists already"
    ):
        check_cluster(plan_files.load_plan(path))


def test_the_topic_to_use_must_exist(lab_kafka: Running, tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text(
        f"name: x\nbroker:\n  kafka:\n    bootstrap_servers: {lab_kafka.bootstrap_servers}\n"
        "topic:\n  name: soak-nowhere\n  use_existing: true\n"
    )

    with pytest.raises(PlanError, match=r"plan\.yaml:7: topic\.use_existing: there is no topic"):
        check_cluster(plan_files.load_plan(path))


@pytest.mark.parametrize("has_batches", [True, False])
def test_received_messages_equal_those_sent(lab_kafka: Running, *, has_batches: bool) -> None:
    """Rows of a matrix and bytes of any length, also 0, with and without keys, over two topics."""
    config = kafka.Config(bootstrap_servers=lab_kafka.bootstrap_servers)
    broker = broker_with(config, has_batches=has_batches)
    topics = Topics((f"soak-batch-a-{has_batches}", f"soak-batch-b-{has_batches}"), 3)
    broker.create_topics(topics, 1, {})
    producer = broker.producer(topics)
    matrix = np.arange(5 * 64, dtype=np.uint8).reshape(5, 64)
    matrix[3] = 0
    odd = [b"", b"a", bytes(range(47)), bytes(range(48)), bytes(range(100))]
    where = [0, 4, 4, 1, 5]

    rows = list(matrix[1:4])
    assert producer.send(Outgoing([2] * 3, rows, 0, rows=Rows(matrix, 1))) == 3
    assert producer.send(Outgoing([1, 3, 3], rows, 3, [b"k1", b"key2", b""], Rows(matrix, 1))) == 3
    assert producer.send(Outgoing(where, odd, 6)) == 5
    acks = producer.close(30)
    expected = {
        0: [odd[0]],
        1: [matrix[1].tobytes(), odd[3]],
        2: [row.tobytes() for row in rows],
        3: [row.tobytes() for row in rows[1:]],
        4: odd[1:3],
        5: [odd[4]],
    }
    consumer = broker.consumer(topics, "audit", dict.fromkeys(range(topics.total), EARLIEST))
    clock = SystemClock()
    deadline_ns = clock.mono_ns() + LIMIT_NS
    found: dict[int, list[tuple[int, bytes]]] = {at: [] for at in range(topics.total)}
    while sum(map(len, found.values())) < 11 and clock.mono_ns() < deadline_ns:
        batch = consumer.receive(100, 0.1)
        for at, offset, head in zip(
            batch.partition.tolist(), batch.offset.tolist(), batch.heads, strict=True
        ):
            found[at].append((offset, bytes(head)[:48].ljust(48, b"\0")))
    consumer.close()

    assert sorted(acks.token.tolist()) == list(range(11))
    assert (acks.offset >= 0).all()
    assert found == {
        at: [(number, whole[:48].ljust(48, b"\0")) for number, whole in enumerate(payloads)]
        for at, payloads in expected.items()
    }


def test_a_broker_says_which_release_of_kafka_it_is(
    broker: kafka.KafkaBroker, lab_kafka: Running
) -> None:
    """That of the lock file."""
    lock = (Path(cache.__file__).parent / "kafka.lock").read_text()
    release = lock.partition("org.apache.kafka:kafka_2.13:")[2].split(".")[:2]

    assert broker.broker_versions() == {lab_kafka.bootstrap_servers: ".".join(release)}
