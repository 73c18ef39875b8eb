"""Lanes: runs of sequence numbers, and a set of them whose size is bounded by disorder, not by length."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from soak.core.model import Span


def spans(sequence: NDArray[np.int64], offset: NDArray[np.int64]) -> tuple[Span, ...]:
    """Return the runs of consecutive sequence numbers, ascending, with the offsets of their ends.

    A run also ends where offsets do not rise, so that inside one every offset lies between its ends;
    unknown offsets, below 0, make runs of their own.
    Both arrays have shape (n,), in any order; a sequence number that occurs twice makes two runs.
    """
    if sequence.size == 0:
        return ()
    order = np.lexsort((offset, sequence))
    sequence, offset = sequence[order], offset[order]
    rises = (np.diff(offset) > 0) | (offset[1:] < 0) & (offset[:-1] == offset[1:])
    breaks = np.flatnonzero((np.diff(sequence) != 1) | ~rises) + 1
    first = np.concatenate([[0], breaks])
    last = np.concatenate([breaks, [sequence.size]]) - 1
    return tuple(
        (int(sequence[a]), int(sequence[b]), int(offset[a]), int(offset[b]))
        for a, b in zip(first, last, strict=True)
    )


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
