"""What became of every message, judged from the journals alone.

Per lane (instance, incarnation, partition) the acknowledged intervals of all records are settled against
those that each subscription received. Fed in order of time, what is kept is disorder and what is under
way, not the run: see docs/audit.md. Definitions:

- lost: acknowledged, never received, and neither expired nor unknown;
- expired: acknowledged, never received, and retention deleted it before the consumer came to it;
- duplicated: the same message at two offsets; reread: the same offset again, after a restart of the consumer
  or where its client went back in the log;
- reordered: received after a later message of its lane;
- unknown: what a killed producer may have sent or not, because its last second was not recorded, what
  was acknowledged but lay unread in the log when the run ended or was written after the consumer's last
  look at it, what lay in a hole of the offsets of which the broker did not say why, and what a consumer
  may have received in a second whose record is missing or damaged;
- received_unacked: received although its send was recorded as failed or was never acknowledged.

Every subscription is owed every message: received, lost, expired, duplicated, reordered, reread and what
is unknown of reading are sums over the subscriptions; all else counts messages once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from soak.core.audit_lane import Lane
from soak.core.audit_log import ReadLog
from soak.core.model import Column, Event, Record, Span

EXPIRED_EVENT = "expired"
"""A consumer's event: offsets [from_offset, to_offset) of `partition` were deleted before it read them."""

HOLE_EVENT = "unexplained_hole"
"""A consumer's event: offsets [from_offset, to_offset) did not come, and the broker did not say why."""

EXPLAINED_EVENT = "explained_hole"
"""A consumer's event: by now the broker has; what it deleted of them is an expired event of its own."""

FINAL_EVENT = "final_position"
"""A consumer's event: it ended before offset `position` of `partition`, whose log ended at `log_end`."""

FAILED_EVENT = "send_failed"
"""A producer's event: the client gave up on the messages `first` to `last` of `lane`."""

AUDIT_EVENTS = frozenset({EXPIRED_EVENT, HOLE_EVENT, EXPLAINED_EVENT, FINAL_EVENT, FAILED_EVENT})

_SENDING = {
    "sent_messages": "sent",
    "failed_messages": "failed",
    "missed_messages": "missed_sends",
}
_READING = {
    "duplicated_messages": "duplicated",
    "reordered_messages": "reordered",
    "reread_messages": "reread",
}

MOST_COLUMNS = 256
"""So many different columns are remembered at once; each file of a journal brings its own."""

Place = tuple[int, int]
"""Subscription and partition."""


