from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from soak.core.lanes import IntervalSet, spans_by
from soak.core.model import Span
from tests.lane_spans import spans

INTERVALS = st.lists(
    st.tuples(st.integers(0, 40), st.integers(0, 6)).map(lambda pair: (pair[0], sum(pair))),
    max_size=8,
)


def _plain(intervals: list[tuple[int, int]]) -> set[int]:
    return {number for first, last in intervals for number in range(first, last + 1)}


@given(INTERVALS)
def test_an_interval_set_is_a_set(intervals: list[tuple[int, int]]) -> None:
    found, twin, seen = IntervalSet(), set[int](), list[tuple[int, int]]()
    for first, last in intervals:
        assert found.add(first, last) == len(twin & _plain([(first, last)]))
        twin |= _plain([(first, last)])
        seen.append((first, last))

    kept = list(found)
    assert _plain(kept) == twin
    assert all(left[1] + 1 < right[0] for left, right in pairwise(kept))


@given(INTERVALS, INTERVALS)
def test_minus_is_set_difference(left: list[tuple[int, int]], right: list[tuple[int, int]]) -> None:
    difference = IntervalSet(left).minus(IntervalSet(right))

    assert _plain(list(difference)) == _plain(left) - _plain(right)


@given(st.permutations(range(12)), st.sets(st.integers(0, 11)))
def test_spans_cover_the_numbers_given(order: list[int], missing: set[int]) -> None:
    numbers = np.array([number for number in order if number not in missing], dtype=np.int64)

    runs = spans(numbers, numbers + 100)

    assert _plain([(first, last) for first, last, _, _ in runs]) == set(range(12)) - missing
    assert all(low == first + 100 and high == last + 100 for first, last, low, high in runs)
    assert len(runs) == len(IntervalSet((first, last) for first, last, _, _ in runs))


def _runs_by_definition(
    messages: list[tuple[int, int, int]], block_bits: int
) -> dict[int, tuple[Span, ...]]:
    """The slow twin of `spans_by`."""
    found: dict[int, list[Span]] = {}
    for group, sequence, offset in sorted(messages):
        runs = found.setdefault(group, [])
        if runs and runs[-1][1] + 1 == sequence:
            first, _, low, high = runs[-1]
            is_one_block = not block_bits or high >> block_bits == offset >> block_bits
            if is_one_block and (high < offset or high == offset < 0):
                runs[-1] = (first, sequence, low, offset)
                continue
        runs.append((sequence, sequence, offset, offset))
    return {group: tuple(runs) for group, runs in found.items()}


MESSAGES = st.lists(
    st.tuples(st.sampled_from([0, 3, 70_000]), st.integers(0, 9), st.integers(-2, 12)), max_size=20
)


@given(MESSAGES, st.integers(0, 3))
def test_groups_are_told_apart_in_one_sort(
    messages: list[tuple[int, int, int]], block_bits: int
) -> None:
    """Any order, duplicates, unknown offsets, groups too far apart for 16 bits."""
    group, sequence, offset = np.array(messages, dtype=np.int64).reshape(-1, 3).T

    found = spans_by(group, sequence, offset, block_bits)

    assert found == _runs_by_definition(messages, block_bits)
    assert list(found) == sorted(found)


def test_a_run_ends_with_its_block() -> None:
    """Ledgers 5 and 6 of a log whose offsets have 20 bits for the entry."""
    numbers = np.arange(4, dtype=np.int64)
    offsets = np.array([5 << 20, (5 << 20) + 8, 6 << 20, (6 << 20) + 8], dtype=np.int64)

    assert spans(numbers, offsets) == ((0, 3, 5 << 20, (6 << 20) + 8),)
    assert spans(numbers, offsets, 20) == (
        (0, 1, 5 << 20, (5 << 20) + 8),
        (2, 3, 6 << 20, (6 << 20) + 8),
    )
