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
from soak.core.lanes import IntervalSet, spans
from soak.core.model import Event, Span
from soak.core.ports import Clock, Consumer
from soak.store.journal_reader import read_source

EARLIEST = -2
"""Position of a partition from which nothing has been received yet."""
LATEST = -1
"""The same where what was there before the run is not ours to read."""

Ints = NDArray[np.int64]


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
    lanes: dict[str, IntervalSet] = field(default_factory=dict)
    known_below: dict[int, int] = field(default_factory=dict)  # offsets recorded by an earlier self
    _new: list[tuple[str, Ints, Ints]] = field(default_factory=list)
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
        for at in np.unique(partition):
            here = partition == at
            self._advance(int(at), offset[here])
            ours = here & is_ours
            if not ours.any():
                continue
            rows, offsets = block[ours], offset[ours]
            owner = rows["instance"].astype(np.uint64) << np.uint64(32) | rows["inc"]
            for key in np.unique(owner):
                mine = owner == key
                name = lane(int(key) >> 32, int(key) & 0xFFFFFFFF, int(at))
                sequence = rows["sequence"][mine].astype(np.int64)
                self._note_lane(name, sequence, offsets[mine], int(at), counts)
        return counts

    def take_spans(self) -> dict[str, tuple[Span, ...]]:
        """Return the runs received since the last call, by lane."""
        taken, self._new = self._new, []
        by_lane: dict[str, list[tuple[Ints, Ints]]] = {}
        for name, sequence, offset in taken:
            by_lane.setdefault(name, []).append((sequence, offset))
        return {
            name: spans(
                np.concatenate([sequence for sequence, _ in parts]),
                np.concatenate([offset for _, offset in parts]),
            )
            for name, parts in by_lane.items()
        }

    def take_events(self, consumer: Consumer, clock: Clock) -> list[Event]:
        """Return one event a hole that retention made; a hole stays until the broker has answered."""
        events: list[Event] = []
        bounds: dict[int, int] = {}
        holes, self._holes = self._holes, []
        for at, (partition, begin, end) in enumerate(holes):
            try:
                if partition not in bounds:
                    bounds[partition], _ = consumer.log_bounds(partition)
            except (
                BrokerError
            ):  # it does not answer now: the rest is asked for with the next second
                self._holes = holes[at:]
                break
            gone = min(end, bounds[partition])
            if gone > begin:
                events.append(_expired(partition, begin, gone, clock.wall_ns()))
        return events

    def final_events(self, consumer: Consumer, clock: Clock) -> list[Event]:
        """Return where reading ended in each partition, and what retention took from the unread."""
        events = self.take_events(consumer, clock)
        for partition, position in self.positions.items():
            try:
                low, high = consumer.log_bounds(partition)
            except BrokerError:  # nor would it answer for the others: what is unread stays unknown
                break
            now_ns, begin = clock.wall_ns(), max(position, 0)
            if low > begin:
                events.append(_expired(partition, begin, low, now_ns))
            fields = {"partition": partition, "position": begin, "log_end": high}
            events.append(Event(FINAL_EVENT, now_ns, now_ns, fields))
        return events

    def _advance(self, partition: int, offset: Ints) -> None:
        position = self.positions.get(partition, EARLIEST)
        expected = int(offset[0]) if position == LATEST else max(position, 0)
        jumps = np.flatnonzero(np.diff(offset, prepend=expected - 1) > 1)
        for at in jumps:
            begin = expected if at == 0 else int(offset[at - 1]) + 1
            self._holes.append((partition, begin, int(offset[at])))
        self.positions[partition] = max(expected, int(offset[-1]) + 1)

    def _note_lane(
        self, name: str, sequence: Ints, offset: Ints, partition: int, counts: AuditCounts
    ) -> None:
        seen = self.lanes.setdefault(name, IntervalSet())
        is_plain = int(sequence[0]) > seen.maximum and (np.diff(sequence) > 0).all()
        if is_plain:
            for first, last, _, _ in spans(sequence, offset):
                seen.add(first, last)
            self._new.append((name, sequence, offset))
            return
        below = self.known_below.get(partition, 0)
        is_new = np.zeros(sequence.size, dtype=np.bool_)
        for at, number in enumerate(sequence.tolist()):
            is_late = number < seen.maximum
            if seen.add(number, number):
                if offset[at] < below:
                    counts.reread += 1
                else:
                    counts.duplicated += 1
                continue
            is_new[at] = True
            counts.reordered += is_late
        self._new.append((name, sequence[is_new], offset[is_new]))


def restore(journal: Path, source: str, begin: Mapping[int, int]) -> tuple[Received, bool]:
    """Return the state as the source's journal tells it, and whether there was any.

    `begin` says where to begin in a partition of which the journal knows nothing. Reads the whole
    journal: some 0.1 ms a second of the run.
    """
    received = Received(dict(begin))
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
