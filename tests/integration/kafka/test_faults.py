"""Faults of a real Kafka on an injected drive and behind a relay: an effect while active, none after."""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # their stubs
    AdminClient,
    ConfigResource,
    NewTopic,
)

from soak.core.clock import SystemClock
from soak.core.plan.plan import LabDrive
from soak.core.units import SECOND_NS
from soak.lab.drive import drive
from soak.lab.drive.throttle import Throttle
from soak.lab.faults.broker_process import elect_preferred_leaders
from soak.lab.files import start_ticks
from soak.lab.lab import Lab, start_lab
from soak.lab.ports import Running, Target
from tests.support.fakes import FakeClock
from tests.support.lab.faults import inject
from tests.support.lab.lab import remains
from tests.support.lab.sleeping_broker import Witness, is_stopped

pytestmark = [pytest.mark.broker, pytest.mark.timeout(600)]

MS = SECOND_NS // 1000
LIMIT_SECONDS = 60
WHILE_ACTIVE = 5
"""So many messages are sent one after another while a fault is active."""


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    lack = drive.missing_drive_tools()
    if lack:
        pytest.skip(lack)
    folder = tmp_path_factory.mktemp("lab")
    made = start_lab(
        folder,
        {},
        drive=LabDrive(capacity=2**28),
        relayed=True,
        with_mailbox=False,
        on_mail=lambda _: None,
    )
    yield made
    made.stop()
    assert remains(folder) == []


@pytest.fixture
def lines() -> list[Mapping[str, object]]:
    return []


@pytest.fixture
def target(lab: Lab, lines: list[Mapping[str, object]]) -> Target:
    return Target(lab.broker, lines.append, SystemClock(), lab.drives)


@pytest.fixture
def topic(lab: Lab) -> str:
    name = f"soak-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": lab.broker.bootstrap_servers})
    config = {"flush.messages": "1", "segment.bytes": "1048576"}
    admin.create_topics([NewTopic(name, 1, 1, config=config)])[name].result(60)
    return name


class Sender:
    """One message after another, each flushed by the broker before it is acknowledged."""

    def __init__(self, lab: Lab, topic: str) -> None:
        self._producer = Producer(
            {
                "bootstrap.servers": lab.broker.bootstrap_servers,
                "acks": "all",
                "linger.ms": 0,
                "reconnect.backoff.max.ms": 200,
            }
        )
        self._topic = topic

    def begin(self) -> None:
        self._producer.produce(self._topic, b"x" * 1024)

    def arrived(self, seconds: float) -> bool:
        return self._producer.flush(seconds) == 0

    def latency(self) -> float:
        """Return how long one message took."""
        begun = time.perf_counter()
        self.begin()
        assert self.arrived(LIMIT_SECONDS)
        return time.perf_counter() - begun

    def typical(self, count: int = 9) -> float:
        return sorted(self.latency() for _ in range(count))[count // 2]


@pytest.fixture
def sender(lab: Lab, topic: str) -> Sender:
    made = Sender(lab, topic)
    for _ in range(50):
        made.latency()
    return made


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("drive_delay", {"delay": 100 * MS}),
        ("drive_gc", {"pool": 2**16, "collected_per_second": 2**29, "starved": 100 * MS}),
        ("fsync_throttle", {"writes_per_second": 5}),
        ("network_delay", {"delay": 100 * MS}),
        ("network_loss", {"ratio": 0.9}),
    ],
)
def test_a_message_takes_longer_while_it_is_active(
    name: str, settings: dict[str, Any], target: Target, sender: Sender, lab: Lab
) -> None:
    """By several times, and as before when it is lifted."""
    if name == "fsync_throttle" and Throttle(lab.drives[1].device, 5).missing:
        pytest.skip(Throttle(lab.drives[1].device, 5).missing)
    before = sender.typical()
    active = inject(name, target, **settings)
    try:
        sender.typical(WHILE_ACTIVE)  # until the pool is written and the cache is used up
        during = sender.typical(WHILE_ACTIVE)
    finally:
        active.lift()
    sender.typical()
    after = sender.typical()

    assert during > max(2 * before, 0.08)
    assert after < during / 2
    assert active.onset_wall_ns is not None


@pytest.mark.parametrize("name", ["drive_hang", "network_partition"])
def test_nothing_arrives_while_it_is_active(name: str, target: Target, sender: Sender) -> None:
    """And all of it afterwards."""
    active = inject(name, target)
    try:
        limit = time.monotonic() + LIMIT_SECONDS
        sender.begin()
        while sender.arrived(1.0):  # what is sent in its first milliseconds may pass
            assert time.monotonic() < limit
            sender.begin()
    finally:
        active.lift()

    assert sender.arrived(LIMIT_SECONDS)


