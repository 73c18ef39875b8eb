"""What a consumer has received: sequence intervals a lane, positions, holes in the offsets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from soak.core.audit import EXPIRED_EVENT, FINAL_EVENT
from soak.core.errors import BrokerError, JournalError
from soak.core.header import lane
from soak.core.lanes import IntervalSet, spans_by
from soak.core.model import Event, Span
from soak.core.ports import EARLIEST, LATEST, Clock, Consumer
from soak.store.journal_reader import read_source

Ints = NDArray[np.int64]

_PARTITIONS = 2**20  # more than a plan may have


@dataclass(slots=True)
class AuditCounts:
    """What was odd in a batch."""

    duplicated: int = 0
    reordered: int = 0
    reread: int = 0


@dataclass(slots=True)
class Received:
    """The audit's state; its size is bounded by lanes, disorder and holes, not by messages."""

    positions: dict[int, int]  # next offset by partition
    block_bits: int = 0  # of the broker; above 0 only a jump from block to block may be a hole
    lanes: dict[str, IntervalSet] = field(default_factory=dict)
    known_below: dict[int, int] = field(default_factory=dict)  # offsets recorded by an earlier self
    _owners: dict[int, int] = field(default_factory=dict)  # instance and inc, to a running number
    _names: dict[int, str] = field(default_factory=dict)  # of lanes, by owner number and partition
    _new: list[tuple[Ints, Ints, Ints]] = field(default_factory=list)
    _holes: list[tuple[int, int, int]] = field(default_factory=list)

    def note(
        self,
        block: NDArray[np.void],
        is_ours: NDArray[np.bool_],
        partition: Ints,
        offset: Ints,
    ) -> AuditCounts:
        """Take a batch in order of arrival; rows of one partition come in order of offset."""
        counts = AuditCounts()
        if offset.size == 0:
            return counts
        by_partition = np.argsort(partition, kind="stable")
        self._advance(partition[by_partition], offset[by_partition])
        if not is_ours.all():
            block, partition, offset = block[is_ours], partition[is_ours], offset[is_ours]
        if offset.size:
            self._note_lanes(self._lane(block, partition), block["sequence"], offset, counts)
        return counts

    def take_spans(self) -> dict[str, tuple[Span, ...]]:
        """Return the runs received since the last call, by lane."""
        taken, self._new = self._new, []
        if not taken:
            return {}
        lane_, sequence, offset = (np.concatenate(parts) for parts in zip(*taken, strict=True))
        found = spans_by(lane_, sequence, offset, self.block_bits)
        return {self._names[at]: runs for at, runs in found.items()}

    def take_events(self, consumer: Consumer, clock: Clock) -> list[Event]:
        """Return one event a hole that retention made; a hole stays until the broker has answered."""
        events: list[Event] = []
        if not self._holes:
            return events
        try:
            bounds = consumer.log_bounds(sorted({partition for partition, *_ in self._holes}))
        except BrokerError:  # it does not answer now: it is asked again with the next second
            return events
        holes, self._holes = self._holes, []
        for partition, begin, end in holes:
            gone = min(end, bounds[partition][0])
            if gone > begin:
                events.append(_expired(partition, begin, gone, clock.wall_ns()))
        return events

    def final_events(self, consumer: Consumer, clock: Clock) -> list[Event]:
        """Return where reading ended in each partition, and what retention took from the unread."""
        events = self.take_events(consumer, clock)
        try:
            bounds = consumer.log_bounds(list(self.positions))
        except BrokerError:  # what is unread stays unknown
            return events
        for partition, position in self.positions.items():
            low, high = bounds[partition]
            now_ns, begin = clock.wall_ns(), max(position, 0)
            if low > begin:
                events.append(_expired(partition, begin, low, now_ns))
            fields = {"partition": partition, "position": begin, "log_end": high}
            events.append(Event(FINAL_EVENT, now_ns, now_ns, fields))
        return events

    def _advance(self, partition: Ints, offset: Ints) -> None:
        """Move the positions; the arrays are sorted by partition."""
        begins = np.flatnonzero(np.diff(partition, prepend=-1))
        lasts = np.append(begins[1:], offset.size) - 1
        first_offset: list[int] = []
        for at, first, last in zip(
            partition[begins].tolist(), offset[begins].tolist(), offset[lasts].tolist(), strict=True
        ):
            position = self.positions.get(at, EARLIEST)
            expected = first if position == LATEST else max(position, 0)
            first_offset.append(expected)
            self.positions[at] = max(expected, last + 1)
        following = np.empty_like(offset)
        following[1:] = offset[:-1] + 1
        following[begins] = first_offset
        # Where offsets have holes by nature, only a whole block can have gone between two of them.
        jumps = offset >> self.block_bits > following >> self.block_bits
        for at in np.flatnonzero(jumps).tolist():
            self._holes.append((int(partition[at]), int(following[at]), int(offset[at])))

    def _lane(self, block: NDArray[np.void], partition: Ints) -> Ints:
        """Return a number for each message's lane, and see that it has a name."""
        owner = block["instance"].astype(np.uint64) << np.uint64(32) | block["inc"]
        owners, inverse = np.unique(owner, return_inverse=True)
        numbers = [self._owners.setdefault(key, len(self._owners)) for key in owners.tolist()]
        found: Ints = np.array(numbers, dtype=np.int64)[inverse] * _PARTITIONS + partition
        for at in set(found.tolist()) - self._names.keys():
            number, where = divmod(at, _PARTITIONS)
            key = next(key for key, known in self._owners.items() if known == number)
            self._names[at] = lane(key >> 32, key & 0xFFFFFFFF, where)
        return found

    def _note_lanes(
        self, lane_: Ints, sequence: NDArray[np.uint64], offset: Ints, counts: AuditCounts
    ) -> None:
        order = np.argsort(lane_, kind="stable")
        lane_, offset = lane_[order], offset[order]
        sequence_ = sequence[order].astype(np.int64)
        begins = np.flatnonzero(np.diff(lane_, prepend=-1))
        ends = np.append(begins[1:], lane_.size)
        is_next = np.diff(sequence_, prepend=0) == 1
        is_next[begins] = True
        is_run = np.logical_and.reduceat(is_next, begins)
        is_new = np.ones(lane_.size, dtype=np.bool_)
        for begin, end, is_plain in zip(
            begins.tolist(), ends.tolist(), is_run.tolist(), strict=True
        ):
            number = int(lane_[begin])
            seen = self.lanes.setdefault(self._names[number], IntervalSet())
            if is_plain and sequence_[begin] > seen.maximum:
                seen.add(int(sequence_[begin]), int(sequence_[end - 1]))
                continue
            below = self.known_below.get(number % _PARTITIONS, 0)
            here = slice(begin, end)
            is_new[here] = _note_each(seen, sequence_[here], offset[here], below, counts)
        self._new.append((lane_[is_new], sequence_[is_new], offset[is_new]))


