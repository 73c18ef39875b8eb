"""The probe `broker_log` on the log of a real Kafka whose retention deletes."""

from __future__ import annotations

import threading
import time
from collections import Counter

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from probes.broker_log.probe import BrokerLog, Config
from soak.core.clock import SystemClock
from soak.core.model import Event
from soak.lab.ports import Running

pytestmark = pytest.mark.broker

TOPIC = "log-followed"
SEGMENT_BYTES = 2**20
SEGMENTS = 4
PATIENCE_SECONDS = 60.0
CLOCK_NS = 1_500_000_000  # the lines are stamped on this host's clock


def produce(broker: Running) -> None:
    """Fill some segments of one partition that is soon to lose them."""
    settings = {"segment.bytes": str(SEGMENT_BYTES), "retention.ms": "1000"}
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.create_topics([NewTopic(TOPIC, 1, 1, config=settings)])[TOPIC].result(30)
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 0})
    for _ in range(SEGMENTS * SEGMENT_BYTES // 2**16):
        producer.produce(TOPIC, b"x" * 2**16)
        producer.flush(10)


def test_rolls_and_deletions_of_a_real_kafka_are_events_at_their_times(lab_kafka: Running) -> None:
    """Each rolled segment is deleted, and later unlinked; nothing is reported twice."""
    clock = SystemClock()
    probe = BrokerLog(Config(log=str(lab_kafka.log_path)), clock)
    probe.poll()
    begin_ns = clock.wall_ns()
    worker = threading.Thread(target=produce, args=(lab_kafka,))
    worker.start()
    events: list[Event] = []
    limit = time.monotonic() + PATIENCE_SECONDS
    while Counter(event.kind for event in events)["segment_unlink"] < SEGMENTS - 1:
        assert time.monotonic() < limit, events
        probe.poll()
        seen_ns = clock.wall_ns()
        for event in probe.taken(clock.mono_ns()).events:
            if event.fields.get("topic") == TOPIC:
                assert begin_ns - CLOCK_NS < event.at_ns <= seen_ns
                events.append(event)
        time.sleep(0.2)
    worker.join()
    probe.close_logs()

    def offsets(kind: str) -> list[object]:
        return [event.fields["offset"] for event in events if event.kind == kind]

    rolled, deleted, unlinked = map(offsets, ("segment_roll", "segment_deletion", "segment_unlink"))
    assert "leader_change" in {event.kind for event in events}
    assert len(rolled) == len(set(rolled))
    assert deleted == [0, *rolled][: len(deleted)]
    assert unlinked == deleted[: len(unlinked)]
