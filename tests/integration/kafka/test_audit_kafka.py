"""The audit against a real Kafka: what really happened to messages is counted exactly."""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from soak.brokers import kafka
from soak.core.clock import SystemClock
from soak.core.plan import text as plan_text
from soak.core.ports import Outgoing, Topics
from soak.lab.brokers import kafka as lab
from soak.lab.ports import Running
from soak.load.consumer.start_offsets import store_start_offsets
from soak.runtime.context import connect, topics_of
from soak.store.run_folder import read_plan, read_run, write_run
from tests.support.lab.lab import SHORT_SESSIONS
from tests.support.lab.relay import Faults, relay
from tests.support.load.load_run import LoadRun

pytestmark = pytest.mark.broker

PLAN = """
name: audit
broker: {{kafka: {{bootstrap_servers: "{servers}", producer: {{acks: all, linger.ms: 1{more}}}}}}}
topic: {{partitions: {partitions}}}
load: {{rate: {rate}, message_size: 256B, clients_per_producer: {clients}}}
consumers: {{subscriptions: {subscriptions}}}
"""

Make = Callable[..., LoadRun]


@pytest.fixture
def make_run(tmp_path: Path) -> Iterator[Make]:
    runs: list[LoadRun] = []

    def make(broker: Running, more: str = "", rate: str = "5k/s", **counts: int) -> LoadRun:
        counts = {"partitions": 1, "clients": 1, "subscriptions": 1, **counts}
        topic = _topic(broker, counts["partitions"])
        servers = broker.bootstrap_servers
        text = PLAN.format(servers=servers, more=more, rate=rate, **counts)
        runs.append(LoadRun(tmp_path / f"run-{len(runs)}", text, topic))
        return runs[-1]

    yield make
    for run in runs:
        run.close()


def _topic(broker: Running, partitions: int) -> str:
    name = f"soak-audit-{secrets.token_hex(4)}"
    config = kafka.Config(bootstrap_servers=broker.bootstrap_servers)
    kafka.connect(config, SystemClock()).create_topics(Topics((name,), partitions), 1, {})
    return name


def test_what_a_relay_does_to_messages_is_counted(
    lab_kafka: Running, make_run: Make, tmp_path: Path
) -> None:
    """23 dropped, 17 sent twice, 11 sent late on the way from one topic to another."""
    faults = Faults(dropped=23, twice=17, late=11)
    run = make_run(lab_kafka, partitions=2, clients=2)
    mirror = run.mirrored(tmp_path / "mirror", _topic(lab_kafka, 2))

    acked = run.produce(faults.needed)
    written = relay(lab_kafka.bootstrap_servers, run.topic, mirror.topic, 2, acked, faults)
    mirror.consume(written)

    assert written == acked - 23 + 17
    assert run.verdict() == {
        "received": acked - 23,
        "lost": 23,
        "duplicated": 17,
        "reordered": 11,
    }


def test_what_came_before_a_late_consumer_of_a_topic_that_was_there_is_no_loss(
    lab_kafka: Running, make_run: Make, tmp_path: Path
) -> None:
    """It held 1,009 messages, and another run writes into it; ours are acknowledged before anybody reads."""
    run = make_run(lab_kafka, partitions=2)
    plan = read_plan(run.folder)
    plan = dataclasses.replace(plan, topic=dataclasses.replace(plan.topic, use_existing=True))
    run.folder.plan.write_text(plan_text.dump(plan))
    broker = connect(plan, SystemClock())
    others = broker.producer(topics_of(plan))
    others.send(Outgoing([at % 2 for at in range(1009)], [b"x"] * 1009, 0))
    others.close(30)

    store_start_offsets(run.folder, read_run(run.folder), plan, broker)
    another = LoadRun(tmp_path / "another", run.folder.plan.read_text(), run.topic)
    write_run(another.folder, dataclasses.replace(read_run(run.folder), id="another"))
    foreign = another.produce(1_000)
    acked = run.produce(2_000)
    run.consume(acked)

    assert run.verdict() == {"received": acked}
    assert run.total("foreign_messages") == foreign


def test_what_lies_behind_somebody_else_s_open_transaction_is_read(
    lab_kafka: Running, make_run: Make
) -> None:
    """A client that asks for committed records alone would stop before it, and call 1,009 lost."""
    run = make_run(lab_kafka, partitions=1)
    stranger = Producer(
        {"bootstrap.servers": lab_kafka.bootstrap_servers, "transactional.id": run.topic}
    )
    stranger.init_transactions(30)
    stranger.begin_transaction()
    stranger.produce(run.topic, b"x", partition=0)
    assert stranger.flush(30) == 0

    acked = run.produce(1_009)
    run.consume(acked)
    stranger.abort_transaction(30)

    assert run.verdict() == {"received": acked}


def test_what_retention_deleted_before_it_was_read_is_expired(
    lab_kafka: Running, make_run: Make
) -> None:
    """1,009 of one partition, which two clients wrote; one subscription had read them, the other not."""
    run = make_run(lab_kafka, clients=2, subscriptions=2)

    acked = run.produce(3_000)
    run.consume(acked)
    admin = AdminClient({"bootstrap.servers": lab_kafka.bootstrap_servers})
    for future in admin.delete_records([TopicPartition(run.topic, 0, 1009)]).values():
        future.result(30)
    run.consume(acked - 1009, index=1)

    assert run.verdict() == {"received": 2 * acked - 1009, "expired": 1009}


def test_what_a_broker_forgot_is_lost(tmp_path: Path, make_run: Make) -> None:
    """A power cut takes the last 23 messages of a log that the broker had acknowledged; it goes on after."""
    broker = lab.start(tmp_path / "kafka", SHORT_SESSIONS)
    try:
        # So slow that nothing is out when the producer ends, also where each message is a batch.
        run = make_run(broker, more=', batch.num.messages: "1"', rate="500/s")
        run.produce(1_000)
        broker.kill()
        _cut(broker.data_directory / f"{run.topic}-0", batches=23)
        broker.restart()
        acked = run.produce(500)
        run.consume(acked - 23)
    finally:
        broker.kill()  # nothing in it is needed any more

    assert run.verdict() == {"received": acked - 23, "lost": 23}


def _cut(folder: Path, batches: int) -> None:
    """Cut the last record batches off a log; a batch says its length after 8 bytes of offset."""
    (path,) = folder.glob("*.log")
    raw = path.read_bytes()
    begins, at = list[int](), 0
    while at + 12 <= len(raw) and (length := int.from_bytes(raw[at + 8 : at + 12], "big")):
        begins.append(at)
        at += 12 + length
    with path.open("r+b") as file:
        file.truncate(begins[-batches])
