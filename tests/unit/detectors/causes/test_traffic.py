"""What other clients are not: leaders that move, slow waves, rolls at one time, and readers of old data."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from detectors.attribution import attribute
from detectors.nearby import Nearby
from soak.core.model import Series
from tests.support.detection.cause_panels import ONSET, STEP, K, around, channel, told

SENT = channel("produce.0@h|sent_messages", 300.0, 300.0)
RECEIVED = channel("consume.0@h|received_messages", 300.0, 300.0)
BROKERS = [
    channel(f'probe@h|cluster_under_replicated_partitions{{follower="b{at}:9092"}}', 0.0, 0.0)
    for at in (1, 2, 3)
]
OTHERS = "probe@b1|cluster_other_messages"


def pages(metric: str, *levels: tuple[float, float]) -> list[Series]:
    """Return what the page of each broker counts by second, before the onset and from then on."""
    return [
        channel(f'probe@h|{metric}{{target="b{at}:7071"}}', *both)
        for at, both in enumerate(levels, 1)
    ]


def taken_in(*levels: tuple[float, float]) -> list[Series]:
    return pages("kafka_server_brokertopicmetrics_bytesin", *levels)


def given_out(*levels: tuple[float, float]) -> list[Series]:
    return pages("kafka_server_brokertopicmetrics_bytesout", *levels)


STAYED = (1e7, 1e7)


def causes(found: Nearby) -> list[str]:
    return [one.cause for one in attribute(STEP, found)]


# --- leaders that move


def restarted(factor: float) -> list[Series]:
    """Return what three brokers take in while two restart, 15 s apart, times a factor from the onset on.

    Leaders go to the others, and come to the one that is back when the next one leaves.
    """
    seconds = K - ONSET
    by_broker = (
        ((seconds >= 0) & (seconds < 8), [(0, 0.0), (15, 0.75)]),
        ((seconds >= 15) & (seconds < 23), [(0, 1.5), (23, 0.0)]),
        (np.zeros(K.size, np.bool_), [(0, 1.5), (15, 2.25)]),
    )
    found = []
    for at, (is_away, shares) in enumerate(by_broker, 1):
        values = np.full(K.size, 1e7)
        for begin, share in shares:
            values[seconds >= begin] = factor * share * 1e7
        name = f'probe@h|kafka_server_brokertopicmetrics_bytesin{{target="b{at}:7071"}}'
        found.append(Series(name, K[~is_away], values[~is_away]))
    return found


def test_brokers_that_restart_one_after_the_other_take_in_no_more_in_any_second() -> None:
    """In half a minute two of them lead more most of the time. A flood is one meanwhile as well."""
    moved, flooded = (
        replace(around(SENT, RECEIVED, *BROKERS, *restarted(factor)), k1=ONSET + 30)
        for factor in (1.0, 2.0)
    )

    assert "foreign_load" not in causes(moved)
    assert causes(flooded)[0] == "foreign_load"


def test_fetches_of_followers_are_no_other_clients() -> None:
    """Leaders move to b1. Each fetch asks for more of them there, and is answered sooner."""
    fetches = pages(
        "kafka_server_brokertopicmetrics_totalfetchrequests", (1e3, 9e3), (1e3, 5.0), (1e3, 5.0)
    )
    moved = taken_in((1e7, 3e7), (1e7, 0.0), (1e7, 0.0))

    assert causes(around(SENT, RECEIVED, *BROKERS, *moved, *fetches)) == ["unknown"]


# --- slow waves

WAVE = 300.0 * np.exp((K - ONSET) / 60.0)


@pytest.mark.parametrize(
    ("values", "cause"),
    [
        (WAVE, "unknown"),
        (WAVE * np.where(K < ONSET, 1.0, 50.0), "foreign_load"),
        (channel(OTHERS, 20.0, 5_000.0).values, "foreign_load"),
    ],
    ids=["goes on", "jumps", "was level and jumps"],
)
def test_a_slope_is_told_from_a_step_by_the_few_values_of_the_first_seconds(
    values: NDArray[np.float64], cause: str
) -> None:
    """A value every five seconds, and the cause is looked for 25 s after the onset."""
    seen = around(SENT, RECEIVED, Series(OTHERS, K[::5], values[::5]))

    assert causes(replace(seen, k1=ONSET + 25)) == [cause]


@pytest.mark.parametrize(("before", "cause"), [(1_250.0, "unknown"), (1_000.0, "foreign_load")])
def test_what_others_wrote_more_half_a_minute_before_does_not_count_at_the_onset(
    before: float, cause: str
) -> None:
    """From 1,000 to 1,250 there, and to 1,450 at the onset: the second alone is small."""
    values = np.where(K < ONSET - 30, 1_000.0, np.where(K < ONSET, before, 1_450.0))

    assert causes(around(SENT, RECEIVED, Series(OTHERS, K, values))) == [cause]


# --- rolls at one time


@pytest.mark.parametrize(("each", "cause"), [(1, "unknown"), (2, "foreign_load")])
def test_partitions_that_all_roll_once_are_old_enough_or_full_alike(each: int, cause: str) -> None:
    """60 partitions of another topic roll within three seconds, as where retention ends segments by age.

    Those that roll again are written to.
    """
    rolls = tuple(
        one
        for at in range(60)
        for turn in range(each)
        for one in told(
            "segment_roll",
            ONSET + at % 3 + 20 * turn,
            topic="bulk",
            partition=at,
            log="b1",
            offset=1_000 * (turn + 1),
        )
    )
    seen = replace(around(SENT, RECEIVED, events=tuple(sorted(rolls, key=lambda one: one.k))))

    assert causes(replace(seen, topics=frozenset({"soak-x"}))) == [cause]


# --- readers of old data

LAG = 'probe@h|kminion_kafka_consumer_group_topic_lag{group_id="etl",target="kminion"}'
READING = [*taken_in(STAYED, STAYED, STAYED), *given_out((1e7, 1.1e8), STAYED, STAYED)]


def backlog(begin: float, a_second: float) -> Series:
    """Return the backlog of a group that is set back 20 s before the onset, and from then on read or not."""
    values = np.where(K < ONSET - 20, begin, 5e8 - a_second * np.maximum(K - ONSET, 0))
    return Series(LAG, K, values)


def test_a_group_that_is_set_back_to_the_beginning_reads_old_data() -> None:
    """100 MB/s more are given out. Of 500 million messages 3 % are read by the end of what is seen.

    One whose backlog stays is not what reads.
    """
    known = SENT, RECEIVED, *BROKERS, *READING
    (found,) = attribute(STEP, around(*known, backlog(50.0, 2e5)))

    assert (found.cause, found.suspect) == ("catch_up_read", "group etl")
    assert "bytes out" in found.evidence[0].text
    assert causes(around(*known, backlog(5e8, 0.0))) == ["foreign_load"]


@pytest.mark.parametrize(("read", "cause"), [(9e7, "catch_up_read"), (1e6, "foreign_load")])
def test_what_comes_from_the_drives_as_it_is_given_out_is_old_data(read: float, cause: str) -> None:
    """No backlog is known; what is in memory is new."""
    drive = channel('probe@b1|node_disk_read_bytes{device="vda"}', 1e5, read)

    assert causes(around(SENT, RECEIVED, *BROKERS, *READING, drive)) == [cause]


def test_readers_of_old_data_are_other_clients_where_these_write_more_as_well() -> None:
    drive = channel('probe@b1|node_disk_read_bytes{device="vda"}', 1e5, 9e7)
    writing = taken_in((1e7, 8e7), STAYED, STAYED)

    assert causes(around(SENT, RECEIVED, *BROKERS, *READING[3:], *writing, drive)) == [
        "foreign_load"
    ]


def waiting(broker: str, before: float, after: float) -> Series:
    name = f'probe@h|pulsar_subscription_back_log{{target="{broker}:8080"}}'
    return Series(name, K, np.where(K < ONSET, before, after))


def test_a_backlog_that_moves_to_another_broker_is_not_read() -> None:
    """A bundle of Pulsar goes from b2 to b1, with 5,000 entries that wait."""
    left = waiting("b2", 10_000.0, 5_000.0)

    assert causes(around(SENT, left, waiting("b1", 8_000.0, 13_000.0))) == ["unknown"]
    assert causes(around(SENT, left, waiting("b1", 8_000.0, 8_000.0))) == ["catch_up_read"]
