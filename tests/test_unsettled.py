from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from soak.core.lanes import IntervalSet
from soak.core.model import Span
from soak.core.unsettled import MOST_PIECES, NO_END, Unsettled, part, placed, possible
from tests.lane_spans import spans

OFFSETS = st.lists(st.integers(0, 60), min_size=1, max_size=20, unique=True).map(sorted)
"""Where the messages 0, 1, 2 and so on of a lane lie, other clients' between them."""


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
        may, room = possible(piece, below)
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
    may, room = possible((0, 99, 0, 399), IntervalSet([(100, 104)]))

    assert (list(may), room) == ([(0, 99)], 5)


def test_a_message_whose_place_nobody_told_may_lie_anywhere() -> None:
    assert placed((5, 9, -2, -2)) == (5, 9, 0, NO_END)
    assert part(placed((5, 9, -2, -2)), 7, 8) == (7, 8, 2, NO_END - 1)


def test_a_reader_far_behind_costs_a_bounded_number_of_pieces() -> None:
    """A run a second for a day, other clients' messages between them; order and count are kept."""
    unsettled = Unsettled()
    for k in range(86_400):
        unsettled.add((k * 10, k * 10 + 9, k * 40, k * 40 + 30))

        assert len(unsettled) <= MOST_PIECES

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
    """One that begins at offset 500 or above, and then one of which nobody says anything."""
    unsettled = Unsettled()
    for at in range(MOST_PIECES + 1):
        low = 500 if at % 2 == 0 else 0
        unsettled.add((at * 10, at * 10 + 9, low, NO_END))

    assert len(unsettled) <= MOST_PIECES
    assert {low for first, last, low, _ in unsettled if last - first > 9} == {0}


def test_many_pieces_of_unknown_place_are_joined_and_settle_all_the_same() -> None:
    """Without acknowledgements nobody says where a message lies; 23 of 20,000 seconds are received."""
    unsettled = Unsettled()
    for k in range(20_000):
        unsettled.add(placed((k * 10, k * 10 + 9, -1, -1)))
    kept = len(unsettled)
    for k in range(500, 523):
        unsettled.settle((k * 10, k * 10 + 9, k * 10, k * 10 + 9))

    assert kept <= MOST_PIECES
    assert sum(last - first + 1 for first, last, _, _ in unsettled) == 200_000 - 230
