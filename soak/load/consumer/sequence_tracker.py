"""What a consumer has received: sequence intervals by producer stream, positions, and gaps in the offsets."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from soak.core.audit import (
    EXPIRED_EVENT,
    FINAL_POSITION_EVENT,
    OFFSET_GAP_EVENT,
    OFFSET_GAP_RESOLVED_EVENT,
)
from soak.core.errors import BrokerError
from soak.core.header import stream_name
from soak.core.model import Event, Span
from soak.core.ports import EARLIEST, Clock, Consumer
from soak.core.streams import IntervalSet, spans_by
from soak.store.journal.reader import read_source

LOG = logging.getLogger("soak.load.consumer.sequence_tracker")

Ints = NDArray[np.int64]

OffsetGap = tuple[int, int, int]
"""Partition, the first offset that is not there, and the next one that is."""

_PARTITIONS = 2**20  # more than a plan may have
_RETRY_RATIO = 10  # after a question in vain reads on ten times as long as that took


@dataclass(slots=True)
class AuditCounts:
    """What was odd in a batch."""

    duplicated: int = 0
    reordered: int = 0
    reread: int = 0
    is_new: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, dtype=np.bool_))
    """Of each message of ours, in order of arrival: it had not been received before."""


@dataclass(slots=True)
class SequenceTracker:
    """The audit's state; its size is bounded by lanes, disorder and holes, not by messages."""

    positions: dict[int, int]  # next offset by partition
    block_bits: int = 0  # of the broker; above 0 only a jump from block to block may be a hole
    streams: dict[str, IntervalSet] = field(default_factory=dict)
    _owners: dict[int, int] = field(default_factory=dict)  # instance and epoch, to a running number
    _names: dict[int, str] = field(default_factory=dict)  # of lanes, by owner number and partition
    _new: list[tuple[Ints, Ints, Ints]] = field(default_factory=list)
    _holes: dict[OffsetGap, bool] = field(
        default_factory=dict
    )  # True where recorded as unexplained
    _ask_again_ns: int = 0

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
        before = self._advance(partition[by_partition], offset[by_partition])
        if not is_ours.all():
            block, partition, offset = block[is_ours], partition[is_ours], offset[is_ours]
        if offset.size:
            stream_ = self._stream(block, partition)
            self._note_streams(stream_, block["sequence"], offset, before, counts)
        return counts

    def take_spans(self) -> dict[str, tuple[Span, ...]]:
        """Return the runs received since the last call, by lane."""
        taken, self._new = self._new, []
        if not taken:
            return {}
        stream_, sequence, offset = (np.concatenate(parts) for parts in zip(*taken, strict=True))
        found = spans_by(stream_, sequence, offset, self.block_bits)
        return {self._names[at]: runs for at, runs in found.items()}

    def take_events(self, consumer: Consumer, clock: Clock) -> list[Event]:
        """Return what became of holes in the offsets; one stays until the broker has answered."""
        events: list[Event] = []
        if not self._holes:
            return events
        now_ns, asked_ns = clock.wall_ns(), clock.mono_ns()
        if asked_ns < self._ask_again_ns:
            return self._unexplained(now_ns)
        try:
            bounds = consumer.log_bounds(sorted({partition for partition, *_ in self._holes}))
        except BrokerError as error:  # nothing was read meanwhile
            LOG.warning("holes_unexplained holes=%d error=%s", len(self._holes), error)
            self._ask_again_ns = asked_ns + (1 + _RETRY_RATIO) * (clock.mono_ns() - asked_ns)
            return self._unexplained(now_ns)
        holes, self._holes = self._holes, {}
        for hole, is_told in holes.items():
            partition, begin, end = hole
            if is_told:
                events.append(_offsets_event(OFFSET_GAP_RESOLVED_EVENT, hole, now_ns))
            gone = min(end, bounds[partition][0])
            if gone > begin:
                events.append(_offsets_event(EXPIRED_EVENT, (partition, begin, gone), now_ns))
        return events

    def final_events(self, consumer: Consumer, clock: Clock) -> list[Event]:
        """Return where reading ended in each partition, and what retention took from the unread."""
        self._ask_again_ns = 0
        events = self.take_events(consumer, clock)
        now_ns = clock.wall_ns()  # what is written from now on may be out of sight
        try:
            bounds = consumer.log_bounds(list(self.positions))
        except BrokerError as error:  # what is unread stays unknown
            LOG.warning("no_last_word error=%s", error)
            return events
        for partition, position in self.positions.items():
            low, high = bounds[partition]
            begin = max(position, 0)
            if low > begin:
                events.append(_offsets_event(EXPIRED_EVENT, (partition, begin, low), now_ns))
            fields = {"partition": partition, "position": begin, "log_end": high}
            events.append(Event(FINAL_POSITION_EVENT, now_ns, now_ns, fields))
        return events

    def restore(self, event: Event) -> None:
        """Take back a hole that an earlier self has told of, until it was explained."""
        if event.kind not in (OFFSET_GAP_EVENT, OFFSET_GAP_RESOLVED_EVENT):
            return
        partition, begin, end = (
            int(event.fields[key]) for key in ("partition", "from_offset", "to_offset")
        )
        if event.kind == OFFSET_GAP_EVENT:
            self._holes[partition, begin, end] = True
        else:
            self._holes.pop((partition, begin, end), None)

    def _unexplained(self, now_ns: int) -> list[Event]:
        new = [hole for hole, is_told in self._holes.items() if not is_told]
        self._holes = dict.fromkeys(self._holes, True)
        return [_offsets_event(OFFSET_GAP_EVENT, hole, now_ns) for hole in new]

    def _advance(self, partition: Ints, offset: Ints) -> dict[int, int]:
        """Move the positions and return the old ones; the arrays are sorted by partition."""
        begins = np.flatnonzero(np.diff(partition, prepend=-1))
        highest = np.maximum.reduceat(offset, begins)  # a lot may end with what is read again
        before: dict[int, int] = {}
        for at, last in zip(partition[begins].tolist(), highest.tolist(), strict=True):
            before[at] = max(self.positions.get(at, EARLIEST), 0)
            self.positions[at] = max(before[at], last + 1)
        following = np.empty_like(offset)
        following[1:] = offset[:-1] + 1
        following[begins] = list(before.values())
        # Where offsets have holes by nature, only a whole block can have gone between two of them.
        jumps = offset >> self.block_bits > following >> self.block_bits
        for at in np.flatnonzero(jumps).tolist():
            hole = int(partition[at]), int(following[at]), int(offset[at])
            self._holes.setdefault(hole, False)
        return before

    def _stream(self, block: NDArray[np.void], partition: Ints) -> Ints:
        """Return a number for each message's lane, and see that it has a name."""
        owner = block["instance"].astype(np.uint64) << np.uint64(32) | block["epoch"]
        owners, inverse = np.unique(owner, return_inverse=True)
        numbers = [self._owners.setdefault(key, len(self._owners)) for key in owners.tolist()]
        found: Ints = np.array(numbers, dtype=np.int64)[inverse] * _PARTITIONS + partition
        for at in set(found.tolist()) - self._names.keys():
            number, where = divmod(at, _PARTITIONS)
            key = next(key for key, known in self._owners.items() if known == number)
            self._names[at] = stream_name(key >> 32, key & 0xFFFFFFFF, where)
        return found

    def _note_streams(
        self,
        stream_: Ints,
        sequence: NDArray[np.uint64],
        offset: Ints,
        before: Mapping[int, int],
        counts: AuditCounts,
    ) -> None:
        order = np.argsort(stream_, kind="stable")
        stream_, offset = stream_[order], offset[order]
        sequence_ = sequence[order].astype(np.int64)
        begins = np.flatnonzero(np.diff(stream_, prepend=-1))
        ends = np.append(begins[1:], stream_.size)
        is_next = np.diff(sequence_, prepend=0) == 1
        is_next[begins] = True
        is_run = np.logical_and.reduceat(is_next, begins)
        is_new = np.ones(stream_.size, dtype=np.bool_)
        for begin, end, is_plain in zip(
            begins.tolist(), ends.tolist(), is_run.tolist(), strict=True
        ):
            number = int(stream_[begin])
            seen = self.streams.setdefault(self._names[number], IntervalSet())
            if is_plain and sequence_[begin] > seen.maximum:
                seen.add(int(sequence_[begin]), int(sequence_[end - 1]))
                continue
            below = before[number % _PARTITIONS]
            here = slice(begin, end)
            is_new[here] = _note_each(seen, sequence_[here], offset[here], below, counts)
        self._new.append((stream_[is_new], sequence_[is_new], offset[is_new]))
        counts.is_new = np.empty_like(is_new)
        counts.is_new[order] = is_new


