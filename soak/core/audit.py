"""What became of every message, judged from the journals alone.

Per lane (instance, incarnation, partition) the acknowledged and the received sequence intervals of all
records are merged. Definitions:

- lost: acknowledged, never received, and not expired;
- expired: acknowledged, never received, and retention deleted it before the consumer came to it;
- duplicated: the same message at two offsets; reread: the same offset again after a restart of the consumer;
- reordered: received after a later message of its lane;
- unknown: what a killed producer may have sent or not, because its last second was not recorded, and
  what was acknowledged but lay unread in the log when the run ended;
- received_unacked: received although its send was recorded as failed or was never acknowledged.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from soak.core.lanes import IntervalSet
from soak.core.model import Column, Record, Span

EXPIRED_EVENT = "expired"
"""A consumer's event: offsets [from_offset, to_offset) of `partition` were deleted before it read them."""

FINAL_EVENT = "final_position"
"""A consumer's event: it ended before offset `position` of `partition`, whose log ended at `log_end`."""

FAILED_EVENT = "send_failed"
"""A producer's event: the client gave up on the messages `first` to `last` of `lane`."""

_SUMS = {
    "sent_messages": "sent",
    "failed_messages": "failed",
    "missed_messages": "missed_sends",
    "duplicated_messages": "duplicated",
    "reordered_messages": "reordered",
    "reread_messages": "reread",
}


_NO_END = 2**62

AUDIT_METRICS = tuple(_SUMS)
AUDIT_EVENTS = frozenset({EXPIRED_EVENT, FINAL_EVENT, FAILED_EVENT})
"""What of a record the audit reads beside its intervals."""


@dataclass(slots=True)
class _Lane:
    acknowledged: list[Span] = field(default_factory=list)
    received: IntervalSet = field(default_factory=IntervalSet)
    failed: IntervalSet = field(default_factory=IntervalSet)
    sent_next: int = 0


