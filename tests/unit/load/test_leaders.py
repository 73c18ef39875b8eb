"""Who leads which partition: asked again and again, whatever the cluster or its client says."""

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
"""Three leaders more than are told apart."""


def asked(broker: FakeBroker, partitions: int = 6) -> Leaders:
    leaders = Leaders(broker, Topics(("t",), partitions))
    leaders.refresh()
    return leaders


@pytest.mark.parametrize("error", [BrokerError("gone"), ValueError("nobody thought of this")])
def test_whatever_goes_wrong_is_said_once_and_the_next_answer_is_taken(
    caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    """The thread that asks has nobody who would notice its end."""
    broker = FakeBroker([1, 2, 3])
    leaders = asked(broker)
    broker.error = error
    leaders.refresh()
    leaders.refresh()
    broker.error, broker.leader = None, [3, 2, 1]
    leaders.refresh()

    assert leaders.of(ALL).tolist() == [3, 2, 1, 3, 2, 1]
    assert [one.getMessage() for one in caplog.records] == [f"leaders_not_read error={error}"]


def test_silence_that_comes_back_is_said_again(caplog: pytest.LogCaptureFixture) -> None:
    broker = FakeBroker([1, 2, 3])
    leaders = asked(broker)
    for error in (BrokerError("gone"), None, BrokerError("gone")):
        broker.error = error
        leaders.refresh()

    assert [one.levelno for one in caplog.records] == [logging.WARNING] * 2


def test_leaders_of_long_ago_are_leaders_no_more(caplog: pytest.LogCaptureFixture) -> None:
    """A latency under the wrong name is worse than one under none."""
    broker = FakeBroker([1, 2, 3])
    leaders = asked(broker)
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


def test_of_too_many_leaders_those_with_most_partitions_are_told_apart(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The rest share one name, and the log says so once."""
    broker = FakeBroker([*MANY, *MANY[3:]])  # 1, 2 and 3 lead one each, all others two
    leaders = asked(broker, len(broker.leader))
    leaders.refresh()

    assert leaders.several == (*MANY[3:], OTHER_LEADERS)
    assert leaders.of(np.arange(5)).tolist() == [OTHER_LEADERS, OTHER_LEADERS, OTHER_LEADERS, 4, 5]
    (said,) = (one.getMessage() for one in caplog.records)
    assert said.startswith("too_many_leaders grouped=3 named='broker4:8080 broker5:8080 ")


def test_who_is_told_apart_stays_so_over_the_run() -> None:
    """Partitions move, and a series that another broker's latency enters would step."""
    broker = FakeBroker([*MANY, *MANY[3:]])
    leaders = asked(broker, len(broker.leader))
    broker.leader = [*MANY, *MANY[:3] * 5]
    leaders.refresh()

    assert leaders.several == (*MANY[3:], OTHER_LEADERS)
    assert leaders.of(np.arange(4)).tolist() == [OTHER_LEADERS, OTHER_LEADERS, OTHER_LEADERS, 4]


def test_a_latter_leader_gets_a_name_while_there_is_room() -> None:
    broker = FakeBroker(MANY[: MAX_LEADERS - 1])
    leaders = asked(broker, len(MANY))
    broker.leader = MANY
    leaders.refresh()

    assert leaders.several == (*MANY[:MAX_LEADERS], OTHER_LEADERS)


def test_the_others_latency_is_recorded_under_a_name_of_its_own() -> None:
    by_leader = LatencyByLeader("publish_latency_seconds")

    by_leader.record_ns(
        asked(FakeBroker(MANY), len(MANY)), np.arange(len(MANY)), np.full(len(MANY), 10**6)
    )

    assert len(by_leader.histograms()) == MAX_LEADERS + 1
    assert 'publish_latency_seconds{leader="others"}' in by_leader.histograms()


def test_where_a_leader_is_stands_beside_its_latency_where_the_name_does_not_tell() -> None:
    """Also in a second without a message of its own; a node that was moved is where it was seen last."""
    broker = FakeBroker([1, 2, 3])
    broker.addresses = {1: "kafka2:9092", 2: ""}
    leaders = asked(broker)
    by_leader = LatencyByLeader("publish_latency_seconds")
    told = []
    for address in ("kafka2:9092", "kafka9:9092"):
        broker.addresses[1] = address
        by_leader.record_ns(leaders, ALL, np.full(6, 10**6))
        by_leader = by_leader.following()
        told += [(at.name, value) for at, value in by_leader.samples() if at.metric == LEADER_INFO]

    assert told == [
        ('leader_info{leader="broker1:8080",address="kafka2:9092"}', 1.0),
        ('leader_info{leader="broker1:8080",address="kafka9:9092"}', 1.0),
    ]


@pytest.mark.parametrize(("partitions", "times"), [(100, 1), (MAX_LEADERS, 0)])
def test_that_not_all_leaders_will_be_told_apart_is_known_beforehand(
    partitions: int, times: int
) -> None:
    """By the number of brokers, unless the run has too few partitions for all of them."""
    plan = Plan(name="x", broker={"kafka": kafka.Config()}, topic=Topic(partitions=partitions))

    said = leader_warnings(plan, FakeBroker(MANY))

    assert len(said) == times
    assert all("19 brokers may lead" in one and "the other 3 share one" in one for one in said)


def test_a_cluster_that_does_not_list_its_brokers_is_warned_of_in_nothing() -> None:
    broker = FakeBroker(MANY)
    broker.error = BrokerError("superusers only")

    assert leader_warnings(Plan(name="x", broker={"kafka": kafka.Config()}), broker) == []
