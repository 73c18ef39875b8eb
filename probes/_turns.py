"""Who is asked next when not all can be asked each time: some in turn, and all when something has moved.

A broker goes over all its partitions at once. Whatever one turn shows of that, the others would show only
when theirs comes, so all of them are asked next; and all at first, or what moves before a partition's first
turn would never be seen.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from probes._log_starts import Partition


class Turns:
    """`count` are asked in a turn."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._at = 0
        self._is_for_all = True

    def next(
        self, partitions: Sequence[Partition], moved: Iterable[Partition]
    ) -> Sequence[Partition]:
        """Return who is to be asked; `moved` are known to have moved, and go ahead of the turn."""
        if self._is_for_all or len(partitions) <= self._count:
            return partitions
        begin = self._at % len(partitions)
        self._at = begin + self._count
        turn = [*partitions, *partitions][begin : self._at]
        return list(dict.fromkeys([*list(moved)[: self._count], *turn]))

    def answered(self, *, is_moving: bool) -> None:
        """Note what the last ones said. Two looks at all never follow each other: that costs too much."""
        self._is_for_all = is_moving and not self._is_for_all