class Audit:
    """Fed with every record once, in any order; memory is bounded by seconds and disorder."""

    def __init__(self) -> None:
        self._lanes: dict[str, _Lane] = {}
        self._totals = dict.fromkeys(_SUMS.values(), 0)
        self._expired: dict[int, IntervalSet] = {}
        self._highest: dict[int, int] = {}  # offset received, by partition
        self._final: dict[int, tuple[int, int, int]] = {}  # at_ns, position, log end
        self._ended: set[tuple[int, int]] = set()

    def add(self, record: Record, columns: tuple[Column, ...]) -> None:
        """Take one record; the caller gives each (source, inc, k) once."""
        for column, value in zip(columns, record.values, strict=True):
            total = _SUMS.get(column.metric)
            if total is not None and value == value:  # noqa: PLR0124  # NaN: not measured
                self._totals[total] += int(value)
        for lane, spans in record.acknowledged.items():
            self._lane(lane).acknowledged.extend(spans)
        for lane, spans in record.received.items():
            seen = self._lane(lane).received
            self._totals["reread"] += sum(seen.add(first, last) for first, last, _, _ in spans)
            partition = _partition(lane)
            highest = max((offset for _, _, _, offset in spans), default=-1)
            self._highest[partition] = max(self._highest.get(partition, -1), highest)
        for lane, following in record.sent_next.items():
            known = self._lane(lane)
            known.sent_next = max(known.sent_next, following)
        for event in record.events:
            if event.kind == EXPIRED_EVENT:
                begin, end = int(event.fields["from_offset"]), int(event.fields["to_offset"])
                gone = self._expired.setdefault(int(event.fields["partition"]), IntervalSet())
                gone.add(begin, end - 1)
            elif event.kind == FINAL_EVENT:
                partition = int(event.fields["partition"])
                position, log_end = int(event.fields["position"]), int(event.fields["log_end"])
                newest = (event.at_ns, position, log_end)
                self._final[partition] = max(newest, self._final.get(partition, newest))
            elif event.kind == FAILED_EVENT:
                failed = self._lane(str(event.fields["lane"])).failed
                failed.add(int(event.fields["first"]), int(event.fields["last"]))

    def ended(self, instance: int, inc: int) -> None:
        """Say that this incarnation of a producer closed its journal on purpose: nothing is unknown."""
        self._ended.add((instance, inc))

    def verdict(self, *, is_loss_known: bool = True) -> dict[str, int | None]:
        """Return the counts under the names of `summary.json`; with acks=0 `lost` is None."""
        counts = dict.fromkeys(("acked", "received", "lost", "expired", "unknown"), 0)
        unacked = 0
        for name, lane in self._lanes.items():
            instance, inc, partition = (int(part) for part in name.split("."))
            left = self._unread(partition)
            acknowledged = IntervalSet((first, last) for first, last, _, _ in lane.acknowledged)
            counts["acked"] += acknowledged.count
            counts["received"] += lane.received.count
            for first, last in acknowledged.minus(lane.received):
                expired = _hits(lane, self._expired.get(partition), first, last)
                unread = _hits(lane, left, first, last)
                counts["expired"] += expired
                counts["unknown"] += unread
                counts["lost"] += max(0, last - first + 1 - expired - unread)
            surplus = lane.received.minus(acknowledged).count
            if (instance, inc) in self._ended:
                unacked += surplus
                continue
            # Killed: sent but in no record as acknowledged, or received though in no record as sent.
            recorded = IntervalSet([(0, lane.sent_next - 1)] if lane.sent_next else [])
            settled = IntervalSet([*acknowledged, *lane.failed])
            unacked += lane.received.count - lane.received.minus(lane.failed).count
            unsure = IntervalSet([*recorded.minus(settled), *lane.received.minus(settled)])
            counts["unknown"] += unsure.count
        lost = counts["lost"] if is_loss_known else None
        return {
            "sent": self._totals["sent"],
            "acked": counts["acked"],
            "failed": self._totals["failed"],
            "received": counts["received"],
            "lost": lost,
            "duplicated": self._totals["duplicated"],
            "reordered": self._totals["reordered"],
            "expired": counts["expired"],
            "reread": self._totals["reread"],
            "unknown": counts["unknown"],
            "received_unacked": unacked,
            "missed_sends": self._totals["missed_sends"],
        }

    def _unread(self, partition: int) -> IntervalSet:
        """Return the offsets that the consumer had not come to when it ended, or when we looked.

        Its own last word counts, unless it read on after it; without one, all that lies above what it
        received is unread, not lost.
        """
        above = self._highest.get(partition, -1) + 1
        _, position, log_end = self._final.get(partition, (0, -1, 0))
        if position >= above:
            return IntervalSet([(position, log_end - 1)] if log_end > position else [])
        return IntervalSet([(above, _NO_END)])

    def _lane(self, name: str) -> _Lane:
        return self._lanes.setdefault(name, _Lane())


def _partition(lane: str) -> int:
    return int(lane.rpartition(".")[2])


def _hits(lane: _Lane, offsets: IntervalSet | None, first: int, last: int) -> int:
    """Count the acknowledged messages of [first, last] whose offsets lie in a set of offsets."""
    if offsets is None:
        return 0
    total = 0
    for begin, end, offset, end_offset in lane.acknowledged:
        low, high = max(begin, first), min(end, last)
        if low <= high and offset >= 0:  # below 0: the cluster did not say where it lies
            count = high - low + 1
            total += _inside(offsets, low - begin + offset, high - end + end_offset, count)
    return total


def _inside(gone: IntervalSet, low_offset: int, high_offset: int, count: int) -> int:
    """Count how many of `count` messages between two offsets lie in `gone`; exact when they are dense.

    Where other producers write between, offsets are spread: the share of the span that is gone is taken.
    """
    span = high_offset - low_offset + 1
    hit = sum(max(0, min(high_offset, last) - max(low_offset, first) + 1) for first, last in gone)
    return count if hit >= span else round(count * hit / span)
