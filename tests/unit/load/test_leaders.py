"""Partition leaders, refreshed whatever the cluster answers, and latency by leader."""

from __future__ import annotations

import logging

import numpy as np
import pytest

from soak.app.check import leader_warnings
from soak.brokers import kafka
from soak.core.errors import BrokerError
from soak.core.plan.plan import Plan, Topic
from soak.core.ports import Topics
from soak.load.latency import LEADER_INFO, LatencyByLeader
from soak.load.leaders import FORGET_AFTER_FAILURES, MAX_LEADERS, OTHER_LEADERS, Leaders
from tests.support.fakes import FakeBroker

ALL = np.arange(6)
MANY = list(range(1, MAX_LEADERS + 4))
"""Three leaders more than can be named."""


def refreshed(broker: FakeBroker, partitions: int = 6) -> Leaders:
    leaders = Leaders(broker, Topics(("t",), partitions))
    leaders.refresh()
    return leaders


@pytest.mark.parametrize("error", [BrokerError("gone"), ValueError("unexpected")])
def test_any_error_is_logged_once_and_the_next_answer_is_used(
    caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    """Otherwise the thread would end unnoticed."""
    broker = FakeBroker([1, 2, 3])
    leaders = refreshed(broker)
    broker.error = error
    leaders.refresh()
    leaders.refresh()
    broker.error, broker.leader = None, [3, 2, 1]
    leaders.refresh()

    assert leaders.of(ALL).tolist() == [3, 2, 1, 3, 2, 1]
    assert [one.getMessage() for one in caplog.records] == [f"leaders_not_read error={error}"]


def test_an_error_that_returns_is_logged_again(caplog: pytest.LogCaptureFixture) -> None:
    broker = FakeBroker([1, 2, 3])
    leaders = refreshed(broker)
    for error in (BrokerError("gone"), None, BrokerError("gone")):
        broker.error = error
        leaders.refresh()

    assert [one.levelno for one in caplog.records] == [logging.WARNING] * 2


def test_leaders_are_forgotten_after_many_failures(caplog: pytest.LogCaptureFixture) -> None:
    """A latency under the wrong name is worse than one under none."""
    broker = FakeBroker([1, 2, 3])
    leaders = refreshed(broker)
    broker.error = BrokerError("gone")
    for _ in range(FORGET_AFTER_FAILURES - 1):
        leaders.refresh()
    kept = leaders.of(ALL).tolist()
    leaders.refresh()

    assert kept == [1, 2, 3, 1, 2, 3]
    assert leaders.of(ALL).tolist() == [-1] * 6
    assert (
        caplog.records[-1].getMessage()
        == f"leaders_unknown failed_requests={FORGET_AFTER_FAILURES}"
    )


def test_of_too_many_leaders_those_with_most_partitions_are_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The others share one name, which is logged once."""
    broker = FakeBroker([*MANY, *MANY[3:]])  # 1, 2 and 3 lead one each, all others two
    leaders = refreshed(broker, len(broker.leader))
    leaders.refresh()

    assert leaders.several == (*MANY[3:], OTHER_LEADERS)
    assert leaders.of(np.arange(5)).tolist() == [OTHER_LEADERS, OTHER_LEADERS, OTHER_LEADERS, 4, 5]
    (text,) = (one.getMessage() for one in caplog.records)
    assert text.startswith("too_many_leaders grouped=3 named='broker4:8080 broker5:8080 ")


def test_a_named_leader_keeps_its_name_for_the_run() -> None:
    """Partitions move; latency of another broker in the same series would look like a step."""
    broker = FakeBroker([*MANY, *MANY[3:]])
    leaders = refreshed(broker, len(broker.leader))
    broker.leader = [*MANY, *MANY[:3] * 5]
    leaders.refresh()

    assert leaders.several == (*MANY[3:], OTHER_LEADERS)
    assert leaders.of(np.arange(4)).tolist() == [OTHER_LEADERS, OTHER_LEADERS, OTHER_LEADERS, 4]


def test_a_later_leader_is_named_while_there_is_room() -> None:
    broker = FakeBroker(MANY[: MAX_LEADERS - 1])
    leaders = refreshed(broker, len(MANY))
    broker.leader = MANY
    leaders.refresh()

    assert leaders.several == (*MANY[:MAX_LEADERS], OTHER_LEADERS)


def test_the_latency_of_the_other_leaders_has_a_name_of_its_own() -> None:
    by_leader = LatencyByLeader("publish_latency_seconds")

    by_leader.record_ns(
        refreshed(FakeBroker(MANY), len(MANY)), np.arange(len(MANY)), np.full(len(MANY), 10**6)
    )

    assert len(by_leader.histograms()) == MAX_LEADERS + 1
    assert 'publish_latency_seconds{leader="others"}' in by_leader.histograms()


def test_a_leaders_address_is_recorded_where_its_name_does_not_contain_it() -> None:
    """Also in a second without a message; after a move, the last known address."""
    broker = FakeBroker([1, 2, 3])
    broker.addresses = {1: "kafka2:9092", 2: ""}
    leaders = refreshed(broker)
    by_leader = LatencyByLeader("publish_latency_seconds")
    found = []
    for address in ("kafka2:9092", "kafka9:9092"):
        broker.addresses[1] = address
        by_leader.record_ns(leaders, ALL, np.full(6, 10**6))
        by_leader = by_leader.following()
        found += [(at.name, value) for at, value in by_leader.samples() if at.metric == LEADER_INFO]

    assert found == [
        ('leader_info{leader="broker1:8080",address="kafka2:9092"}', 1.0),
        ('leader_info{leader="broker1:8080",address="kafka9:9092"}', 1.0),
    ]


@pytest.mark.parametrize(("partitions", "times"), [(100, 1), (MAX_LEADERS, 0)])
def test_the_check_warns_of_more_leaders_than_can_be_named(partitions: int, times: int) -> None:
    """By the number of brokers, unless there are too few partitions for all of them."""
    plan = Plan(name="x", broker={"kafka": kafka.Config()}, topic=Topic(partitions=partitions))

    warnings = leader_warnings(plan, FakeBroker(MANY))

    assert len(warnings) == times
    assert all("of 19 brokers" in one and "the other 3 share" in one for one in warnings)


def test_the_check_does_not_warn_where_the_cluster_does_not_list_its_brokers() -> None:
    broker = FakeBroker(MANY)
    broker.error = BrokerError("superusers only")

    assert leader_warnings(Plan(name="x", broker={"kafka": kafka.Config()}), broker) == []


def test_a_latency_is_recorded_under_the_name_of_the_leader() -> None:
    """Its number may differ between processes."""
    leaders = Leaders(FakeBroker([7, 3]), Topics(("t",), 2))
    leaders.refresh()
    by_leader = LatencyByLeader("publish_latency_seconds")

    by_leader.record_ns(leaders, np.array([0, 1, 1]), np.array([10**6] * 3))

    assert list(by_leader.histograms()) == [
        'publish_latency_seconds{leader="broker3:8080"}',
        'publish_latency_seconds{leader="broker7:8080"}',
    ]


def test_leaders_are_kept_when_the_cluster_does_not_answer() -> None:
    broker = FakeBroker([1, 2, 3])
    leaders = Leaders(broker, Topics(("t",), 6))
    before = leaders.several
    leaders.refresh()
    broker.error = BrokerError("gone")
    leaders.refresh()

    assert before == ()
    assert leaders.several == (1, 2, 3)
    assert leaders.of(np.array([0, 4, 5])).tolist() == [1, 2, 3]
