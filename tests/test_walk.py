"""Where clients without keys send to: all partitions alike, and no client as another does."""

from __future__ import annotations

from collections import Counter
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from soak.daemons.walk import STICKY_NS, Walk

SEEDS = st.integers(0, 2**32 - 1)


def _walked(partitions: int, seed: int, slots: int, step_ns: int = STICKY_NS) -> NDArray[np.int64]:
    walk = Walk(partitions, seed)
    return np.array([walk.partition(number * step_ns) for number in range(slots)])


@given(SEEDS, st.integers(1, 40), st.integers(1, 5), st.integers(STICKY_NS, 50 * STICKY_NS))
def test_every_round_visits_each_partition_once(
    seed: int, partitions: int, rounds: int, step_ns: int
) -> None:
    """Also when it sends so seldom that most slots pass unused: ten a second are not all one partition's."""
    found = _walked(partitions, seed, rounds * partitions, step_ns).reshape(rounds, partitions)

    assert all(sorted(one) == list(range(partitions)) for one in found.tolist())


@given(SEEDS, st.integers(0, 10**18))
def test_a_partition_is_kept_until_its_slot_is_over(seed: int, now_ns: int) -> None:
    walk = Walk(1000, seed)
    until_ns = walk.until_ns(now_ns)

    first, last = walk.partition(now_ns), walk.partition(until_ns - 1)

    assert 0 < until_ns - now_ns <= STICKY_NS
    assert (first, walk.until_ns(until_ns - 1)) == (last, until_ns)
    assert walk.partition(until_ns) != first


@given(SEEDS)
def test_a_seed_gives_one_walk(seed: int) -> None:
    assert _walked(12, seed, 40).tolist() == _walked(12, seed, 40).tolist()


def test_two_clients_meet_at_a_broker_as_often_as_chance_has_it() -> None:
    """Leaders placed in turn on three brokers: a third of the slots, for every pair; it was all or none."""
    walked = [_walked(288, seed, 2880) % 3 for seed in range(40)]

    shares = [np.mean(one == other) for one, other in combinations(walked, 2)]

    assert np.mean(shares) == pytest.approx(1 / 3, abs=0.002)
    assert max(abs(share - 1 / 3) for share in shares) < 0.05


def test_no_broker_draws_all_the_clients_for_long() -> None:
    """Of four clients three or more are at one of three brokers in a third of the slots, in any run."""
    for run in range(20):
        brokers = np.array([_walked(288, 100 * run + client, 2880) % 3 for client in range(4)])
        most = np.max([np.sum(brokers == one, axis=0) for one in range(3)], axis=0)

        assert np.mean(most >= 3) == pytest.approx(27 / 81, abs=0.05)


def test_clients_do_not_change_partition_at_the_same_moment() -> None:
    """Who changes ends a batch early: together they would all do so, a hundred times a second."""
    ends = Counter(Walk(8, seed).until_ns(0) // 1_000_000 for seed in range(1000))

    assert max(ends.values()) < 150