def _note_each(
    seen: IntervalSet, sequence: Ints, offset: Ints, below: int, counts: AuditCounts
) -> list[bool]:
    """Take one lane's messages one by one; return which were new."""
    is_new = []
    for number, where in zip(sequence.tolist(), offset.tolist(), strict=True):
        is_late = number < seen.maximum
        is_there = bool(seen.add(number, number))
        is_new.append(not is_there)
        if not is_there:
            counts.reordered += is_late
        elif where < below:
            counts.reread += 1
        else:
            counts.duplicated += 1
    return is_new


def restore(
    journal: Path, source: str, begin: Mapping[int, int], block_bits: int = 0
) -> tuple[Received, bool]:
    """Return the state as the source's journal tells it, and whether there was any.

    `begin` says where to begin in a partition of which the journal knows nothing. Reads the whole
    journal: some 0.1 ms a second of the run.
    """
    received = Received(dict(begin), block_bits)
    is_restart = False
    try:
        for record, _ in read_source(journal, source):
            is_restart = True
            for name, runs in record.received.items():
                partition = int(name.rpartition(".")[2])
                seen = received.lanes.setdefault(name, IntervalSet())
                for first, last, _, last_offset in runs:
                    seen.add(first, last)
                    following = max(received.positions[partition], last_offset + 1)
                    received.positions[partition] = following
    except JournalError:
        return received, False
    received.known_below = {at: max(offset, 0) for at, offset in received.positions.items()}
    return received, is_restart


def _expired(partition: int, begin: int, end: int, at_ns: int) -> Event:
    fields = {"partition": partition, "from_offset": begin, "to_offset": end}
    return Event(EXPIRED_EVENT, at_ns, at_ns, fields)
