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

LOG = logging.getLogger(__name__)

Ints = NDArray[np.int64]

OffsetGap = tuple[int, int, int]
"""Partition, the first missing offset, and the next offset that exists."""

MAX_PRODUCERS = 20_000
"""Clients and epochs of a process: far more than a run has. Others may write any header to its topic."""
_PARTITIONS = 2**20  # more than a plan may have
_RETRY_RATIO = 10  # a failed request is repeated after ten times as long as it took


@dataclass(slots=True)
class SequenceCounts:
    """Messages of a batch that were not received once and in order."""

    duplicated: int = 0
    reordered: int = 0
    reread: int = 0
    is_new: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, dtype=np.bool_))
    """For each message of this run, in order of arrival: whether it is received for the first time."""


@dataclass(slots=True)
class SequenceTracker:
    """The state of the audit; its size grows with streams, disorder and gaps, not with messages."""

    positions: dict[int, int]  # next offset by partition
    block_bits: int = 0  # of the broker; above 0 only a jump from block to block may be a gap
    own: frozenset[int] = frozenset()  # instances of the clients that the plan has on this host
    streams: dict[str, IntervalSet] = field(default_factory=dict)
    _owners: dict[int, int] = field(default_factory=dict)  # running number by instance and epoch
    _owner_keys: list[int] = field(default_factory=list)  # the same, by number
    _own_count: int = 0  # of them: of own clients
    _refused: int = 0  # producers in batches, as often as they came
    _names: dict[int, str] = field(
        default_factory=dict
    )  # of streams, by owner number and partition
    _new: list[tuple[Ints, Ints, Ints]] = field(default_factory=list)
    _gaps: dict[OffsetGap, bool] = field(default_factory=dict)  # True where an event was recorded
    _retry_ns: int = 0

    def add(
        self,
        block: NDArray[np.void],
        is_ours: NDArray[np.bool_],
        partition: Ints,
        offset: Ints,
    ) -> SequenceCounts:
        """Add a batch in order of arrival; the rows of a partition are in order of offset."""
        counts = SequenceCounts()
        if offset.size == 0:
            return counts
        by_partition = np.argsort(partition, kind="stable")
        before = self._advance(partition[by_partition], offset[by_partition])
        if not is_ours.all():
            block, partition, offset = block[is_ours], partition[is_ours], offset[is_ours]
        if offset.size:
            stream = self._stream_numbers(block, partition)
            self._add_to_streams(stream, block["sequence"], offset, before, counts)
        return counts

    def admitted(self, block: NDArray[np.void], is_ours: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return which messages of a batch are of this run, without those of too many new producers.

        Clients of the plan have room of their own: however many others there are, one may restart.
        """
        if len(self._owner_keys) + is_ours.size <= MAX_PRODUCERS or not is_ours.any():
            return is_ours
        owner = _owner_of(block)
        new = [key for key in np.unique(owner[is_ours]).tolist() if key not in self._owners]
        own = [key for key in new if key >> 32 in self.own]
        others = [key for key in new if key >> 32 not in self.own]
        known_others = len(self._owner_keys) - self._own_count
        surplus = [
            *own[max(0, MAX_PRODUCERS - self._own_count) :],
            *others[max(0, MAX_PRODUCERS - known_others) :],
        ]
        if not surplus:
            return is_ours
        self._refuse(len(surplus))
        found: NDArray[np.bool_] = is_ours & ~np.isin(owner, surplus)
        return found

    def _refuse(self, count: int) -> None:
        before, self._refused = self._refused, self._refused + count
        if before.bit_length() < self._refused.bit_length():  # at 1, 2, 4, 8 ...
            known = len(self._owner_keys)
            LOG.warning("producers_refused known=%d refused=%d", known, self._refused)

    def take_spans(self) -> dict[str, tuple[Span, ...]]:
        """Return the spans received since the last call, by producer stream."""
        taken, self._new = self._new, []
        if not taken:
            return {}
        stream, sequence, offset = (np.concatenate(parts) for parts in zip(*taken, strict=True))
        found = spans_by(stream, sequence, offset, self.block_bits)
        return {self._names[at]: spans for at, spans in found.items()}

    def take_events(self, consumer: Consumer, clock: Clock) -> list[Event]:
        """Return events about gaps: deleted by retention, or unresolved while the broker does not answer."""
        events: list[Event] = []
        if not self._gaps:
            return events
        now_ns, asked_ns = clock.wall_ns(), clock.mono_ns()
        if asked_ns < self._retry_ns:
            return self._unresolved(now_ns)
        try:
            bounds = consumer.log_bounds(sorted({partition for partition, *_ in self._gaps}))
        except BrokerError as error:  # the request blocked the consumer
            LOG.warning("offset_gaps_unresolved gaps=%d error=%s", len(self._gaps), error)
            self._retry_ns = asked_ns + (1 + _RETRY_RATIO) * (clock.mono_ns() - asked_ns)
            return self._unresolved(now_ns)
        gaps, self._gaps = self._gaps, {}
        for gap, is_recorded in gaps.items():
            partition, begin, end = gap
            if is_recorded:
                events.append(_offsets_event(OFFSET_GAP_RESOLVED_EVENT, gap, now_ns))
            expired_end = min(end, bounds[partition][0])
            if expired_end > begin:
                expired = (partition, begin, expired_end)
                events.append(_offsets_event(EXPIRED_EVENT, expired, now_ns))
        return events

    def final_events(self, consumer: Consumer, clock: Clock) -> list[Event]:
        """Return the final position in each partition, and the unread offsets that retention deleted."""
        self._retry_ns = 0
        events = self.take_events(consumer, clock)
        now_ns = clock.wall_ns()  # before the request: messages written later are not covered
        try:
            bounds = consumer.log_bounds(list(self.positions))
        except BrokerError as error:
            LOG.warning("final_positions_unknown error=%s", error)
            return events
        for partition, position in self.positions.items():
            low, high = bounds[partition]
            begin = max(position, 0)
            if low > begin:
                events.append(_offsets_event(EXPIRED_EVENT, (partition, begin, low), now_ns))
            fields = {"partition": partition, "position": begin, "log_end": high}
            events.append(Event(FINAL_POSITION_EVENT, now_ns, now_ns, fields))
        return events

    def restore_gap(self, event: Event) -> None:
        """Restore a gap that an earlier process recorded, until its event says that it is resolved."""
        if event.kind not in (OFFSET_GAP_EVENT, OFFSET_GAP_RESOLVED_EVENT):
            return
        partition, begin, end = (
            int(event.fields[key]) for key in ("partition", "from_offset", "to_offset")
        )
        if event.kind == OFFSET_GAP_EVENT:
            self._gaps[partition, begin, end] = True
        else:
            self._gaps.pop((partition, begin, end), None)

    def _unresolved(self, now_ns: int) -> list[Event]:
        new = [gap for gap, is_recorded in self._gaps.items() if not is_recorded]
        self._gaps = dict.fromkeys(self._gaps, True)
        return [_offsets_event(OFFSET_GAP_EVENT, gap, now_ns) for gap in new]

    def _advance(self, partition: Ints, offset: Ints) -> dict[int, int]:
        """Advance the positions and return the old ones; the arrays are sorted by partition."""
        begins = np.flatnonzero(np.diff(partition, prepend=-1))
        highest = np.maximum.reduceat(offset, begins)  # the last offset may be of a reread message
        before: dict[int, int] = {}
        for at, last in zip(partition[begins].tolist(), highest.tolist(), strict=True):
            before[at] = max(self.positions.get(at, EARLIEST), 0)
            self.positions[at] = max(before[at], last + 1)
        expected = np.empty_like(offset)
        expected[1:] = offset[:-1] + 1
        expected[begins] = list(before.values())
        # Where offsets are not contiguous by nature, only a whole block can be missing.
        is_gap = offset >> self.block_bits > expected >> self.block_bits
        for at in np.flatnonzero(is_gap).tolist():
            gap = int(partition[at]), int(expected[at]), int(offset[at])
            self._gaps.setdefault(gap, False)
        return before

    def _stream_numbers(self, block: NDArray[np.void], partition: Ints) -> Ints:
        """Return the running number of each message's stream; new streams get a name."""
        owners, inverse = np.unique(_owner_of(block), return_inverse=True)
        numbers = list(map(self._number_of, owners.tolist()))
        found: Ints = np.array(numbers, dtype=np.int64)[inverse] * _PARTITIONS + partition
        new = [at for at in set(found.tolist()) if at not in self._names]  # `-` reads all names
        for at in new:
            number, its_partition = divmod(at, _PARTITIONS)
            key = self._owner_keys[number]
            self._names[at] = stream_name(key >> 32, key & 0xFFFFFFFF, its_partition)
        return found

    def _number_of(self, owner: int) -> int:
        number = self._owners.setdefault(owner, len(self._owner_keys))
        if number == len(self._owner_keys):
            self._owner_keys.append(owner)
            self._own_count += owner >> 32 in self.own
        return number

    def _add_to_streams(
        self,
        stream: Ints,
        sequence: NDArray[np.uint64],
        offset: Ints,
        before: Mapping[int, int],
        counts: SequenceCounts,
    ) -> None:
        order = np.argsort(stream, kind="stable")
        stream, offset = stream[order], offset[order]
        sequence_ = sequence[order].astype(np.int64)
        begins = np.flatnonzero(np.diff(stream, prepend=-1))
        ends = np.append(begins[1:], stream.size)
        is_next = np.diff(sequence_, prepend=0) == 1
        is_next[begins] = True
        is_contiguous = np.logical_and.reduceat(is_next, begins)
        is_new = np.ones(stream.size, dtype=np.bool_)
        for begin, end, is_plain in zip(
            begins.tolist(), ends.tolist(), is_contiguous.tolist(), strict=True
        ):
            number = int(stream[begin])
            seen = self.streams.setdefault(self._names[number], IntervalSet())
            if is_plain and sequence_[begin] > seen.maximum:
                seen.add(int(sequence_[begin]), int(sequence_[end - 1]))
                continue
            position = before[number % _PARTITIONS]
            rows = slice(begin, end)
            is_new[rows] = _add_each(seen, sequence_[rows], offset[rows], position, counts)
        self._new.append((stream[is_new], sequence_[is_new], offset[is_new]))
        counts.is_new = np.empty_like(is_new)
        counts.is_new[order] = is_new


def _owner_of(block: NDArray[np.void]) -> NDArray[np.uint64]:
    owner: NDArray[np.uint64] = (
        block["instance"].astype(np.uint64) << np.uint64(32) | block["epoch"]
    )
    return owner


def _add_each(
    seen: IntervalSet, sequence: Ints, offset: Ints, position: int, counts: SequenceCounts
) -> list[bool]:
    """Add messages of one stream one by one; return which are new. Offsets below `position` are reread."""
    is_new = []
    for number, at in zip(sequence.tolist(), offset.tolist(), strict=True):
        is_late = number < seen.maximum
        is_known = bool(seen.add(number, number))
        is_new.append(not is_known)
        if not is_known:
            counts.reordered += is_late
        elif at < position:
            counts.reread += 1
        else:
            counts.duplicated += 1
        position = max(position, at + 1)
    return is_new


def restore_tracker(
    journal: Path,
    source: str,
    start_offsets: Mapping[int, int],
    block_bits: int = 0,
    own: frozenset[int] = frozenset(),
) -> tuple[SequenceTracker, bool]:
    """Return the state that a source's journal holds, and whether there is a journal.

    `start_offsets` holds for partitions of which the journal says nothing. Reads the whole journal: about
    0.1 ms for a second of the run.

    Raises:
        JournalError: it was written by a newer version.
    """
    tracker = SequenceTracker(dict(start_offsets), block_bits, own)
    is_restart = False
    for record, _ in read_source(journal, source):
        is_restart = True
        for event in record.events:
            tracker.restore_gap(event)
        for name, spans in record.received.items():
            partition = int(name.rpartition(".")[2])
            seen = tracker.streams.setdefault(name, IntervalSet())
            for first, last, _, last_offset in spans:
                seen.add(first, last)
                position = max(tracker.positions[partition], last_offset + 1)
                tracker.positions[partition] = position
    return tracker, is_restart


def _offsets_event(kind: str, gap: OffsetGap, at_ns: int) -> Event:
    partition, begin, end = gap
    fields = {"partition": partition, "from_offset": begin, "to_offset": end}
    return Event(kind, at_ns, at_ns, fields)
