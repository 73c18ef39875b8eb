"""A real Kafka deletes: its log has a line for every event of the probe, and the forecast is right."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import pytest
from confluent_kafka import Producer

from probes.retention_kafka.probe import Config, RetentionKafka
from soak.app import guarantees
from soak.brokers import kafka
from soak.core.clock import SystemClock
from soak.core.model import Event
from soak.core.ports import Topics
from soak.core.units import SECOND_NS
from soak.lab.ports import Running
from tests.support.load.retention_load import Loaded, Loader, log_of, outcome, plan_of

pytestmark = pytest.mark.broker

MIB = 2**20
LOAD_SECONDS = 24
REPORT_SECONDS = 1.5
LAST_SECONDS = 3  # the load has ended: what was deleted until then is reported by now

SETTINGS: Mapping[str, tuple[str, int, Mapping[str, int]]] = {
    "bytes": ("rate: 500/s, message_size: 1KiB", 2, {"retention.bytes": 3 * MIB}),
    "bytes-fast": ("rate: 1k/s, message_size: 1KiB", 1, {"retention.bytes": 10 * MIB}),
    "bytes-large-segments": (
        "rate: 100/s, message_size: 4KiB",
        1,
        {"retention.bytes": 2 * MIB, "segment.bytes": 2 * MIB},
    ),
    "time": ("rate: 300/s, message_size: 1KiB", 1, {"retention.ms": 8000}),
    "time-by-age": (
        "rate: 400/s, message_size: 512B",
        4,
        {"retention.ms": 5000, "segment.ms": 3000},
    ),
    "time-slow": (
        "rate: 50/s, message_size: 2KiB",
        1,
        {"retention.ms": 3000, "segment.ms": 6000, "segment.bytes": 50 * MIB},
    ),
    "time-small-messages": (
        "rate: 800/s, message_size: 256B",
        8,
        {"retention.ms": 12_000, "segment.ms": 4000},
    ),
    "both": (
        "rate: 600/s, message_size: 1KiB",
        3,
        {"retention.bytes": 2 * MIB, "retention.ms": 20_000, "file.delete.delay.ms": 8000},
    ),
}


@dataclass(frozen=True, slots=True)
class Watched:
    """What the probe reported, and what the broker wrote into its log, up to the end of the load."""

    topics: tuple[Loaded, ...]
    events: tuple[Event, ...]
    log: str
    end_ns: int


@pytest.fixture(scope="module")
def watched(lab_kafka: Running) -> Iterator[Watched]:
    clock = SystemClock()
    address = lab_kafka.bootstrap_servers
    broker = kafka.connect(kafka.Config(bootstrap_servers=address), clock)
    topics, producers = [], []
    for name, (load, partitions, limits) in SETTINGS.items():
        topic = f"retention-{name}"
        both = {"segment.bytes": MIB, "file.delete.delay.ms": 4000, **limits}
        settings = {key: str(value) for key, value in both.items()}
        broker.create_topics(Topics((topic,), partitions), 1, settings)
        place = f"{{kafka: {{bootstrap_servers: '{address}'}}}}"
        plan = plan_of(topic, place, f"{{{load}}}", partitions, {})
        quiet = {"bootstrap.servers": address, "log_level": "0"}
        producer = Producer({**quiet, **plan.broker_config.producer})
        producers.append(producer)

        def send(
            partition: int, payload: bytes, topic: str = topic, to: Producer = producer
        ) -> None:
            to.produce(topic, payload, partition=partition)

        topics.append(Loaded(plan, send))
    config = Config(
        bootstrap_servers=address,
        topics=tuple(one.name for one in topics),
        directory=str(lab_kafka.data_directory),
        period=SECOND_NS // 4,
    )
    probe = RetentionKafka(config, clock)
    loader = Loader(topics, lambda: [producer.poll(0) for producer in producers])
    loader.foretell()
    events: list[Event] = []
    begin_ns = clock.mono_ns()
    probe.read()
    loader.start()
    end_ns = 0
    for second in range(LOAD_SECONDS + LAST_SECONDS):
        if second == LOAD_SECONDS:
            loader.close()
            end_ns = clock.wall_ns()
        clock.sleep_until(begin_ns + (second + 1) * SECOND_NS)
        events += probe.read().events
    probe.close()
    yield Watched(tuple(topics), tuple(events), log_of(lab_kafka), end_ns)
    for producer in producers:
        producer.flush(10)


TOPIC = r"(?P<topic>retention-[a-z-]+)-(?P<partition>\d+)"
LINES = {
    "retention_deletion": rf"\[UnifiedLog partition={TOPIC}, dir=\S+\] "
    r"Incremented log start offset to (?P<offset>\d+) due to segment deletion",
    "segment_created": rf"\[LocalLog partition={TOPIC}, dir=\S+\] "
    r"Rolled new log segment at offset (?P<offset>\d+) in",
    "segment_renamed": rf"\[UnifiedLog partition={TOPIC}, dir=\S+\] "
    r"Deleting segment LogSegment\(baseOffset=(?P<offset>\d+), size=(?P<bytes>\d+),",
    "segment_unlinked": rf"Deleted log \S+/{TOPIC}/(?P<offset>\d+)\.log\.deleted\.",
}
OFFSET = {"retention_deletion": "to_offset"}

Key = tuple[str, int, int]
"""Topic, partition and offset."""


def said(log: str, kind: str) -> dict[Key, tuple[float, int | None]]:
    """Return what the broker's log says of one kind: when (seconds), and the bytes where it tells them."""
    found = {}
    for line in re.finditer(rf"^\[(?P<at>[^]]+)\] INFO {LINES[kind]}", log, re.MULTILINE):
        at = datetime.strptime(line["at"], "%Y-%m-%d %H:%M:%S,%f").astimezone().timestamp()
        key = line["topic"], int(line["partition"]), int(line["offset"])
        found[key] = at, int(line["bytes"]) if "bytes" in line.groupdict() else None
    return found


