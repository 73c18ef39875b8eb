"""One lane's books: what was sent, acknowledged and given up, and what each subscription received of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from soak.core.model import Column, Event, Record, Span
from soak.core.streams import (
    MAX_OFFSET,
    IntervalSet,
    Unsettled,
    as_piece,
    part_of_piece,
    possible_messages,
)
from soak.core.units import SECOND_NS


class StreamDelivery:
    """What one subscription received of one lane, and what it still owes."""

    __slots__ = ("_expired", "_unsettled", "highest", "received")

    def __init__(self) -> None:
        self.received = IntervalSet()
        self.highest = -1  # offset received
        self._unsettled = Unsettled()
        self._expired = IntervalSet()

    @property
    def cost(self) -> int:
        return len(self.received) + len(self._unsettled) + len(self._expired)

    def acknowledge(self, piece: Span) -> None:
        """Expect messages, unless they were received already."""
        if piece[0] > self.received.maximum:  # as nearly always
            self._unsettled.add(piece)
            return
        for first, last in self.received.missing(piece[0], piece[1]):
            self._unsettled.add(part_of_piece(piece, first, last))

    def receive(self, span: Span) -> int:
        """Take messages received; return how many of them had been received before."""
        if self._unsettled:
            self._unsettled.settle(span)
        self.highest = max(self.highest, span[3])
        return self.received.add(span[0], span[1])

    def expire(self, gone: IntervalSet) -> None:
        """Settle what lies in deleted offsets for certain, so that it takes no more room."""
        for first, last in self._unsettled.take_inside(gone):
            self._expired.add(first, last)

    def missing(self, gone: IntervalSet, hidden: IntervalSet) -> tuple[int, int, int]:
        """Return how many were acknowledged and not received: expired, unknown, lost.

        They expired in the offsets `gone`, and are unknown in those that are `hidden`. A message counts
        as lost only where it can lie in neither.
        """
        expired, unknown, lost = self._expired.minus(self.received).count, 0, 0
        for piece in self._unsettled:
            count = piece[1] - piece[0] + 1
            may_be_gone, room_gone = possible_messages(piece, gone)
            may_be_hidden, room_hidden = possible_messages(piece, hidden)
            either = IntervalSet([*may_be_gone, *may_be_hidden]).count
            piece_gone = min(may_be_gone.count, room_gone)
            piece_hidden = min(may_be_hidden.count, room_hidden, either - piece_gone)
            expired += piece_gone
            unknown += piece_hidden
            lost += count - piece_gone - piece_hidden
        return expired, unknown, lost


RECENT_NS = 2 * SECOND_NS
"""Records come in order of their second: one may be older than one before it, by less than this."""

WrittenSpans = tuple[int, Sequence[Span]]
"""When a record was written, and what it acknowledged."""


class ProducerStream:
    """Sequence numbers of one (instance, incarnation, partition)."""

    __slots__ = ("acknowledged", "failed", "readings", "recent", "sent_next")

    def __init__(self, subscriptions: int) -> None:
        self.acknowledged = IntervalSet()
        self.failed = IntervalSet()
        self.sent_next = 0
        self.recent: list[
            WrittenSpans
        ] = []  # they may be younger than a last word that comes after them
        self.readings = [StreamDelivery() for _ in range(subscriptions)]

    @property
    def cost(self) -> int:
        """Return how many intervals are kept."""
        own = len(self.acknowledged) + len(self.failed)
        return own + sum(reading.cost for reading in self.readings)

    def note_written(self, at_ns: int, spans: Sequence[Span]) -> None:
        """Remember what a record of `at_ns` acknowledged, for as long as an older last word may come."""
        oldest_ns = max([at_ns, *(seen_ns for seen_ns, _ in self.recent)]) - RECENT_NS
        self.recent.append((at_ns, spans))
        self.recent = [one for one in self.recent if one[0] >= oldest_ns]

    def acknowledge(self, span: Span) -> None:
        """Note an acknowledgement; one that comes twice counts once."""
        piece, known = as_piece(span), self.acknowledged
        is_new = span[0] > known.maximum
        parts = [span[:2]] if is_new else list(known.missing(span[0], span[1]))
        for first, last in parts:
            known.add(first, last)
            for reading in self.readings:
                reading.acknowledge(part_of_piece(piece, first, last))

    def unacknowledged(self, *, is_ended: bool) -> tuple[int, int]:
        """Return how many messages arrived unacknowledged, and of how many nobody can tell.

        Of a producer that was killed, what no record settles may have been acknowledged in the second
        that it did not live to record.
        """
        received = self.readings[0].received
        if len(self.readings) > 1:
            received = IntervalSet(pair for one in self.readings for pair in one.received)
        if is_ended:
            return received.minus(self.acknowledged).count, 0
        arrived = received.count - received.minus(self.failed).count
        recorded = IntervalSet([(0, self.sent_next - 1)] if self.sent_next else [])
        settled = IntervalSet([*self.acknowledged, *self.failed])
        unsure = IntervalSet([*recorded.minus(settled), *received.minus(settled)])
        return arrived, unsure.count


# --- What one subscription's consumer told of one partition's log: what was deleted, where it ended.


class PartitionLog:
    """Offsets that are out of the reader's sight, and why."""

    __slots__ = (
        "_final",
        "_gap_begin",
        "_is_read_on",
        "_late",
        "_unrecorded",
        "deleted",
        "explained",
        "unexplained",
    )

    def __init__(self) -> None:
        self.deleted = IntervalSet()  # by retention, before they were read
        self.unexplained = IntervalSet()  # did not come, when the broker could not say why
        self.explained = IntervalSet()  # of these, it has by now
        self._unrecorded = IntervalSet()
        self._late = IntervalSet()  # written after the reader's last look
        self._is_read_on = False  # beyond the last word: what is late after it tells nothing
        self._gap_begin: int | None = None
        self._final = (0, -1, 0)  # at_ns, position, log end

    @property
    def cost(self) -> int:
        """Return how many intervals are kept."""
        told = len(self.deleted) + len(self.unexplained) + len(self.explained)
        return told + len(self._unrecorded) + len(self._late)

    def end(self, at_ns: int, position: int, log_end: int) -> None:
        """Note a last word of the consumer; the newest counts, and only what was written after it is late."""
        word = at_ns, position, log_end
        if word > self._final:
            self._final, self._late, self._is_read_on = word, IntervalSet(), False

    def note_written(self, at_ns: int, first: int, last: int) -> None:
        """Note offsets acknowledged by a record of `at_ns`: beyond the last look they may be out of sight."""
        seen_ns, _, log_end = self._final
        if not self._is_read_on and 0 < seen_ns < at_ns and last >= log_end:
            self._late.add(max(first, log_end), last)

    def note_received(self, highest: int) -> None:
        """Note the highest offset received: a consumer that reads on has not said its last word."""
        if highest >= self._final[1] and not self._is_read_on:
            self._is_read_on, self._late = True, IntervalSet()

    def open_gap(self, begin: int) -> None:
        """Note that a record is missing: nobody knows what was received from offset `begin` on."""
        if self._gap_begin is None:
            self._gap_begin = begin

    def close_gap(self, offset: int) -> None:
        """Note that from this offset on it is known again."""
        if self._gap_begin is not None and offset > self._gap_begin:
            self._unrecorded.add(self._gap_begin, offset - 1)
        self._gap_begin = None

    def unknown(self, above: int) -> IntervalSet:
        """Return the offsets of which nobody can say whether they were received.

        They lie in gaps of the records or in holes that nobody explained, or the consumer had not come to
        them when it ended, or when we looked: its own last word counts, unless it read on after it; without
        one, all from `above` on, where what it received ends, is unread, not lost.
        """
        _, position, log_end = self._final
        found = IntervalSet([*self._unrecorded, *self.unexplained.minus(self.explained)])
        if position < above:
            found.add(above, MAX_OFFSET)
            return found
        for first, last in self._late:
            found.add(first, last)
        if log_end > position:
            found.add(position, log_end - 1)
        if self._gap_begin is not None and position > self._gap_begin:
            found.add(self._gap_begin, position - 1)
        return found


