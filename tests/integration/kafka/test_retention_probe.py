"""The retention probe against a real Kafka: each deletion is reported with the right offsets."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # its stubs

from probes.retention_kafka.offsets import KafkaOffsets
from probes.retention_kafka.probe import Config, RetentionKafka, connect
from soak.core.clock import SystemClock
from soak.core.errors import ProbeError
from soak.core.model import Event
from soak.core.units import SECOND_NS
from soak.lab.ports import Running

pytestmark = pytest.mark.broker

TOPIC = "probe-retention"
SEGMENT_BYTES = 2**20
MESSAGE_BYTES = 10_000
MESSAGES = 2_000  # some 20 segments
LIMIT_NS = 60 * SECOND_NS


def make_topic(address: str, settings: Mapping[str, str]) -> None:
    admin = AdminClient({"bootstrap.servers": address})
    new = NewTopic(TOPIC, num_partitions=2, replication_factor=1, config=dict(settings))
    admin.create_topics([new])[TOPIC].result(30)


def fill(address: str) -> None:
    producer = Producer({"bootstrap.servers": address, "batch.size": str(4 * MESSAGE_BYTES)})
    for number in range(MESSAGES):
        producer.produce(TOPIC, b"x" * MESSAGE_BYTES, partition=number % 2)
        producer.poll(0)
    assert producer.flush(60) == 0


def low_water_marks(address: str) -> list[int]:
    consumer = Consumer({"bootstrap.servers": address, "group.id": "probe-retention"})
    marks = [consumer.get_watermark_offsets(TopicPartition(TOPIC, at), timeout=30) for at in (0, 1)]
    consumer.close()
    return [low for low, _ in marks]


def test_deletions_have_the_right_offsets(lab_kafka: Running) -> None:
    """Twenty segments are written and three are kept: the events add up to the broker's log start."""
    address, clock = lab_kafka.bootstrap_servers, SystemClock()
    make_topic(
        address,
        {"retention.bytes": str(3 * SEGMENT_BYTES), "segment.bytes": str(SEGMENT_BYTES)},
    )
    config = Config(
        bootstrap_servers=address, topics=(TOPIC,), directory=str(lab_kafka.data_directory)
    )
    probe, offsets = RetentionKafka(config, clock), connect(config)
    probe.poll(offsets)  # before there is anything to delete
    begin_ns = clock.wall_ns()
    fill(address)

    events: list[Event] = []
    deadline_ns = clock.mono_ns() + LIMIT_NS
    held = 0.0
    while clock.mono_ns() < deadline_ns and not is_settled(address, events):
        clock.sleep_until(clock.mono_ns() + SECOND_NS // 4)
        probe.poll(offsets)
        reading = probe.loop.buffer.take(clock.mono_ns())
        events += [one for one in reading.events if one.kind == "retention_deletion"]
        held = {column.metric: value for column, value in reading.samples}["retention_held_bytes"]

    for partition in (0, 1):
        mine = [event.fields for event in events if event.fields["partition"] == partition]
        assert mine[0]["from_offset"] == 0
        assert all(a["to_offset"] == b["from_offset"] for a, b in pairwise(mine))
        assert mine[-1]["to_offset"] == low_water_marks(address)[partition]
    messages = sum(int(event.fields["messages"]) for event in events)
    reported = sum(int(event.fields["bytes"]) for event in events)
    assert reported == pytest.approx(messages * MESSAGE_BYTES, rel=0.05)
    assert all(begin_ns - SECOND_NS < event.since_ns < event.at_ns for event in events)
    assert 0 < held < 30 * SEGMENT_BYTES


def is_settled(address: str, events: list[Event]) -> bool:
    """True when both partitions were cut and what was reported is what the broker says."""
    last = {int(event.fields["partition"]): int(event.fields["to_offset"]) for event in events}
    reported = [last.get(at, 0) for at in (0, 1)]
    return min(reported) > 300 and reported == low_water_marks(address)


def test_a_missing_topic_is_an_error_with_its_name(lab_kafka: Running) -> None:
    """With the client's message, without its codes."""
    offsets = KafkaOffsets({"bootstrap.servers": lab_kafka.bootstrap_servers}, 10.0)

    with pytest.raises(ProbeError, match=r"cannot list topic nowhere: unknown topic"):
        offsets.partitions(["nowhere"], lambda _: None)


def test_a_missing_broker_is_an_error_in_time() -> None:
    """The request ends at its time limit."""
    offsets = KafkaOffsets({"bootstrap.servers": "127.0.0.1:9"}, 1.0)
    clock = SystemClock()
    begin_ns = clock.mono_ns()

    with pytest.raises(ProbeError, match="cannot list"):
        offsets.partitions([TOPIC], lambda _: None)

    assert clock.mono_ns() - begin_ns < 10 * SECOND_NS
