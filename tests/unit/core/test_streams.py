"""Producer streams: spans, interval sets and outstanding messages, each against a slow twin."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from soak.core.model import Span
from soak.core.streams import (
    MAX_OFFSET,
    MAX_PIECES,
    IntervalSet,
    Unsettled,
    as_piece,
    part_of_piece,
    possible_messages,
    spans_by,
)
from tests.support.load.stream_spans import spans

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
def test_groups_are_separated_in_one_sort(
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


OFFSETS = st.lists(st.integers(0, 60), min_size=1, max_size=20, unique=True).map(sorted)
"""The offsets of messages 0, 1, 2 and so on of a stream, with messages of other clients between them."""


def _spans(sequences: Sequence[int], offsets: Sequence[int]) -> tuple[Span, ...]:
    where = [offsets[at] for at in sequences]
    return spans(np.array(sequences, dtype=np.int64), np.array(where, dtype=np.int64))


@given(OFFSETS, st.lists(st.sets(st.integers(0, 19)), max_size=4), st.integers(0, 60))
def test_every_message_keeps_within_its_bounds(
    offsets: list[int], batches: list[set[int]], cut: int
) -> None:
    """Whatever is taken out, what is left is what was not, and may lie where it does."""
    left = set(range(len(offsets)))
    unsettled = Unsettled()
    unsettled.add(_spans(sorted(left), offsets)[0])

    for batch in batches:
        for received in _spans(sorted(batch & left), offsets):
            unsettled.settle(received)
        left -= batch

    pieces = list(unsettled)
    numbers = [at for first, last, _, _ in pieces for at in range(first, last + 1)]
    assert numbers == sorted(left)
    below = IntervalSet([(0, cut)])
    for piece in pieces:
        first, last, low, high = piece
        assert low <= offsets[first]
        assert offsets[last] <= high
        may, room = possible_messages(piece, below)
        truly = [at for at in range(first, last + 1) if offsets[at] <= cut]
        assert set(truly) <= {at for begin, end in may for at in range(begin, end + 1)}
        assert len(truly) <= room


@given(st.integers(0, 30), st.integers(0, 30))
def test_bounds_are_exact_where_messages_lie_side_by_side(begin: int, length: int) -> None:
    unsettled = Unsettled()
    unsettled.add((0, 99, 1000, 1099))

    unsettled.settle((begin, begin + length, 1000 + begin, 1000 + begin + length))

    assert all((low, high) == (1000 + first, 1000 + last) for first, last, low, high in unsettled)


def test_what_was_received_says_where_its_neighbours_end() -> None:
    """Messages 0 to 99 somewhere in 0 to 399; 40 lies at 200, 43 at 230."""
    unsettled = Unsettled()
    unsettled.add((0, 99, 0, 399))

    unsettled.settle((40, 43, 200, 230))

    assert list(unsettled) == [(0, 39, 0, 199), (44, 99, 231, 399)]


def test_offsets_of_another_log_say_nothing() -> None:
    """What a mirror delivers lies elsewhere; only the order of messages bounds their places."""
    unsettled = Unsettled()
    unsettled.add((0, 99, 0, 399))

    unsettled.settle((40, 43, 7_000, 7_003))

    assert list(unsettled) == [(0, 39, 0, 339), (44, 99, 44, 399)]


def test_no_more_messages_may_lie_in_a_hole_than_there_is_room_for() -> None:
    may, room = possible_messages((0, 99, 0, 399), IntervalSet([(100, 104)]))

    assert (list(may), room) == ([(0, 99)], 5)


def test_a_message_without_an_offset_may_be_anywhere() -> None:
    assert as_piece((5, 9, -2, -2)) == (5, 9, 0, MAX_OFFSET)
    assert part_of_piece(as_piece((5, 9, -2, -2)), 7, 8) == (7, 8, 2, MAX_OFFSET - 1)


def test_a_reader_far_behind_costs_a_bounded_number_of_pieces() -> None:
    """A run a second for a day, other clients' messages between them; order and count are kept."""
    unsettled = Unsettled()
    for k in range(86_400):
        unsettled.add((k * 10, k * 10 + 9, k * 40, k * 40 + 30))

        assert len(unsettled) <= MAX_PIECES

    pieces = list(unsettled)
    assert pieces[0][0] == 0
    assert all(a[1] + 1 == b[0] and a[3] < b[2] for a, b in pairwise(pieces))
    assert pieces[-1][1] == 863_999


def test_what_lies_in_deleted_offsets_for_certain_is_taken_out() -> None:
    unsettled = Unsettled()
    unsettled.add((0, 9, 0, 9))
    unsettled.add((20, 29, 50, 80))

    taken = unsettled.take_inside(IntervalSet([(0, 20), (40, 70)]))

    assert (taken, list(unsettled)) == ([(0, 9)], [(20, 29, 50, 80)])


def test_joined_pieces_without_an_end_lie_where_either_may() -> None:
    """A piece at offset 500 or above, followed by one with unknown offsets."""
    unsettled = Unsettled()
    for at in range(MAX_PIECES + 1):
        low = 500 if at % 2 == 0 else 0
        unsettled.add((at * 10, at * 10 + 9, low, MAX_OFFSET))

    assert len(unsettled) <= MAX_PIECES
    assert {low for first, last, low, _ in unsettled if last - first > 9} == {0}


def test_many_pieces_of_unknown_place_are_joined_and_settle_all_the_same() -> None:
    """Without acknowledgements the offset is unknown; 23 of 20,000 intervals are received."""
    unsettled = Unsettled()
    for k in range(20_000):
        unsettled.add(as_piece((k * 10, k * 10 + 9, -1, -1)))
    kept = len(unsettled)
    for k in range(500, 523):
        unsettled.settle((k * 10, k * 10 + 9, k * 10, k * 10 + 9))

    assert kept <= MAX_PIECES
    assert sum(last - first + 1 for first, last, _, _ in unsettled) == 200_000 - 230