class Audit:
    """Fed with every record once, in any order; in order of time it needs the least room.

    Only a consumer's last word must not come more than `RECENT_NS` after a record that is younger than it.
    """

    def __init__(self, subscriptions: int = 1) -> None:
        self._subscriptions = range(subscriptions)
        self._lanes: dict[str, Lane] = {}
        self._by_partition: dict[int, list[Lane]] = {}
        self._count_columns = _CountColumns()
        self._sums = dict.fromkeys(_SENDING.values(), 0)
        self._counts = [dict.fromkeys(_READING.values(), 0) for _ in self._subscriptions]
        self._logs: dict[Place, ReadLog] = defaultdict(ReadLog)
        self._with_gap: set[Place] = set()
        self._ended: set[tuple[int, int]] = set()
        self._has_end = False  # a consumer has said its last word

    def add(self, record: Record, columns: tuple[Column, ...], subscription: int = 0) -> None:
        """Take one record; the caller gives each (source, inc, k) once.

        `subscription` is the one that a consumer reads for; a producer's records concern them all.
        """
        self._count(record, columns, subscription)
        for name, spans in record.acknowledged.items():
            lane = self._lane(name)
            for span in spans:
                lane.acknowledge(span)
            lane.note_written(record.at_ns, spans)
            for subscription_ in self._subscriptions if self._has_end else ():
                self._note_written((subscription_, _partition(name)), record.at_ns, spans)
        self._receive(record, subscription)
        if self._with_gap:
            self._close_gaps(record, subscription)
        for name, following in record.sent_next.items():
            lane = self._lane(name)
            lane.sent_next = max(lane.sent_next, following)
        for event in record.events:
            if event.kind in AUDIT_EVENTS:
                self._take(event, subscription)

    def ended(self, instance: int, inc: int) -> None:
        """Say that this incarnation of a producer closed its journal on purpose: nothing is unknown."""
        self._ended.add((instance, inc))

    def missed(self, subscription: int, partitions: Iterable[int]) -> None:
        """Say that a record of the consumer of these partitions is missing, before the next one is added.

        What it received in that time is unknown, not lost.
        """
        for partition in partitions:
            place = subscription, partition
            self._logs[place].open_gap(self._above(place))
            self._with_gap.add(place)

    def verdict(self, *, is_loss_known: bool = True) -> dict[str, int | None]:
        """Return the counts under the names of `summary.json`; with acks=0 `lost` is None."""
        acked = sum(lane.acknowledged.count for lane in self._lanes.values())
        unacked, unsure = 0, 0
        for name, lane in self._lanes.items():
            instance, inc, _ = (int(number) for number in name.split("."))
            arrived, unknown = lane.unacknowledged(is_ended=(instance, inc) in self._ended)
            unacked += arrived
            unsure += unknown
        each = [self._read(subscription) for subscription in self._subscriptions]
        total = {key: sum(counts[key] for counts in each) for key in each[0]}
        return {
            "sent": self._sums["sent"],
            "acked": acked,
            "failed": self._sums["failed"],
            "received": total["received"],
            "lost": total["lost"] if is_loss_known else None,
            "duplicated": total["duplicated"],
            "reordered": total["reordered"],
            "expired": total["expired"],
            "reread": total["reread"],
            "unknown": total["unknown"] + unsure,
            "received_unacked": unacked,
            "missed_sends": self._sums["missed_sends"],
        }

    def by_subscription(
        self, *, is_loss_known: bool = True
    ) -> tuple[Mapping[str, int | None], ...]:
        """Return what each subscription received and what it did not; see `verdict`."""
        each = [self._read(subscription) for subscription in self._subscriptions]
        return tuple(
            {**counts, "lost": counts["lost"] if is_loss_known else None} for counts in each
        )

    @property
    def cost(self) -> int:
        """Return how many intervals are kept, of 80 to 220 bytes each."""
        lanes = sum(lane.cost for lane in self._lanes.values())
        return lanes + sum(log.cost for log in self._logs.values())

    def _receive(self, record: Record, subscription: int) -> None:
        for name, spans in record.received.items():
            reading = self._lane(name).readings[subscription]
            for span in spans:
                self._counts[subscription]["reread"] += reading.receive(span)
            if self._has_end:
                self._note_received((subscription, _partition(name)), reading.highest)

    def _count(self, record: Record, columns: tuple[Column, ...], subscription: int) -> None:
        for at, count in self._count_columns.of(columns):
            value = record.values[at]
            if value == value:  # noqa: PLR0124  # NaN: not measured
                counts = self._sums if count in self._sums else self._counts[subscription]
                counts[count] += int(value)

    def _take(self, event: Event, subscription: int) -> None:
        if event.kind == FAILED_EVENT:
            failed = self._lane(str(event.fields["lane"])).failed
            failed.add(int(event.fields["first"]), int(event.fields["last"]))
            return
        partition = int(event.fields["partition"])
        log = self._logs[subscription, partition]
        lanes = self._by_partition.get(partition, ())
        if event.kind == FINAL_EVENT:
            log.end(event.at_ns, int(event.fields["position"]), int(event.fields["log_end"]))
            self._has_end = True
            for lane in lanes:
                for at_ns, spans in lane.recent:
                    self._note_written((subscription, partition), at_ns, spans)
            return
        offsets = int(event.fields["from_offset"]), int(event.fields["to_offset"]) - 1
        if event.kind == EXPIRED_EVENT:
            log.deleted.add(*offsets)
            for lane in lanes:
                lane.readings[subscription].expire(log.deleted)
        else:
            (log.unexplained if event.kind == HOLE_EVENT else log.explained).add(*offsets)

    def _note_written(self, place: Place, at_ns: int, spans: Sequence[Span]) -> None:
        for _, _, first, last in spans if place in self._logs else ():
            self._logs[place].note_written(at_ns, first, last)

    def _note_received(self, place: Place, highest: int) -> None:
        if place in self._logs:
            self._logs[place].note_received(highest)

    def _close_gaps(self, record: Record, subscription: int) -> None:
        lowest: dict[Place, int] = {}
        for name, spans in record.received.items():
            place = subscription, _partition(name)
            for _, _, low, _ in spans:
                lowest[place] = min(low, lowest.get(place, low))
        for place in self._with_gap & lowest.keys():
            self._logs[place].close_gap(lowest[place])
            self._with_gap.discard(place)

    def _above(self, place: Place) -> int:
        """Return the offset where what was received ends."""
        subscription, partition = place
        lanes = self._by_partition.get(partition, ())
        return 1 + max((lane.readings[subscription].highest for lane in lanes), default=-1)

    def _read(self, subscription: int) -> dict[str, int]:
        """Return the counts of one subscription."""
        received = expired = unknown = lost = 0
        for partition, lanes in self._by_partition.items():
            place = subscription, partition
            log = self._logs[place]
            out_of_sight = log.unknown(self._above(place))
            for reading in (lane.readings[subscription] for lane in lanes):
                received += reading.received.count
                missing = reading.missing(log.deleted, out_of_sight)
                expired += missing[0]
                unknown += missing[1]
                lost += missing[2]
        return {
            "received": received,
            "lost": lost,
            **self._counts[subscription],
            "expired": expired,
            "unknown": unknown,
        }

    def _lane(self, name: str) -> Lane:
        lane = self._lanes.get(name)
        if lane is None:
            lane = self._lanes[name] = Lane(len(self._subscriptions))
            self._by_partition.setdefault(_partition(name), []).append(lane)
        return lane


class _CountColumns:
    """Remembers where in a record the counts stand: columns are many, and change rarely."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[tuple[Column, ...], list[tuple[int, str]]]] = {}

    def of(self, columns: tuple[Column, ...]) -> list[tuple[int, str]]:
        """Return index and name of each count."""
        found = self._known.get(id(columns))
        if found is None:
            if len(self._known) >= MOST_COLUMNS:
                self._known.clear()
            names = {**_SENDING, **_READING}
            places = [
                (at, names[column.metric])
                for at, column in enumerate(columns)
                if column.metric in names
            ]
            found = self._known[id(columns)] = (columns, places)  # held, so that its id is its own
        return found[1]


def _partition(lane: str) -> int:
    return int(lane.rpartition(".")[2])
