"""Partitions of clients without keys: used equally, and in another order by each client."""

from __future__ import annotations

from collections import Counter
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from soak.load.producer.messages import STICKY_NS, PartitionChoice

SEEDS = st.integers(0, 2**32 - 1)


def _chosen(partitions: int, seed: int, slots: int, step_ns: int = STICKY_NS) -> NDArray[np.int64]:
    choice = PartitionChoice(partitions, seed)
    return np.array([choice.partition(number * step_ns) for number in range(slots)])


@pytest.mark.long
@given(SEEDS, st.integers(1, 40), st.integers(1, 5), st.integers(STICKY_NS, 50 * STICKY_NS))
def test_every_round_uses_each_partition_once(
    seed: int, partitions: int, rounds: int, step_ns: int
) -> None:
    """Also when most slots pass unused."""
    found = _chosen(partitions, seed, rounds * partitions, step_ns).reshape(rounds, partitions)

    assert all(sorted(one) == list(range(partitions)) for one in found.tolist())


@given(SEEDS, st.integers(0, 10**18))
def test_a_partition_is_kept_until_its_slot_ends(seed: int, now_ns: int) -> None:
    choice = PartitionChoice(1000, seed)
    until_ns = choice.until_ns(now_ns)

    first, last = choice.partition(now_ns), choice.partition(until_ns - 1)

    assert 0 < until_ns - now_ns <= STICKY_NS
    assert (first, choice.until_ns(until_ns - 1)) == (last, until_ns)
    assert choice.partition(until_ns) != first


@given(SEEDS)
def test_a_seed_determines_the_order(seed: int) -> None:
    assert _chosen(12, seed, 40).tolist() == _chosen(12, seed, 40).tolist()


def test_two_clients_use_the_same_broker_as_often_as_by_chance() -> None:
    """With leaders assigned in turn to three brokers, in a third of the slots, for every pair of clients."""
    chosen = [_chosen(288, seed, 2880) % 3 for seed in range(40)]

    shares = [np.mean(one == other) for one, other in combinations(chosen, 2)]

    assert np.mean(shares) == pytest.approx(1 / 3, abs=0.002)
    assert max(abs(share - 1 / 3) for share in shares) < 0.05


@pytest.mark.long
def test_no_broker_attracts_all_clients_for_long() -> None:
    """Of four clients, three or more use one of three brokers in a third of the slots, in any run."""
    for run in range(20):
        brokers = np.array([_chosen(288, 100 * run + client, 2880) % 3 for client in range(4)])
        most = np.max([np.sum(brokers == one, axis=0) for one in range(3)], axis=0)

        assert np.mean(most >= 3) == pytest.approx(27 / 81, abs=0.05)


def test_clients_change_partition_at_different_moments() -> None:
    """A change ends a batch early: otherwise all clients would do so together, a hundred times a second."""
    ends = Counter(PartitionChoice(8, seed).until_ns(0) // 1_000_000 for seed in range(1000))

    assert max(ends.values()) < 150