# --- What became of every message, judged from the journals alone.
# Per lane (instance, incarnation, partition) the acknowledged intervals of all records are settled against
# those that each subscription received. Fed in order of time, what is kept is disorder and what is under
# way, not the run: see docs/audit.md. Definitions:
# - lost: acknowledged, never received, and neither expired nor unknown;
# - expired: acknowledged, never received, and retention deleted it before the consumer came to it;
# - duplicated: the same message at two offsets; reread: the same offset again, after a restart of the
# consumer
# or where its client went back in the log;
# - reordered: received after a later message of its lane;
# - unknown: what a killed producer may have sent or not, because its last second was not recorded, what
# was acknowledged but lay unread in the log when the run ended or was written after the consumer's last
# look at it, what lay in a hole of the offsets of which the broker did not say why, and what a consumer
# may have received in a second whose record is missing or damaged;
# - received_unacked: received although its send was recorded as failed or was never acknowledged.
# Every subscription is owed every message: received, lost, expired, duplicated, reordered, reread and what
# is unknown of reading are sums over the subscriptions; all else counts messages once.

EXPIRED_EVENT = "expired"
"""A consumer's event: offsets [from_offset, to_offset) of `partition` were deleted before it read them."""

OFFSET_GAP_EVENT = "offset_gap"
"""A consumer's event: offsets [from_offset, to_offset) did not come, and the broker did not say why."""

