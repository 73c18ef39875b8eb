"""What was acknowledged and not received so far, in one lane by one subscription, and where it may lie.

A piece is a span whose offsets are bounds: its first message lies at the first offset or above, its last
one at the second or below, and inside offsets rise. Where a lane's messages lie side by side the bounds
are exact; where several clients write one partition, the offsets of what was received narrow them.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from operator import itemgetter

from soak.core.lanes import IntervalSet
from soak.core.model import Span

MOST_PIECES = 64
"""Beyond so many, neighbours are joined: a reader far behind costs bounds, not memory."""

NO_END = 2**63
"""Above every offset."""


class Unsettled:
    """Pieces in ascending order of sequence, none overlapping another."""

    __slots__ = ("_most", "_pieces")

    def __init__(self) -> None:
        self._pieces: list[Span] = []
        self._most = MOST_PIECES

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
            is_next = before[1] + 1 == piece[0] and _is_behind(before, piece)
            if is_next and at % 2 == 0:
                joined[-1] = _joined(before, piece)
            else:
                joined.append(piece)
        self._pieces = joined
        self._most = max(MOST_PIECES, 2 * len(joined) - 2)  # what is left apart is disorder


def placed(span: Span) -> Span:
    """Return a span as a piece: where the cluster did not say where it lies, that is anywhere."""
    first, last, low, high = span
    return (first, last, low, high) if low >= 0 else (first, last, 0, NO_END)


def part(piece: Span, first: int, last: int) -> Span:
    """Return the messages [first, last] of a piece; offsets rise by at least one a message."""
    begin, end, low, high = piece
    return first, last, low + (first - begin), high - (end - last)


def possible(piece: Span, offsets: IntervalSet) -> tuple[IntervalSet, int]:
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
        left = part(piece, first, begin - 1)
        is_told = left[3] + 1 >= begin_offset > left[2] + (left[1] - left[0])
        yield (*left[:3], begin_offset - 1) if is_told else left
    if end < last:
        right = part(piece, end + 1, last)
        is_told = right[2] - 1 <= end_offset < right[3] - (right[1] - right[0])
        yield (*right[:2], end_offset + 1, right[3]) if is_told else right


def _is_dense(before: Span, after: Span) -> bool:
    """True where sequence and offsets both go on, and both have no hole."""
    first, last, low, high = before
    begin, end, begin_offset, end_offset = after
    is_next = last + 1 == begin and high + 1 == begin_offset
    return is_next and high - low == last - first and end_offset - begin_offset == end - begin


def _is_behind(before: Span, after: Span) -> bool:
    """True where the second lies behind the first in the log, or nobody knows where either lies."""
    return before[3] < after[2] or before[3] == after[3] == NO_END


def _joined(before: Span, after: Span) -> Span:
    return before[0], after[1], min(before[2], after[2]), after[3]
