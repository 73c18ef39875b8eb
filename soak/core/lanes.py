"""Lanes: runs of sequence numbers, and a set of them whose size is bounded by disorder, not by length."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from itertools import pairwise

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
