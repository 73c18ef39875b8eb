"""A real Pulsar trims and frees space: its log and its bookie agree with the probe and the forecast."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import pulsar as client
import pytest

from probes.retention_pulsar.probe import Config, RetentionPulsar, connect
from soak.app import guarantees
from soak.brokers import pulsar
from soak.brokers.pulsar.client import ClientLogPipe
from soak.core.clock import SystemClock
from soak.core.model import Event
from soak.core.ports import Topics
from soak.core.units import SECOND_NS
from soak.lab.brokers.pulsar import Pulsar
from tests.support.load.retention_load import Loaded, Loader, log_of, outcome, plan_of

pytestmark = pytest.mark.broker

LOAD_SECONDS = 26
REPORT_SECONDS = 1.5
LAST_SECONDS = 3  # the load has ended: what was trimmed until then is reported by now

SINGLE = "batching_enabled: 'false'"
BATCHES = (  # of ten messages, however slow this machine is
    "batching_enabled: 'true', batching_max_publish_delay_ms: 100, batching_max_messages: 10"
)

SETTINGS: Mapping[str, tuple[str, int, str, int | None]] = {
    "large-messages": ("rate: 100/s, message_size: 4KiB", 1, SINGLE, 2),
    "partitions": ("rate: 200/s, message_size: 2KiB", 2, SINGLE, 1),
    "small-messages": ("rate: 200/s, message_size: 1KiB", 1, SINGLE, 3),
    "more-partitions": ("rate: 150/s, message_size: 8KiB", 3, SINGLE, 4),
    "batches": ("rate: 2k/s, message_size: 512B", 1, BATCHES, 5),
    "nothing-kept": ("rate: 100/s, message_size: 256B", 1, SINGLE, None),
}
"""Load, partitions, producer, and the MiB to keep; ledgers are closed with 200 entries."""


@dataclass(frozen=True, slots=True)
class Watched:
    """What the probe reported, and what the broker wrote into its log, up to the end of the load."""

    topics: tuple[Loaded, ...]
    events: tuple[Event, ...]
    reclaimed_bytes: float  # as the samples say
    log: str
    end_ns: int


@pytest.fixture(scope="module")
def watched(lab_pulsar: Pulsar) -> Iterator[Watched]:
    clock = SystemClock()
    addresses = lab_pulsar.addresses
    config = pulsar.Config(service_url=lab_pulsar.service_url, admin_url=lab_pulsar.admin_url)
    broker = pulsar.connect(config, clock)
    connection = client.Client(lab_pulsar.service_url, logger=ClientLogPipe(clock).open())
    topics = []
    for name, (load, partitions, producer, keep) in SETTINGS.items():
        topic = f"retention-{name}"
        kept = {"retentionSizeInMB": str(keep)} if keep else {}
        broker.create_topics(Topics((topic,), partitions), 1, kept)
        place = ", ".join(f"{key}: '{value}'" for key, value in addresses.items())
        plan = plan_of(
            topic,
            f"{{pulsar: {{{place}, producer: {{{producer}}}}}}}",
            f"{{{load}}}",
            partitions,
            {},
        )
        producers = [
            connection.create_producer(
                f"persistent://public/default/{topic}-partition-{at}",
                batching_enabled=producer == BATCHES,
                batching_max_publish_delay_ms=100,
                batching_max_messages=10,
                max_pending_messages=20_000,
            )
            for at in range(partitions)
        ]

        def send(partition: int, payload: bytes, to: list[client.Producer] = producers) -> None:
            to[partition].send_async(payload, _acknowledged)

        topics.append(Loaded(plan, send))
    watch = Config(
        admin_url=addresses["admin_url"],
        bookie_urls=addresses["bookie_urls"],
        namespace="public/default",
        topics=tuple(one.name for one in topics),
        period=SECOND_NS // 2,
    )
    probe = RetentionPulsar(watch, clock)
    loader = Loader(topics)
    loader.foretell()
    events: list[Event] = []
    reclaimed = 0.0
    begin_ns = clock.mono_ns()
    probe.read()
    loader.start()
    end_ns = 0
    for second in range(LOAD_SECONDS + LAST_SECONDS):
        if second == LOAD_SECONDS:
            loader.close()
            end_ns = clock.wall_ns()
        clock.sleep_until(begin_ns + (second + 1) * SECOND_NS)
        reading = probe.read()
        events += reading.events
        reclaimed += sum(
            value
            for column, value in reading.samples
            if column.metric == "retention_reclaimed_bytes"
        )
    probe.close()
    yield Watched(tuple(topics), tuple(events), reclaimed, log_of(lab_pulsar), end_ns)
    connection.close()


def _acknowledged(result: object, message: object) -> None:
    """Take no notice."""


REMOVED = re.compile(
    r"^\[(?P<at>[^]]+)\] INFO \[public/default/persistent/(?P<topic>[\w-]+)-partition-(?P<partition>\d+)\] "
    r"Removing ledger (?P<ledger>\d+) - size: (?P<size>\d+)",
    re.MULTILINE,
)


def test_trims_and_lines_of_the_brokers_log_are_one_to_one(watched: Watched) -> None:
    """Each removed ledger is in one event, with its bytes, within 1.5 s."""
    removed = {
        (line["topic"], int(line["partition"]), int(line["ledger"])): (
            datetime.strptime(line["at"], "%Y-%m-%d %H:%M:%S,%f").astimezone().timestamp(),
            int(line["size"]),
        )
        for line in REMOVED.finditer(watched.log)
        if line["topic"].startswith("retention-")
    }
    trims = [event for event in watched.events if event.kind == "retention_deletion"]

    reported: Counter[tuple[str, int, int]] = Counter()
    for event in trims:
        fields = event.fields
        topic, partition = str(fields["topic"]), int(fields["partition"])
        mine = {
            key: value
            for key, value in removed.items()
            if key[:2] == (topic, partition)
            and int(fields["from_ledger"]) <= key[2] < int(fields["to_ledger"])
        }
        reported.update(mine.keys())
        assert len(mine) >= int(fields["ledgers"])  # one that came and went between two polls
        since, until = event.since_ns / SECOND_NS, event.at_ns / SECOND_NS
        assert since - REPORT_SECONDS < min(at for at, _ in mine.values())
        assert max(at for at, _ in mine.values()) < until + REPORT_SECONDS
        if "bytes" in fields and len(mine) == fields["ledgers"]:
            assert fields["bytes"] == sum(size for _, size in mine.values())
    due = {key for key, (at, _) in removed.items() if at * SECOND_NS < watched.end_ns}
    assert len(trims) >= 23
    assert set(reported.values()) == {1}
    assert due <= reported.keys()


def test_freed_space_adds_up_to_the_bookies_counters(watched: Watched, lab_pulsar: Pulsar) -> None:
    """It comes seconds after the trims."""
    freed = [event for event in watched.events if event.kind == "space_reclaimed"]
    trimmed = [event for event in watched.events if event.kind == "retention_deletion"]
    removed = sum(int(line["size"]) for line in REMOVED.finditer(watched.log))

    assert freed
    assert sum(int(event.fields["bytes"]) for event in freed) == watched.reclaimed_bytes
    assert 0 < watched.reclaimed_bytes <= _counters(lab_pulsar)
    assert _counters(lab_pulsar) <= 1.2 * removed  # a file of entries holds more than the entries
    lags = [float(event.fields["lag_seconds"]) for event in freed if "lag_seconds" in event.fields]
    assert lags
    assert min(lags) > 0
    assert max(lags) < (freed[-1].at_ns - trimmed[0].at_ns) / SECOND_NS + REPORT_SECONDS


def _counters(lab_pulsar: Pulsar) -> float:
    """Return all that the bookie has freed so far."""
    cluster = connect(
        Config(admin_url=lab_pulsar.admin_url, bookie_urls=lab_pulsar.bookie_metrics_url)
    )
    page = cluster.page(cluster.bookies[0]).decode()
    found = re.findall(r"^bookie_RECLAIMED_\w+_SPACE_BYTES\S* (\S+)$", page, re.MULTILINE)
    return sum(map(float, found))


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