OFFSET_GAP_RESOLVED_EVENT = "offset_gap_resolved"
"""A consumer's event: by now the broker has; what it deleted of them is an expired event of its own."""

FINAL_POSITION_EVENT = "final_position"
"""A consumer's event: it ended before offset `position` of `partition`, whose log ended at `log_end`."""

SEND_FAILED_EVENT = "send_failed"
"""A producer's event: the client gave up on the messages `first` to `last` of `lane`."""

AUDIT_EVENTS = frozenset(
    {
        EXPIRED_EVENT,
        OFFSET_GAP_EVENT,
        OFFSET_GAP_RESOLVED_EVENT,
        FINAL_POSITION_EVENT,
        SEND_FAILED_EVENT,
    }
)

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

MAX_COLUMNS = 256
"""So many different columns are remembered at once; each file of a journal brings its own."""

SubscriptionPartition = tuple[int, int]
"""Subscription and partition."""


class Audit:
    """Fed with every record once, in any order; in order of time it needs the least room.

    Only a consumer's last word must not come more than `RECENT_NS` after a record that is younger than it.
    """

    def __init__(self, subscriptions: int = 1) -> None:
        self._subscriptions = range(subscriptions)
        self._streams: dict[str, ProducerStream] = {}
        self._by_partition: dict[int, list[ProducerStream]] = {}
        self._count_columns = _CountColumns()
        self._sums = dict.fromkeys(_SENDING.values(), 0)
        self._counts = [dict.fromkeys(_READING.values(), 0) for _ in self._subscriptions]
        self._logs: dict[SubscriptionPartition, PartitionLog] = defaultdict(PartitionLog)
        self._with_gap: set[SubscriptionPartition] = set()
        self._ended: set[tuple[int, int]] = set()
        self._has_end = False  # a consumer has said its last word
        self._unplanned = 0

    def add(self, record: Record, columns: tuple[Column, ...], subscription: int = 0) -> None:
        """Take one record; the caller gives each (source, epoch, k) once.

        `subscription` is the one that a consumer reads for; a producer's records concern them all.
        """
        if subscription not in self._subscriptions:
            self._unplanned += sum(
                last - first + 1
                for spans in record.received.values()
                for first, last, _, _ in spans
            )
            return
        self._count(record, columns, subscription)
        for name, spans in record.acknowledged.items():
            stream = self._stream(name)
            for span in spans:
                stream.acknowledge(span)
            stream.note_written(record.at_ns, spans)
            for subscription_ in self._subscriptions if self._has_end else ():
                self._note_written((subscription_, _partition(name)), record.at_ns, spans)
        self._receive(record, subscription)
        if self._with_gap:
            self._close_gaps(record, subscription)
        for name, following in record.sent_next.items():
            stream = self._stream(name)
            stream.sent_next = max(stream.sent_next, following)
        for event in record.events:
            if event.kind in AUDIT_EVENTS:
                self._take(event, subscription)

    def ended(self, instance: int, epoch: int) -> None:
        """Say that this incarnation of a producer closed its journal on purpose: nothing is unknown."""
        self._ended.add((instance, epoch))

    def missed(self, subscription: int, partitions: Iterable[int]) -> None:
        """Say that a record of the consumer of these partitions is missing, before the next one is added.

        What it received in that time is unknown, not lost.
        """
        for partition in partitions if subscription in self._subscriptions else ():
            place = subscription, partition
            self._logs[place].open_gap(self._above(place))
            self._with_gap.add(place)

    def verdict(self, *, is_loss_known: bool = True) -> dict[str, int | None]:
        """Return the counts under the names of `summary.json`; with acks=0 `lost` is None."""
        acked = sum(stream.acknowledged.count for stream in self._streams.values())
        unacked, unsure = 0, 0
        for name, stream in self._streams.items():
            instance, epoch, _ = (int(number) for number in name.split("."))
            arrived, unknown = stream.unacknowledged(is_ended=(instance, epoch) in self._ended)
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
            **({"received_unplanned": self._unplanned} if self._unplanned else {}),
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
        streams = sum(stream.cost for stream in self._streams.values())
        return streams + sum(log.cost for log in self._logs.values())

    def _receive(self, record: Record, subscription: int) -> None:
        for name, spans in record.received.items():
            reading = self._stream(name).readings[subscription]
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
        if event.kind == SEND_FAILED_EVENT:
            failed = self._stream(str(event.fields["lane"])).failed
            failed.add(int(event.fields["first"]), int(event.fields["last"]))
            return
        partition = int(event.fields["partition"])
        log = self._logs[subscription, partition]
        streams = self._by_partition.get(partition, ())
        if event.kind == FINAL_POSITION_EVENT:
            log.end(event.at_ns, int(event.fields["position"]), int(event.fields["log_end"]))
            self._has_end = True
            for stream in streams:
                for at_ns, spans in stream.recent:
                    self._note_written((subscription, partition), at_ns, spans)
            return
        offsets = int(event.fields["from_offset"]), int(event.fields["to_offset"]) - 1
        if event.kind == EXPIRED_EVENT:
            log.deleted.add(*offsets)
            for stream in streams:
                stream.readings[subscription].expire(log.deleted)
        else:
            (log.unexplained if event.kind == OFFSET_GAP_EVENT else log.explained).add(*offsets)

    def _note_written(
        self, place: SubscriptionPartition, at_ns: int, spans: Sequence[Span]
    ) -> None:
        for _, _, first, last in spans if place in self._logs else ():
            self._logs[place].note_written(at_ns, first, last)

    def _note_received(self, place: SubscriptionPartition, highest: int) -> None:
        if place in self._logs:
            self._logs[place].note_received(highest)

    def _close_gaps(self, record: Record, subscription: int) -> None:
        lowest: dict[SubscriptionPartition, int] = {}
        for name, spans in record.received.items():
            place = subscription, _partition(name)
            for _, _, low, _ in spans:
                lowest[place] = min(low, lowest.get(place, low))
        for place in self._with_gap & lowest.keys():
            self._logs[place].close_gap(lowest[place])
            self._with_gap.discard(place)

    def _above(self, place: SubscriptionPartition) -> int:
        """Return the offset where what was received ends."""
        subscription, partition = place
        streams = self._by_partition.get(partition, ())
        return 1 + max((stream.readings[subscription].highest for stream in streams), default=-1)

    def _read(self, subscription: int) -> dict[str, int]:
        """Return the counts of one subscription."""
        received = expired = unknown = lost = 0
        for partition, streams in self._by_partition.items():
            place = subscription, partition
            log = self._logs[place]
            out_of_sight = log.unknown(self._above(place))
            for reading in (stream.readings[subscription] for stream in streams):
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

    def _stream(self, name: str) -> ProducerStream:
        stream = self._streams.get(name)
        if stream is None:
            stream = self._streams[name] = ProducerStream(len(self._subscriptions))
            self._by_partition.setdefault(_partition(name), []).append(stream)
        return stream


class _CountColumns:
    """Remembers where in a record the counts stand: columns are many, and change rarely."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[tuple[Column, ...], list[tuple[int, str]]]] = {}

    def of(self, columns: tuple[Column, ...]) -> list[tuple[int, str]]:
        """Return index and name of each count."""
        found = self._known.get(id(columns))
        if found is None:
            if len(self._known) >= MAX_COLUMNS:
                self._known.clear()
            names = {**_SENDING, **_READING}
            places = [
                (at, names[column.metric])
                for at, column in enumerate(columns)
                if column.metric in names
            ]
            found = self._known[id(columns)] = (columns, places)  # held, so that its id is its own
        return found[1]


def _partition(stream: str) -> int:
    return int(stream.rpartition(".")[2])
