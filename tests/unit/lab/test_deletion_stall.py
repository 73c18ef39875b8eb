"""The fault stops a broker while it deletes, and always lets it go again."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # their stubs

from soak.core.clock import SystemClock
from soak.core.units import SECOND_NS
from soak.lab.faults.retention import (
    DeletionStallConfig,
    Duty,
    deleted_segments,
    inject_deletion_stall,
)
from soak.lab.ports import Running, Target
from tests.support.sleeping_broker import SleepingBroker, Witness, asleep, is_stopped

MS = SECOND_NS // 1000


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[SleepingBroker]:
    broker = asleep(tmp_path)
    yield broker
    broker.kill()


def test_only_segments_under_deletion_in_the_topics_asked_for_are_seen(tmp_path: Path) -> None:
    """Indexes, living segments, other topics and stray files do not count."""
    for name in (
        "soak-x-0/1.log.deleted",
        "soak-x-0/1.index.deleted",
        "soak-x-0/2.log",
        "soak-x-1/7.log.deleted",
        "__consumer_offsets-3/1.log.deleted",
    ):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.touch()
    (tmp_path / "meta.properties").touch()

    found = deleted_segments(tmp_path, "soak-*")

    assert found == {"soak-x-0/1.log.deleted", "soak-x-1/7.log.deleted"}


def test_a_deletion_makes_the_broker_stop_in_a_duty_cycle_for_as_long_as_it_is_recent() -> None:
    """One deletion, looked at every 20 ms for 3 s: stops at 0, 250, 500 and 750 ms."""
    duty = Duty(DeletionStallConfig())
    stops = []
    for now_ns in range(0, 3 * SECOND_NS, 20 * MS):
        # The file is there for a second and then gone; it is one deletion all the time.
        duty.fresh(now_ns, frozenset({"a"} if now_ns < SECOND_NS else set()))
        if duty.is_due(now_ns):
            stops.append(now_ns // MS)

    assert stops == [0, 260, 520, 780]


def test_no_deletion_no_stop() -> None:
    """Whatever the time is."""
    duty = Duty(DeletionStallConfig())

    assert [duty.fresh(now, frozenset()) or duty.is_due(now) for now in (0, MS, SECOND_NS)] == [
        False,
        False,
        False,
    ]


def test_each_deletion_counts_once() -> None:
    """23 segments over time, seen in several looks."""
    duty = Duty(DeletionStallConfig())
    names = [str(number) for number in range(23)]

    counts = [duty.fresh(at, frozenset(names[max(0, at - 3) : at])) for at in range(24)]

    assert sum(counts) == 23


@pytest.mark.parametrize(
    "settings", [{"stall": 0}, {"stall": 200 * MS, "every": 300 * MS}, {"poll": -1}, {"typo": 1}]
)
def test_a_fault_that_makes_no_sense_is_refused(settings: dict[str, int]) -> None:
    """Before anything is stopped."""
    with pytest.raises(ValueError, match=r"stall|poll|typo"):
        DeletionStallConfig(**settings)  # type: ignore[arg-type]  # wrong on purpose


def test_deletions_stop_the_broker_and_lifting_leaves_it_running(broker: SleepingBroker) -> None:
    """It is recorded how long each stop took, and when the first deletion was seen."""
    witness = Witness(enough=2)
    active = inject_deletion_stall(
        Target(broker, witness.record, SystemClock()), DeletionStallConfig()
    )
    assert active.onset_wall_ns is None
    (broker.data_directory / "soak-x-0" / "00.log.deleted").touch()
    assert witness.has_enough.wait(20)

    active.lift()
    active.lift()

    assert not is_stopped(broker.pid)
    assert int(str(witness.lines[0]["stalled_ns"])) >= 60 * MS
    assert witness.lines[0]["new_deletions"] == 1
    assert active.onset_wall_ns is not None


@pytest.mark.broker
def test_a_real_kafka_is_stopped_when_it_deletes_and_goes_on_afterwards(lab_kafka: Running) -> None:
    """Retention of a second: the segments go, the broker waits, and then takes messages again."""
    topic = f"soak-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": lab_kafka.bootstrap_servers})
    settings = {"retention.ms": "1000", "segment.bytes": "1048576", "segment.ms": "1000"}
    admin.create_topics([NewTopic(topic, 1, 1, config=settings)])[topic].result(30)
    producer = Producer({"bootstrap.servers": lab_kafka.bootstrap_servers})
    witness = Witness(enough=3)
    active = inject_deletion_stall(
        Target(lab_kafka, witness.record, SystemClock()), DeletionStallConfig()
    )
    try:
        for _ in range(3 * 1024 + 1):
            producer.produce(topic, b"x" * 1024, partition=0)
        assert producer.flush(30) == 0
        assert witness.has_enough.wait(60)
    finally:
        active.lift()

    producer.produce(topic, b"afterwards", partition=0)

    assert producer.flush(30) == 0
    assert not is_stopped(lab_kafka.pid)
