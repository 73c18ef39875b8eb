"""Several connections of one process against a real Kafka: the log shows several producers."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from soak.brokers import kafka
from soak.core.clock import SystemClock
from soak.core.ports import Topics
from soak.lab.ports import Running
from tests.support.load.load_run import LoadRun

pytestmark = pytest.mark.broker

PLAN = """
name: clients
broker:
  kafka:
    bootstrap_servers: "{servers}"
    producer: {{acks: all, enable.idempotence: true, linger.ms: 50}}
topic: {{partitions: 4}}
load: {{rate: 4k/s, message_size: 256B, clients_per_producer: {clients}}}
"""
HEADER = struct.Struct(
    ">qi31xqh4xi"
)  # of a record batch: first offset, length, producer, epoch, messages


def batches(directory: Path, topic: str) -> Iterator[tuple[int, int]]:
    """Yield the producer and the number of messages of each batch in the log."""
    for path in directory.rglob(f"{topic}-*/*.log"):
        raw, at = path.read_bytes(), 0
        while at + HEADER.size <= len(raw):
            _, length, producer, _, count = HEADER.unpack_from(raw, at)
            if length <= 0:  # preallocated
                break
            yield producer, count
            at += 12 + length


def mean_batch(lab: Running, path: Path, clients: int) -> tuple[float, int]:
    """Run a producer; return how many messages a batch has, and how many producers wrote."""
    topic, config = f"soak-{path.name}", kafka.Config(bootstrap_servers=lab.bootstrap_servers)
    kafka.connect(config, SystemClock()).create_topics(Topics((topic,), 4), 1, {})
    run = LoadRun(path, PLAN.format(servers=config.bootstrap_servers, clients=clients), topic)
    try:
        sent = run.produce(20_000)
    finally:
        run.close()
    found = list(batches(lab.nodes[0].data_directory, topic))
    assert sum(count for _, count in found) == sent
    return sent / len(found), len({producer for producer, _ in found})


def test_four_connections_make_batches_of_a_quarter(lab_kafka: Running, tmp_path: Path) -> None:
    """4,000/s with linger 50 ms: some 200 messages a batch of one, 50 of each of four."""
    one, single = mean_batch(lab_kafka, tmp_path / "one", 1)
    four, several = mean_batch(lab_kafka, tmp_path / "four", 4)

    assert (single, several) == (1, 4)
    assert one >= 2.5 * four
