"""Which broker is ended so that a certain one leads in its place."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from soak.lab.faults.leader_move import lead_again, leader_before
from soak.lab.ports import Running, Target
from tests.fakes import FakeClock


@dataclass
class Partition:
    leader: int
    replicas: list[int] = field(default_factory=list)


STRIPED = [Partition(2, [2, 3, 1]), Partition(3, [3, 1, 2]), Partition(1, [1, 2, 3])]


@pytest.mark.parametrize(("onto", "leader"), [(1, 3), (2, 1), (3, 2), (4, None)])
def test_the_next_copy_says_who_takes_over(onto: int, leader: int | None) -> None:
    """The first of a partition's brokers that is alive leads it."""
    assert leader_before(onto, STRIPED) == leader


def test_a_partition_that_another_leads_already_is_passed_over() -> None:
    """Its first broker is not the one to end."""
    assert leader_before(1, [Partition(2, [3, 1, 2]), *STRIPED[1:]]) == 3
    assert leader_before(1, [Partition(2, [3, 1, 2])]) is None


@pytest.mark.broker
def test_a_real_kafka_says_when_all_is_led_as_it_was_made(lab_kafka: Running) -> None:
    """Its one broker leads everything: the first answer will do, and no pause is made."""
    clock = FakeClock()
    began_ns = clock.mono_ns()

    lead_again(Target(lab_kafka, lambda _: None, clock))

    assert clock.mono_ns() == began_ns
