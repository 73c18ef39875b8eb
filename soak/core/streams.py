"""Producer streams: sets of sequence numbers as intervals, and the messages that are still outstanding."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator
from itertools import pairwise
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

from soak.core.model import Span

Ints = NDArray[np.int64]


def spans_by(
    group: Ints, sequence: Ints, offset: Ints, block_bits: int = 0
) -> dict[int, tuple[Span, ...]]:
    """Return, by group, the runs of consecutive sequence numbers with the offsets of their ends.

    The arrays have shape (n,), in any order; groups and the runs of each come out ascending. A run also
    ends where offsets do not rise, so that inside one every offset lies between its ends; a sequence number
    that occurs twice makes two runs, and unknown offsets, below 0, make runs of their own. `block_bits`
    above 0 says that an offset's bits from there up name a block of the log that is deleted as a whole:
    then a run ends with its block.
    """
    if sequence.size == 0:
        return {}
    order = _order(group, sequence, offset)
    group, sequence, offset = group[order], sequence[order], offset[order]
    follows = (sequence[1:] - sequence[:-1] == 1) & (group[1:] == group[:-1])
    follows &= (offset[1:] > offset[:-1]) | (offset[1:] < 0) & (offset[:-1] == offset[1:])
    if block_bits:
        follows &= offset[1:] >> block_bits == offset[:-1] >> block_bits
    breaks = np.flatnonzero(~follows) + 1
    first = np.concatenate([[0], breaks])
    last = np.concatenate([breaks, [sequence.size]]) - 1
    ends = (sequence[first], sequence[last], offset[first], offset[last])
    runs = list(zip(*(end.tolist() for end in ends), strict=True))
    owner = group[first]
    begins = np.concatenate([[0], np.flatnonzero(np.diff(owner)) + 1, [owner.size]]).tolist()
    return {int(owner[begin]): tuple(runs[begin:end]) for begin, end in pairwise(begins)}


def _order(group: Ints, sequence: Ints, offset: Ints) -> Ints:
    """Return the order by group, sequence and offset.

    Messages mostly come in order of their lane, so that sorting by group alone will do; a group that fits
    16 bits is sorted by radix: 200,000 messages of 1,000 groups take 0.6 ms instead of 15.
    """
    low = group.min()
    is_short = int(group.max()) - int(low) < 2**16
    order = np.argsort((group - low).astype(np.uint16) if is_short else group, kind="stable")
    sorted_group, sorted_sequence = group[order], sequence[order]
    rises = sorted_sequence[1:] > sorted_sequence[:-1]
    if (rises | (sorted_group[1:] != sorted_group[:-1])).all():
        return order
    return np.lexsort((offset, sequence, group))


class IntervalSet:
    """A set of integers kept as disjoint closed intervals in ascending order."""

    __slots__ = ("_first", "_last")

    def __init__(self, intervals: Iterable[tuple[int, int]] = ()) -> None:
        self._first: list[int] = []
        self._last: list[int] = []
        for first, last in intervals:
            self.add(first, last)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(zip(self._first, self._last, strict=True))

    def __len__(self) -> int:
        """Return how many intervals there are: what the set costs."""
        return len(self._first)

    @property
    def count(self) -> int:
        """Return how many integers are in the set."""
        return sum(last - first + 1 for first, last in self)

    @property
    def maximum(self) -> int:
        """Return the greatest integer, or -1 when empty."""
        return self._last[-1] if self._last else -1

    def add(self, first: int, last: int) -> int:
        """Add [first, last]; return how many of these integers were in the set already."""
        if last < first:
            raise ValueError(f"interval ends before it begins: [{first}, {last}]")
        if self._last and first == self._last[-1] + 1:  # a lane without disorder only grows
            self._last[-1] = last
            return 0
        low = bisect_right(self._last, first - 2) if self._last else 0
        # intervals that touch or overlap [first, last] are low..high-1
        high = bisect_right(self._first, last + 1)
        twice = sum(
            max(0, min(last, self._last[at]) - max(first, self._first[at]) + 1)
            for at in range(low, high)
        )
        if low < high:
            first, last = min(first, self._first[low]), max(last, self._last[high - 1])
        self._first[low:high] = [first]
        self._last[low:high] = [last]
        return twice

    def within(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        """Give what of [first, last] is in the set, as intervals in ascending order."""
        for at in range(bisect_left(self._last, first), bisect_right(self._first, last)):
            yield max(first, self._first[at]), min(last, self._last[at])

    def missing(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        """Give what of [first, last] is not in the set, as intervals in ascending order."""
        for begin, end in self.within(first, last):
            if begin > first:
                yield first, begin - 1
            first = end + 1
        if first <= last:
            yield first, last

    def minus(self, other: IntervalSet) -> IntervalSet:
        """Return the integers in this set that are not in the other."""
        left = IntervalSet()
        holes = list(other)
        at = 0
        for begin, end in self:
            first = begin
            while at and holes[at - 1][1] >= first:
                at -= 1
            while at < len(holes) and holes[at][0] <= end:
                if holes[at][1] >= first:
                    if holes[at][0] > first:
                        left.add(first, holes[at][0] - 1)
                    first = holes[at][1] + 1
                at += 1
            if first <= end:
                left.add(first, end)
        return left


# --- What was acknowledged and not received so far, in one lane by one subscription, and where it may lie.
# A piece is a span whose offsets are bounds: its first message lies at the first offset or above, its last
# one at the second or below, and inside offsets rise. Where a lane's messages lie side by side the bounds
# are exact; where several clients write one partition, the offsets of what was received narrow them.

MAX_PIECES = 64
"""Beyond so many, neighbours are joined: a reader far behind costs bounds, not memory."""

MAX_OFFSET = 2**63
"""Above every offset."""


class Unsettled:
    """Pieces in ascending order of sequence, none overlapping another."""

    __slots__ = ("_most", "_pieces")

    def __init__(self) -> None:
        self._pieces: list[Span] = []
        self._most = MAX_PIECES

    def __iter__(self) -> Iterator[Span]:
        return iter(self._pieces)

    def __len__(self) -> int:
        return len(self._pieces)

    def add(self, piece: Span) -> None:
        """Add messages none of which is here."""
        pieces = self._pieces
        if not pieces or piece[0] > pieces[-1][1]:
            if pieces and _is_dense(pieces[-1], piece):
                piece = _joined(pieces.pop(), piece)
            pieces.append(piece)
        else:
            insort(pieces, piece)
        if len(pieces) > self._most:
            self._join_neighbours()

    def settle(self, received: Span) -> None:
        """Take out what was received; its offsets say between which ones its neighbours lie."""
        pieces = self._pieces
        if len(pieces) == 1 and received[0] <= pieces[0][0] and pieces[0][1] <= received[1]:
            pieces.clear()  # as nearly always
            return
        begin = bisect_left(pieces, received[0], key=itemgetter(1))
        end, left = begin, list[Span]()
        while end < len(pieces) and pieces[end][0] <= received[1]:
            left += _without(pieces[end], received)
            end += 1
        pieces[begin:end] = left

    def take_inside(self, offsets: IntervalSet) -> list[tuple[int, int]]:
        """Take out the pieces that lie in a set of offsets for certain; return their sequences."""
        is_inside = [[(low, high)] == list(offsets.within(low, high)) for *_, low, high in self]
        taken = [piece for piece, inside in zip(self, is_inside, strict=True) if inside]
        self._pieces = [piece for piece, out in zip(self, is_inside, strict=True) if not out]
        return [(first, last) for first, last, _, _ in taken]

    def _join_neighbours(self) -> None:
        joined = [self._pieces[0]]
        for at, piece in enumerate(self._pieces[1:]):
            before = joined[-1]
            is_next = before[1] + 1 == piece[0] and _is_after(before, piece)
            if is_next and at % 2 == 0:
                joined[-1] = _joined(before, piece)
            else:
                joined.append(piece)
        self._pieces = joined
        self._most = max(MAX_PIECES, 2 * len(joined) - 2)  # what is left apart is disorder


def as_piece(span: Span) -> Span:
    """Return a span as a piece: where the cluster did not say where it lies, that is anywhere."""
    first, last, low, high = span
    return (first, last, low, high) if low >= 0 else (first, last, 0, MAX_OFFSET)


def part_of_piece(piece: Span, first: int, last: int) -> Span:
    """Return the messages [first, last] of a piece; offsets rise by at least one a message."""
    begin, end, low, high = piece
    return first, last, low + (first - begin), high - (end - last)


def possible_messages(piece: Span, offsets: IntervalSet) -> tuple[IntervalSet, int]:
    """Return the messages of a piece that may lie in a set of offsets, and how many there is room for."""
    first, last, low, high = piece
    slack = (high - low) - (last - first)
    may, room = IntervalSet(), 0
    for begin, end in offsets.within(low, high):
        may.add(max(first, first + begin - slack - low), min(last, first + end - low))
        room += end - begin + 1
    return may, room


def _without(piece: Span, received: Span) -> Iterator[Span]:
    first, last, _, _ = piece
    begin, end, begin_offset, end_offset = received
    if first < begin:
        left = part_of_piece(piece, first, begin - 1)
        is_told = left[3] + 1 >= begin_offset > left[2] + (left[1] - left[0])
        yield (*left[:3], begin_offset - 1) if is_told else left
    if end < last:
        right = part_of_piece(piece, end + 1, last)
        is_told = right[2] - 1 <= end_offset < right[3] - (right[1] - right[0])
        yield (*right[:2], end_offset + 1, right[3]) if is_told else right


def _is_dense(before: Span, after: Span) -> bool:
    """True where sequence and offsets both go on, and both have no hole."""
    first, last, low, high = before
    begin, end, begin_offset, end_offset = after
    is_next = last + 1 == begin and high + 1 == begin_offset
    return is_next and high - low == last - first and end_offset - begin_offset == end - begin


def _is_after(before: Span, after: Span) -> bool:
    """True where the second lies behind the first in the log, or nobody knows where either lies."""
    return before[3] < after[2] or before[3] == after[3] == MAX_OFFSET


def _joined(before: Span, after: Span) -> Span:
    return before[0], after[1], min(before[2], after[2]), after[3]
