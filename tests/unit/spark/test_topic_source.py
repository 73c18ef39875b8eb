"""How the topic source plans its batches, on a topic in memory."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows

from soak.core.errors import BrokerError
from soak.core.plan.plan import Ship
from soak.core.units import SECOND_NS
from spark.sources.samples_topic import (
    FIRST_RECORDS,
    LEAST_RECORDS,
    BatchSize,
    TopicOptions,
    TopicTail,
)
from spark.sources.topic_offsets import Offset
from tests.support.fakes import FakeClock
from tests.support.spark.fake_topic import FakeTopic

SHIP = Ship(bootstrap_servers="h:9", topic="t")


def tail_of(topic: FakeTopic, **more: Any) -> TopicTail:
    return TopicTail(TopicOptions(ship=SHIP, **more), topic, FakeClock())


def test_options_survive_sparks_dictionary() -> None:
    options = TopicOptions(
        ship=Ship(
            bootstrap_servers="h:9,i:9",
            topic="t",
            client={"security.protocol": "SSL", "sasl.password": "${env:PASSWORD}"},
            timeout=3 * SECOND_NS,
        ),
        since_ms=23,
        first_offset=Path("/state/first.json"),
        batch_records=7,
        interval_ns=5,
        has_announcements=True,
        keeps_dead_letters=True,
    )

    assert TopicOptions.of(options.to_options()) == options
    assert TopicOptions.of({"bootstrap_servers": "h:9", "topic": "t"}) == TopicOptions(ship=SHIP)


def test_a_stream_begins_where_the_topic_does_and_takes_what_is_there() -> None:
    topic = FakeTopic(2)
    topic.skip(7, 1)
    topic.delete_before(3, 1)
    tail = tail_of(topic)
    start = tail.initialOffset()

    assert start == {"topic": "one", "next": {"0": 0, "1": 3}}
    assert tail.latestOffset(start, ReadMaxRows(2))["next"] == {"0": 0, "1": 5}
    assert tail.latestOffset(start, ReadAllAvailable())["next"] == {"0": 0, "1": 7}
    assert len(tail.partitions(start, tail.latestOffset(start, ReadAllAvailable()))) == 1


def test_a_first_batch_that_is_read_again_begins_where_it_did(tmp_path: Path) -> None:
    """Whatever came or went since: Spark asks a new process for the begin of a batch that it planned."""
    topic, kept = FakeTopic(), tmp_path / "checkpoint" / "first.json"
    topic.skip(7)
    planned = tail_of(topic, since_ms=0, first_offset=kept).initialOffset()
    topic.skip(5)
    again = tail_of(topic, since_ms=600_000, first_offset=kept).initialOffset()

    assert planned == again == {"topic": "one", "next": {"0": 7}}


def test_a_cluster_that_is_away_has_nothing_new() -> None:
    topic = FakeTopic()
    tail = tail_of(topic)
    start = tail.initialOffset()
    topic.skip(3)
    topic.is_away = True

    assert tail.latestOffset(start, ReadMaxRows(9)) == start
    with pytest.raises(BrokerError, match="cannot read t"):
        tail.prepareForTriggerAvailableNow()


def test_what_is_available_now_ends_there() -> None:
    topic = FakeTopic()
    topic.skip(5)
    tail = tail_of(topic)
    tail.prepareForTriggerAvailableNow()
    topic.skip(5)
    places: list[int] = []
    place: Offset = {"topic": "one", "next": {"0": 0}}
    while (end := tail.latestOffset(place, ReadMaxRows(2))) != place:
        place = end
        places.append(place["next"]["0"])

    assert places == [2, 4, 5]


def test_a_topic_is_not_limited_by_bytes() -> None:
    """Only its records are known before they are read."""
    tail = tail_of(FakeTopic())

    with pytest.raises(ValueError, match="limited by records"):
        tail.latestOffset(tail.initialOffset(), ReadMaxBytes(9))


def test_a_reader_travels_to_its_tasks() -> None:
    """Without clients: it has made none yet."""
    reader = TopicTail(TopicOptions(ship=SHIP))

    assert isinstance(pickle.loads(pickle.dumps(reader)), TopicTail)


def sizes(rate: float, trigger: float, batches: int, most: int = 10**9) -> list[int]:
    """Return the sizes of batches of an endless backlog on a host that works at `rate` records a second."""
    size, now, found = BatchSize(int(trigger * SECOND_NS), most), 0.0, []
    for _ in range(batches):
        records = size.limit(int(now * SECOND_NS))
        size.plan(records, int(now * SECOND_NS), is_limited=True)
        now += max(trigger, records / rate)
        found.append(records)
    return found


@pytest.mark.parametrize("rate", [300.0, 2000.0, 10_000.0])
def test_batches_of_a_backlog_fit_into_the_trigger(rate: float) -> None:
    """Soon, whatever the host can do, and they use it."""
    later = [records / rate for records in sizes(rate, 5.0, 60)[20:]]

    assert max(later) <= 5.0 * 1.2 * 1.5
    assert sum(later) / len(later) >= 2.5


def test_the_size_of_batches_is_bounded() -> None:
    assert max(sizes(10**9, 5.0, 60, most=23_000)) == 23_000
    assert min(sizes(1.0, 5.0, 60)) == LEAST_RECORDS
    assert sizes(1.0, 5.0, 2) == [FIRST_RECORDS, FIRST_RECORDS]  # the first says nothing


def test_a_stream_that_keeps_up_keeps_its_size() -> None:
    """A batch that took all there was says nothing about larger ones."""
    size = BatchSize(5 * SECOND_NS, 10**6)
    for at in range(23):
        size.limit(at * 5 * SECOND_NS)
        size.plan(100, at * 5 * SECOND_NS, is_limited=False)

    assert size.limit(23 * 5 * SECOND_NS) == FIRST_RECORDS
