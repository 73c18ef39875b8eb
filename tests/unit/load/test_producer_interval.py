"""The validity of a producer's second, and its counts."""

from __future__ import annotations

import numpy as np
import pytest

from soak.core.ports import FAILED_OFFSET, UNKNOWN_OFFSET, Topics
from soak.core.units import SECOND_NS
from soak.load.leaders import Leaders
from soak.load.producer.in_flight import Settled
from soak.load.producer.interval import ProducerInterval
from tests.support.fakes import FakeBroker


def test_a_message_acknowledged_without_an_offset_counts_as_acknowledged() -> None:
    """As with acks=0, or a duplicate that Pulsar dropped; a failed message does not."""
    offset = np.array([7, UNKNOWN_OFFSET, UNKNOWN_OFFSET, FAILED_OFFSET])
    zeros = np.zeros(4, dtype=np.int64)
    interval = ProducerInterval([1], 1, 1)
    leaders = Leaders(FakeBroker(), Topics(("t",), 1))

    interval.note_settled(Settled(zeros, np.arange(4), offset, zeros, zeros), leaders)

    values = {column.metric: value for column, value in interval.samples(0, 0, 0.0, 0.0, 0.0)}
    assert (values["acked_messages"], values["unplaced_messages"]) == (3, 2)
    assert values["failed_messages"] == 1


@pytest.mark.parametrize(
    ("lag_ms", "latency_ms", "reason"),
    [(5, 6, ""), (30, 35, "schedule_lag"), (30, 90, ""), (200, 250, "schedule_lag")],
)
def test_a_second_is_invalid_when_the_clients_lag_is_most_of_the_latency(
    lag_ms: int, latency_ms: int, reason: str
) -> None:
    interval = ProducerInterval([1], 1, 1)
    interval.note_sent(np.full(100, lag_ms * 10**6))
    interval.latency.record_ns(np.full(100, latency_ms * 10**6))

    assert interval.reason(0.2) == reason


@pytest.mark.parametrize(
    ("backpressured", "busy_ratio", "reason"),
    [(100, 0.2, ""), (10, 0.2, "schedule_lag"), (100, 0.95, "schedule_lag")],
)
def test_a_second_is_valid_when_the_cluster_causes_the_lag(
    backpressured: int, busy_ratio: float, reason: str
) -> None:
    interval = ProducerInterval([1], 1, 1)
    interval.note_sent(np.full(100, 2 * SECOND_NS))
    interval.latency.record_ns(np.full(100, 2 * SECOND_NS))
    interval.backpressured = backpressured

    assert interval.reason(busy_ratio) == reason


def test_a_second_is_invalid_when_acknowledgements_could_not_be_taken() -> None:
    interval = ProducerInterval([1], 1, 1)
    interval.latency.record_ns(np.full(100, 70_000_000))
    interval.note_pause(60_000_000)

    assert interval.reason(0.2) == "callback_delay"


def test_messages_above_the_limit_of_an_objective_are_counted_in_every_second() -> None:
    """The limit stands among the fixed thresholds, in order."""
    first = ProducerInterval([1], 1, 1, limits_seconds=(0.05,))
    interval = first.following()
    interval.latency.record_ns(np.array([49, 51, 70]) * 10**6)

    counts = {
        float(dict(column.labels)["threshold"]): value
        for column, value in interval.samples(0, 0, 0.0, 0.0, 0.0)
        if column.metric == "publish_latency_above_messages"
    }
    assert counts[0.05] == 2
    assert list(counts) == sorted(counts)


def test_a_second_says_why_messages_failed() -> None:
    """Each reason once, the commonest first, beside the messages themselves."""
    interval = ProducerInterval([1], 0, 1)
    for reason, count in (("timed out", 2), ("refused", 30), ("timed out", 3)):
        interval.note_failures({reason: count})

    events = interval.failures(2 * SECOND_NS, SECOND_NS)

    assert [(one.kind, one.fields) for one in events] == [
        ("send_errors", {"reason": "refused", "messages": 30}),
        ("send_errors", {"reason": "timed out", "messages": 5}),
    ]
    assert interval.following().failures(3 * SECOND_NS, 2 * SECOND_NS) == []
