"""Follows the earliest offset of each partition, which retention moves."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from soak.core.model import Event

Partition = tuple[str, int]

DELETED = "retention_deletion"
MOVED_BACK = "log_start_moved_back"
"""A log start that falls: the topic was created again, or data was lost."""


Sizes = Callable[[Partition], Mapping[int, int]]
"""The bytes of a partition's segments by base offset, empty if the folder is not on this host."""


@dataclass(frozen=True, slots=True)
class LogStartChange:
    """The log start of a partition moved between two polls, which are on the wall clock."""

    partition: Partition
    from_offset: int
    to_offset: int
    since_ns: int
    at_ns: int
    segments: int | None = None  # if the folder is on this host
    bytes: int | None = None

    @property
    def is_deletion(self) -> bool:
        return self.to_offset > self.from_offset

    @property
    def messages(self) -> int:
        """Return the difference of offsets, too high for a compacted or transactional log."""
        return self.to_offset - self.from_offset

    def event(self) -> Event:
        fields: dict[str, str | int | float] = {
            "topic": self.partition[0],
            "partition": self.partition[1],
            "from_offset": self.from_offset,
            "to_offset": self.to_offset,
            "messages": self.messages,
        }
        if self.bytes is not None and self.segments is not None:
            fields |= {"bytes": self.bytes, "segments": self.segments}
        return Event(DELETED if self.is_deletion else MOVED_BACK, self.at_ns, self.since_ns, fields)


@dataclass(slots=True)
class _Known:
    earliest: int
    asked_ns: int


class LogStarts:
    """Compares the log start of each partition with the last poll."""

    def __init__(self) -> None:
        self._known: dict[Partition, _Known] = {}

    def update(
        self, starts: Mapping[Partition, int], sizes: Sizes, asked_ns: int, answered_ns: int
    ) -> list[LogStartChange]:
        """Return the changes since the previous poll of each partition; its first poll has none.

        A change lies between the previous request, right after whose answer it may have come, and this
        answer.
        """
        changes = []
        for partition, earliest in starts.items():
            known = self._known.setdefault(partition, _Known(earliest, asked_ns))
            if earliest != known.earliest:
                since = known.asked_ns, answered_ns
                changes.append(_change(partition, known.earliest, earliest, sizes, since))
            known.earliest, known.asked_ns = earliest, asked_ns
        return changes


def _change(
    partition: Partition, from_offset: int, to_offset: int, sizes: Sizes, when: tuple[int, int]
) -> LogStartChange:
    gone = [size for base, size in sizes(partition).items() if from_offset <= base < to_offset]
    return LogStartChange(
        partition,
        from_offset,
        to_offset,
        *when,
        segments=len(gone) if gone else None,
        bytes=sum(gone) if gone else None,
    )


class RoundRobin:
    """Which partitions are polled next if not all can be polled each time: `count` in turn, or all.

    A broker deletes in all its partitions at once. What one turn shows of that, the others would show only
    when their turn comes, so all are polled next; and all at first, or a change before a partition's first
    turn would be missed.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._at = 0
        self._is_for_all = True

    def next(
        self, partitions: Sequence[Partition], moved: Iterable[Partition]
    ) -> Sequence[Partition]:
        """Return which partitions to poll; `moved` are known to have changed, and come first."""
        if self._is_for_all or len(partitions) <= self._count:
            return partitions
        begin = self._at % len(partitions)
        self._at = begin + self._count
        turn = [*partitions, *partitions][begin : self._at]
        return list(dict.fromkeys([*list(moved)[: self._count], *turn]))

    def answered(self, *, is_moving: bool) -> None:
        """Note whether the last poll showed changes. All are never polled twice in a row: too costly."""
        self._is_for_all = is_moving and not self._is_for_all
