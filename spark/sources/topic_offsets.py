"""Offsets of readers in a Kafka topic that grows, is truncated, gets partitions, or is created again.

An offset names the topic's id and the next record of each partition. It moves back where the topic has less
than was read: that batch reads nothing there, and says so. The next one goes on from where it moved to.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypedDict

REREAD_RECORDS = 10_000
"""So many records before its end are read again of a log that became shorter: new ones may be among them."""


class Offset(TypedDict):
    """What Spark keeps in its checkpoint."""

    topic: str  # its id; "" where the brokers know none
    next: dict[str, int]  # by partition, whose number is text in JSON


@dataclass(frozen=True, slots=True)
class Ends:
    """What the cluster says of the topic: its id, and the end of each partition that answered."""

    topic: str
    ends: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Range:
    """Offsets [begin, end) of one partition; `note` says what happened to it before, or is empty.

    A range without offsets is there for its note.
    """

    partition: int
    begin: int
    end: int
    note: str = ""


def first_offset(now: Ends) -> Offset:
    """Return the offset of a reader that begins at these places."""
    return {"topic": now.topic, "next": {str(at): place for at, place in sorted(now.ends.items())}}


def newest(start: Offset, now: Ends, max_records: int | None) -> Offset:
    """Return how far may be read from `start`: to the end, or about `max_records` over all partitions.

    A partition that did not answer stays where it is. Each partition with new records gets some of them.
    """
    if _is_other_topic(start, now):
        return {"topic": now.topic, "next": {str(at): 0 for at in sorted(now.ends)}}
    known = {int(at): place for at, place in start["next"].items()}
    waiting = {at: max(0, end - known.get(at, 0)) for at, end in now.ends.items()}
    taken = shares(waiting, max_records)
    moved = {
        at: known.get(at, 0) + taken[at] if end >= known.get(at, 0) else _before(end, start)
        for at, end in now.ends.items()
    }
    places = sorted({**known, **moved}.items())
    return {
        "topic": now.topic or start["topic"],
        "next": {str(at): place for at, place in places},
    }


def capped(now: Ends, target: Ends) -> Ends | None:
    """Return the ends as far as they belong to the target; None where that is of another topic by now."""
    if now.topic != target.topic:
        return None
    limits = target.ends
    return Ends(
        now.topic, {at: min(end, limits[at]) for at, end in now.ends.items() if at in limits}
    )


def ranges(start: Offset, end: Offset) -> list[Range]:
    """Return what lies between two offsets, a range a partition; the same two always give the same."""
    if start["topic"] and start["topic"] != end["topic"]:
        lost = ", ".join(f"{at}: {place}" for at, place in start["next"].items())
        note = f"the topic was created again; offsets read of the old one were {lost}"
        return [Range(0, 0, 0, note)]
    found = []
    for text, stop in end["next"].items():
        begin = start["next"].get(text)
        partition = int(text)
        if begin is None:
            note = f"partition {partition} is new" if start["next"] else ""
            found.append(Range(partition, 0, stop, note))
        elif stop < begin:
            note = f"the log became shorter than {begin}, up to which it was read"
            found.append(Range(partition, stop, stop, note))
        elif stop > begin:
            found.append(Range(partition, begin, stop))
    return [one for one in found if one.note or one.end > one.begin]


def shares(waiting: Mapping[int, int], limit: int | None) -> dict[int, int]:
    """Return how many records each partition may give, of those that wait there.

    The partition with the fewest is served first: a producer that floods one partition delays no other.
    """
    if limit is None:
        return dict(waiting)
    left, found = limit, {}
    ordered = sorted(waiting.items(), key=lambda item: (item[1], item[0]))
    for position, (partition, count) in enumerate(ordered):
        # rounded up, so that a limit below the number of partitions still moves the first ones
        fair = -(-left // (len(ordered) - position))
        found[partition] = min(count, fair)
        left -= found[partition]
    return found


def lag(read: Offset, now: Ends) -> int:
    """Return how many offsets are not read yet, of the partitions that answered."""
    if _is_other_topic(read, now):
        return sum(now.ends.values())
    return sum(max(0, end - read["next"].get(str(at), 0)) for at, end in now.ends.items())


def _is_other_topic(start: Offset, now: Ends) -> bool:
    return bool(start["topic"] and now.topic) and start["topic"] != now.topic


def _before(end: int, start: Offset) -> int:
    """Return from where to read a log that ends before its reader.

    Without an id it may be that of another topic, all of which is new.
    """
    return max(0, end - REREAD_RECORDS) if start["topic"] else 0


class Scanned:
    """The stretches of one partition in which a reader has seen every record; bounded, the newest kept."""

    def __init__(self, max_stretches: int = 16) -> None:
        self._max = max_stretches
        self._stretches: list[tuple[int, int]] = []  # disjoint, ascending

    def add(self, begin: int, end: int) -> None:
        """Note that [begin, end) was seen."""
        if begin >= end:
            return
        kept = []
        for low, high in self._stretches:
            if high < begin or low > end:
                kept.append((low, high))
            else:
                begin, end = min(begin, low), max(end, high)
        self._stretches = sorted([*kept, (begin, end)])[-self._max :]

    def holes(self, begin: int, end: int) -> list[tuple[int, int]]:
        """Return the stretches of [begin, end) that were not seen, the last one first."""
        found: list[tuple[int, int]] = []
        for low, high in [*self._stretches, (end, end)]:
            if begin < min(low, end):
                found.append((begin, min(low, end)))
            begin = max(begin, high)
        return found[::-1]


def chunks(hole: tuple[int, int], first: int) -> Iterable[tuple[int, int]]:
    """Yield a stretch in parts from its end to its begin, each twice as long as the one before."""
    begin, end = hole
    while end > begin:
        low = max(begin, end - first)
        yield low, end
        end, first = low, 2 * first