def _note_each(
    seen: IntervalSet, sequence: Ints, offset: Ints, below: int, counts: AuditCounts
) -> list[bool]:
    """Take one lane's messages one by one; return which were new. Offsets below `below` were read before."""
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
        below = max(below, where + 1)
    return is_new


def restore_tracker(
    journal: Path, source: str, begin: Mapping[int, int], block_bits: int = 0
) -> tuple[SequenceTracker, bool]:
    """Return the state as the source's journal tells it, and whether there was any.

    `begin` says where to begin in a partition of which the journal knows nothing. Reads the whole
    journal: some 0.1 ms a second of the run.

    Raises:
        JournalError: it was written by a newer version.
    """
    received = SequenceTracker(dict(begin), block_bits)
    is_restart = False
    for record, _ in read_source(journal, source):
        is_restart = True
        for event in record.events:
            received.restore(event)
        for name, runs in record.received.items():
            partition = int(name.rpartition(".")[2])
            seen = received.streams.setdefault(name, IntervalSet())
            for first, last, _, last_offset in runs:
                seen.add(first, last)
                following = max(received.positions[partition], last_offset + 1)
                received.positions[partition] = following
    return received, is_restart


def _offsets_event(kind: str, hole: OffsetGap, at_ns: int) -> Event:
    partition, begin, end = hole
    fields = {"partition": partition, "from_offset": begin, "to_offset": end}
    return Event(kind, at_ns, at_ns, fields)
