"""What a Kafka client makes of messages of others: librdkafka itself, against a broker in this process."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import pytest

from soak.core.clock import SystemClock
from soak.core.plan.plan import Ship
from soak.core.units import SECOND_NS
from soak.store.run_announcements import (
    Announcement,
    AnnouncementReader,
    reason_to_refuse,
)
from soak.store.samples_topic import (
    ANNOUNCEMENT_HEADER,
    ANNOUNCEMENTS,
    MAX_POLL_BYTES,
    SamplesReader,
    ShippedLine,
    headers_of,
    new_messages,
)
from spark.sources.topic_log import KafkaTopicLog, TopicRecord
from tests.support.raw_kafka import RawProducer, in_process

START_NS = 1_790_000_000 * SECOND_NS
OF_RUN = [(name.encode(), value) for name, value in headers_of("r1", START_NS).items()]
NO_TEXT = (b"\xff\xfe", b"1")
PATIENCE = 100  # polls, of a tenth of a second each


def ship_of(servers: str) -> Ship:
    return Ship(bootstrap_servers=servers, topic="t", timeout=SECOND_NS)


def read(reader: SamplesReader, count: int) -> list[ShippedLine]:
    found: list[ShippedLine] = []
    for _ in range(PATIENCE):
        found += reader.poll(1000, 0.1)
        if len(found) >= count:
            break
    reader.close()
    return found


@pytest.mark.long
def test_the_name_of_a_header_that_is_no_text_ends_no_receiver() -> None:
    """The client's binding takes the process down where it is asked for such headers plainly."""
    with in_process() as (servers, stranger):
        stranger.produce("t", b"x")
        stranger.flush()
        reader = SamplesReader(ship_of(servers), "r1", START_NS, {0: 0}, SystemClock())
        reader.open()
        for at in range(50):
            stranger.produce("t", b"bad", key=b"probe@b", headers=[*OF_RUN, NO_TEXT])
            stranger.produce("t", b"%d" % at, key=b"probe@b", headers=OF_RUN)
        stranger.flush()
        found = read(reader, 50)

    assert [line.raw for line in found] == [b"%d" % at for at in range(50)]


def test_the_name_of_a_header_that_is_no_text_ends_no_detector() -> None:
    """What has such a header is a record without headers."""
    with in_process() as (servers, stranger):
        for _ in range(20):
            stranger.produce("t", b"x", key=b"probe@b", headers=[*OF_RUN, NO_TEXT])
            stranger.produce("t", b"y", key=b"probe@b", headers=OF_RUN)
        stranger.flush()
        log = KafkaTopicLog(ship_of(servers), SystemClock())
        found = [one for one in log.read(0, 0, 40) if isinstance(one, TopicRecord)]
        log.close()

    assert [(one.value, len(one.headers)) for one in found] == [(b"x", 0), (b"y", 2)] * 20


def heard_in(reader: AnnouncementReader, stranger: RawProducer, polls: int) -> int:
    """Return in which of so many polls an announcement was heard, of one before each; -1: in none."""
    for at in range(polls):
        now_ns = SystemClock().wall_ns()
        real = Announcement("p", "r1", START_NS, None, is_over=False, sent_wall_ns=now_ns)
        headers = [(ANNOUNCEMENT_HEADER.encode(), b"p")]
        stranger.produce("t", real.to_json().encode(), headers=[*headers, NO_TEXT])
        stranger.produce("t", real.to_json().encode(), headers=headers)
        stranger.flush()
        if reader.poll(0.1):
            return at
    return -1


@pytest.mark.long
def test_announcements_are_heard_behind_a_flood() -> None:
    """A reader that cannot keep up would hear them too late, refuse them, and end the run after an hour."""
    with in_process() as (servers, stranger):
        stranger.produce("t", b"x")
        stranger.flush()
        reader = AnnouncementReader(ship_of(servers), SystemClock())
        reader.open()
        assert heard_in(reader, stranger, PATIENCE) >= 0
        for _ in range(40_000):
            stranger.produce("t", b"flood")
        stranger.flush()
        heard = heard_in(reader, stranger, 20)
        reader.close()

    assert heard >= 0


@pytest.mark.long
def test_a_receiver_counts_announcements_of_its_plan_that_nobody_may_believe() -> None:
    """Brackets here; of other plans none, for these may have another key."""
    with in_process() as (servers, stranger):
        stranger.produce("t", b"x")
        stranger.flush()
        clock = SystemClock()
        reader = SamplesReader(
            ship_of(servers), "r1", START_NS, {0: 0}, clock, "p", reason_to_refuse
        )
        reader.open()
        name = ANNOUNCEMENT_HEADER.encode()
        real = Announcement("p", "r1", START_NS, None, is_over=False, sent_wall_ns=START_NS)
        for plan, raw in ((b"q", b"[" * 1000), (b"p", real.to_json().encode()), (b"p", b"[" * 999)):
            stranger.produce("t", raw, headers=[(name, plan)])
        stranger.flush()
        (found,) = read(reader, 1)

    assert (found.source, found.raw) == (ANNOUNCEMENTS, b"[" * 999)
    assert found.refusal


@dataclass
class Large:
    """A message of 8 MiB."""

    size: int = 2**23

    def __len__(self) -> int:
        return self.size

    def key(self) -> bytes | None:
        return None


class Flooding:
    """A client that has as many messages as it is asked for, of which eight come in each call."""

    def __init__(self) -> None:
        self.taken = 0

    def consume(self, limit: int, _timeout_seconds: float) -> list[Large]:
        self.taken += min(limit, 8)
        return [Large() for _ in range(min(limit, 8))]


def test_large_messages_are_not_gathered_by_the_thousand() -> None:
    """They would be gigabytes, of whoever writes them."""
    client = Flooding()

    found = new_messages(client, 1000, 0.5)

    assert sum(map(len, found)) <= 2 * MAX_POLL_BYTES
    assert client.taken == len(found)


@pytest.mark.parametrize("timeout", [0.0, 0.05, 0.5])
def test_messages_are_awaited_for_the_time_that_was_asked(timeout: float) -> None:
    """In short slices, each of which the client ends early when it has all."""

    class Silent:
        waited = 0.0

        def consume(self, _limit: int, timeout_seconds: float) -> list[Large]:
            self.waited += timeout_seconds
            return []

    client = Silent()

    assert new_messages(client, 1000, timeout) == []
    assert client.waited == pytest.approx(timeout)


def test_messages_are_as_many_as_were_asked_for_at_most() -> None:
    """Whatever comes in each slice."""
    numbers = itertools.count()

    class Busy:
        def consume(self, limit: int, _timeout_seconds: float) -> list[Large]:
            return [Large(1) for _ in range(min(limit, next(numbers) + 3))]

    assert len(new_messages(Busy(), 10, 0.5)) == 10