def key_of(event: Event) -> Key:
    fields = event.fields
    offset = fields[OFFSET.get(event.kind, "base_offset")]
    return str(fields["topic"]), int(fields["partition"]), int(offset)


@pytest.mark.parametrize("kind", LINES)
def test_events_and_lines_of_the_brokers_log_are_one_to_one(watched: Watched, kind: str) -> None:
    """Within 1.5 s of each other."""
    lines = said(watched.log, kind)
    events = [event for event in watched.events if event.kind == kind]

    counts = Counter(map(key_of, events))
    due = {key for key, (at, _) in lines.items() if at * SECOND_NS < watched.end_ns}
    assert len(events) >= 23
    assert set(counts.values()) == {1}
    assert due <= counts.keys() <= lines.keys()
    for event in events:
        at, size = lines[key_of(event)]
        begin = (
            event.since_ns if kind == "retention_deletion" else event.at_ns
        )  # files have a stamp
        assert begin / SECOND_NS - REPORT_SECONDS < at < event.at_ns / SECOND_NS + REPORT_SECONDS
        assert size is None or event.fields["bytes"] == size


def test_unlinked_files_waited_for_the_configured_delay(watched: Watched) -> None:
    """Four seconds at least, and eight if the topic says so."""
    lags: dict[bool, list[float]] = {True: [], False: []}
    for event in watched.events:
        if event.kind == "segment_unlinked":
            lags[event.fields["topic"] == "retention-both"].append(
                float(event.fields["lag_seconds"])
            )

    assert min(lags[False]) > 3.9
    assert min(lags[True]) > 7.9


def test_the_first_deletion_comes_as_forecast(watched: Watched) -> None:
    """In every setting, within 10 % or 5 s."""
    found = [outcome(topic, watched.events) for topic in watched.topics]

    assert len(found) >= 6
    assert [one for one in found if one["is_as_foreseen"] is not True] == []


def test_there_is_no_forecast_for_topics_with_messages(watched: Watched) -> None:
    """The first of them may be deleted at once."""
    found = guarantees.forecast_plan(watched.topics[0].plan, (), Path())

    assert "the topics may hold older messages" in found.lines[0]
    assert found.body["first_deletion_seconds"] is None