def test_a_broker_is_stopped_again_and_again(
    target: Target, sender: Sender, lines: list[Mapping[str, object]]
) -> None:
    """One of a few messages waits for as long as a pause."""
    active = inject("broker_pause", target, pause=500 * MS, every=600 * MS)
    try:
        slowest = max(sender.latency() for _ in range(9))
    finally:
        active.lift()

    assert slowest > 0.2
    assert lines[0]["stalled_ns"]


def test_a_jvm_collects_all_its_garbage_as_often_as_asked(
    target: Target, lines: list[Mapping[str, object]]
) -> None:
    """Each collection is recorded with its length, and the JVM logs its pause."""
    active = inject("gc_pause", target, every=10 * MS)
    _until(lambda: len(lines) >= 5)
    active.lift()
    count = len(lines)

    pauses = target.broker.log_path.with_name("gc.log").read_text()
    assert all(int(str(line["took_ns"])) > 0 for line in lines)
    assert pauses.count("Pause Full") >= 5
    assert len(lines) == count


def test_a_killed_broker_comes_back(target: Target, sender: Sender) -> None:
    """What was sent meanwhile arrives then."""
    node = target.broker.nodes[0]
    active = inject("broker_kill", target)
    was_there = start_ticks(node.pid)
    sender.begin()
    active.lift()

    assert was_there is None
    assert sender.arrived(LIMIT_SECONDS)


def test_a_full_drive_is_free_again_afterwards(target: Target, sender: Sender, lab: Lab) -> None:
    """Nothing can be written while active, not even by root; a broker that ended is started again."""
    folder = lab.drives[1].mount_point
    before = _free(folder)
    active = inject("disk_full", target)
    during = _free(folder)
    mine = os.open(folder, os.O_TMPFILE | os.O_RDWR, 0o600)
    with pytest.raises(OSError, match="No space left"):
        os.posix_fallocate(mine, 0, 2**20)
    os.close(mine)
    sender.begin()
    sender.arrived(3.0)
    active.lift()

    assert during == 0
    assert _free(folder) > before / 2
    assert sender.arrived(LIMIT_SECONDS)


@pytest.mark.parametrize(
    ("name", "settings", "key", "during", "after"),
    [
        ("retention_limit", {"bytes": 2**21}, "retention.bytes", "2097152", "-1"),
        ("segment_roll", {"every": SECOND_NS}, "segment.ms", "1000", "604800000"),
    ],
)
def test_a_topics_setting_is_altered_and_set_back(
    name: str,
    settings: dict[str, Any],
    key: str,
    during: str,
    after: str,
    target: Target,
    topic: str,
    sender: Sender,
) -> None:
    """To what it was before; a limit that is lowered deletes something."""
    for _ in range(6 * 1024):
        sender.begin()
    assert sender.arrived(LIMIT_SECONDS)
    active = inject(name, target, topics=topic, **settings)
    try:
        altered = _setting(target, topic, key)
    finally:
        active.lift()

    assert altered == during
    assert _setting(target, topic, key) == after


def test_a_neighbour_writes_on_the_same_drive_and_leaves_no_file(target: Target, lab: Lab) -> None:
    """The drive's own counter says so."""
    data = target.broker.data_directory
    before = lab.drives[1].status().written_bytes
    active = inject("noisy_neighbour", target, writers=1)
    _until(lambda: lab.drives[1].status().written_bytes > before + 2**23)
    names = {path.name for path in data.iterdir()}
    active.lift()

    assert not [name for name in names if "neighbour" in name]


def test_a_real_kafka_is_stopped_when_it_deletes_and_goes_on_afterwards(lab_kafka: Running) -> None:
    """Retention of a second: the segments go, the broker waits, and then takes messages again."""
    topic = f"soak-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": lab_kafka.bootstrap_servers})
    settings = {"retention.ms": "1000", "segment.bytes": "1048576", "segment.ms": "1000"}
    admin.create_topics([NewTopic(topic, 1, 1, config=settings)])[topic].result(30)
    producer = Producer({"bootstrap.servers": lab_kafka.bootstrap_servers})
    witness = Witness(enough=3)
    active = inject("deletion_stall", Target(lab_kafka, witness.record, SystemClock()))
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


def test_a_real_kafka_says_when_all_is_led_as_it_was_made(lab_kafka: Running) -> None:
    """Its one broker leads everything: the first answer will do, and no pause is made."""
    clock = FakeClock()
    began_ns = clock.mono_ns()

    elect_preferred_leaders(Target(lab_kafka, lambda _: None, clock))

    assert clock.mono_ns() == began_ns


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _free(folder: Path) -> int:
    return os.statvfs(folder).f_bavail


def _setting(target: Target, topic: str, key: str) -> str | None:
    """Return a topic's setting, which a broker returns a moment after the change."""
    admin = AdminClient({"bootstrap.servers": target.broker.bootstrap_servers})
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    with contextlib.suppress(KafkaException):
        (found,) = admin.describe_configs([resource], request_timeout=30).values()
        value: str | None = found.result()[key].value
        return value
    return None
