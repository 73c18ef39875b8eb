from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from soak.core.lanes import IntervalSet, spans

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
