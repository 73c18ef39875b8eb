"""The audit: what became of every message, computed from the journals alone.

For each producer stream (instance, epoch, partition) the acknowledged sequence numbers of all records are
compared with those that each subscription received. When records come in order of time, memory holds only
disorder and messages in flight, not the run: see docs/explanation/what-became-of-messages.md. Definitions:

- lost: acknowledged, never received, and neither expired nor unknown;
- expired: acknowledged, never received, and deleted by retention before the consumer reached it;
- duplicated: the same message at two offsets;
- reread: the same offset again, after a restart of the consumer or when its client went back in the log;
- reordered: received after a later message of its stream;
- unknown: a killed producer may have sent it, but its last interval was not recorded; or it was acknowledged
  but still unread when the run ended; or written after the consumer last checked; or in an offset gap that
  the broker does not explain; or a consumer may have received it in an interval whose record is missing or
  damaged;
- received_unacked: received although its send was recorded as failed or was never acknowledged;
- received_unplanned: received by a consumer whose subscription is not in the plan.

Every subscription should receive every message: received, lost, expired, duplicated, reordered, reread and
the unknown messages of consumers are sums over the subscriptions; all other counts count a message once.
"""

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
    """The messages of one producer stream that one subscription received, and those still outstanding."""

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

    def expire(self, deleted: IntervalSet) -> None:
        """Count outstanding messages at offsets that are certainly deleted as expired."""
        for first, last in self._unsettled.take_inside(deleted):
            self._expired.add(first, last)

    def missing(self, deleted: IntervalSet, unseen: IntervalSet) -> tuple[int, int, int]:
        """Return how many messages were acknowledged and not received: expired, unknown, lost.

        A message counts as expired when it may be at a deleted offset, as unknown when it may be at an
        offset that the consumer did not see, and as lost only when it can be at neither.
        """
        expired, unknown, lost = self._expired.minus(self.received).count, 0, 0
        for piece in self._unsettled:
            count = piece[1] - piece[0] + 1
            may_be_deleted, room_deleted = possible_messages(piece, deleted)
            may_be_unseen, room_unseen = possible_messages(piece, unseen)
            either = IntervalSet([*may_be_deleted, *may_be_unseen]).count
            piece_expired = min(may_be_deleted.count, room_deleted)
            piece_unknown = min(may_be_unseen.count, room_unseen, either - piece_expired)
            expired += piece_expired
            unknown += piece_unknown
            lost += count - piece_expired - piece_unknown
        return expired, unknown, lost


RECENT_NS = 2 * SECOND_NS
"""Records come in order of their interval; a record may be older than its predecessor by less than this."""

WrittenSpans = tuple[int, Sequence[Span]]
"""The time at which a record was written, and the spans that it acknowledged."""


class ProducerStream:
    """The sequence numbers of one producer instance, epoch and partition."""

    __slots__ = ("_newest_begin_ns", "acknowledged", "deliveries", "failed", "recent", "sent_next")

    def __init__(self, subscriptions: int) -> None:
        self.acknowledged = IntervalSet()
        self.failed = IntervalSet()
        self.sent_next = 0
        self.recent: list[
            WrittenSpans
        ] = []  # may be newer than a final position that comes after them
        self._newest_begin_ns = 0  # of a record
        self.deliveries = [StreamDelivery() for _ in range(subscriptions)]

    @property
    def cost(self) -> int:
        """Return how many intervals are kept."""
        own = len(self.acknowledged) + len(self.failed)
        return own + sum(delivery.cost for delivery in self.deliveries)

    def note_written(self, at_ns: int, length_ns: int, spans: Sequence[Span]) -> None:
        """Keep what a record acknowledged for as long as an older final position may come."""
        self._newest_begin_ns = max(self._newest_begin_ns, at_ns - length_ns)
        oldest_ns = self._newest_begin_ns - RECENT_NS
        self.recent.append((at_ns, spans))
        self.recent = [one for one in self.recent if one[0] >= oldest_ns]

    def acknowledge(self, span: Span) -> None:
        """Add an acknowledged span; messages that are acknowledged twice count once."""
        piece, known = as_piece(span), self.acknowledged
        is_new = span[0] > known.maximum
        parts = [span[:2]] if is_new else list(known.missing(span[0], span[1]))
        for first, last in parts:
            known.add(first, last)
            for delivery in self.deliveries:
                delivery.acknowledge(part_of_piece(piece, first, last))

    def unacknowledged(self, *, is_ended: bool) -> tuple[int, int]:
        """Return how many messages arrived unacknowledged, and how many are unknown.

        A producer that was killed may have received acknowledgements in its last interval, which it did not
        record: messages that no record settles are unknown.
        """
        received = self.deliveries[0].received
        if len(self.deliveries) > 1:
            received = IntervalSet(pair for one in self.deliveries for pair in one.received)
        if is_ended:
            return received.minus(self.acknowledged).count, 0
        arrived = received.count - received.minus(self.failed).count
        recorded = IntervalSet([(0, self.sent_next - 1)] if self.sent_next else [])
        settled = IntervalSet([*self.acknowledged, *self.failed])
        unknown = IntervalSet([*recorded.minus(settled), *received.minus(settled)])
        return arrived, unknown.count


class PartitionLog:
    """The offsets of one partition that one subscription did not see, and why."""

    __slots__ = (
        "_final",
        "_gap_begin",
        "_is_read_on",
        "_late",
        "_unrecorded",
        "deleted",
        "gaps",
        "resolved_gaps",
    )

    def __init__(self) -> None:
        self.deleted = IntervalSet()  # by retention, before they were read
        self.gaps = IntervalSet()  # not delivered, and the broker did not say why
        self.resolved_gaps = IntervalSet()  # gaps that the broker explained later
        self._unrecorded = IntervalSet()
        self._late = IntervalSet()  # written after the final position was reported
        self._is_read_on = False  # the consumer read beyond its final position, which is void then
        self._gap_begin: int | None = None
        self._final = (0, -1, 0)  # at_ns, position, log end

    @property
    def cost(self) -> int:
        """Return how many intervals are kept."""
        reported = len(self.deleted) + len(self.gaps) + len(self.resolved_gaps)
        return reported + len(self._unrecorded) + len(self._late)

    def end(self, at_ns: int, position: int, log_end: int) -> None:
        """Set the final position of the consumer; the newest one counts."""
        final = at_ns, position, log_end
        if final > self._final:
            self._final, self._late, self._is_read_on = final, IntervalSet(), False

    def note_written(self, at_ns: int, first: int, last: int) -> None:
        """Add offsets acknowledged by a record of `at_ns`; those after the final position may be unread."""
        seen_ns, _, log_end = self._final
        if not self._is_read_on and 0 < seen_ns < at_ns and last >= log_end:
            self._late.add(max(first, log_end), last)

    def note_received(self, highest: int) -> None:
        """Add the highest offset received; a consumer that reads on makes its final position void."""
        if highest >= self._final[1] and not self._is_read_on:
            self._is_read_on, self._late = True, IntervalSet()

    def open_gap(self, begin: int) -> None:
        """Start a gap of the records: it is unknown what was received from offset `begin` on."""
        if self._gap_begin is None:
            self._gap_begin = begin

    def close_gap(self, offset: int) -> None:
        """End the gap of the records before this offset."""
        if self._gap_begin is not None and offset > self._gap_begin:
            self._unrecorded.add(self._gap_begin, offset - 1)
        self._gap_begin = None

    def unknown(self, above: int) -> IntervalSet:
        """Return the offsets for which it is unknown whether they were received.

        They are in gaps of the records, in unresolved offset gaps, or after the consumer's final position.
        Without a valid final position, all offsets from `above` on, the first one after those received,
        count as unread.
        """
        _, position, log_end = self._final
        found = IntervalSet([*self._unrecorded, *self.gaps.minus(self.resolved_gaps)])
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


EXPIRED_EVENT = "expired"
"""A consumer's event: offsets [from_offset, to_offset) of `partition` were deleted before it read them."""

OFFSET_GAP_EVENT = "offset_gap"
"""A consumer's event: offsets [from_offset, to_offset) did not come, and the broker did not say why."""

OFFSET_GAP_RESOLVED_EVENT = "offset_gap_resolved"
"""A consumer's event: the broker explained the gap; its deleted offsets are an expired event of their own."""

FINAL_POSITION_EVENT = "final_position"
"""A consumer's event: it stopped before offset `position` of `partition`, whose log ended at `log_end`."""

SEND_FAILED_EVENT = "send_failed"
"""A producer's event: the client gave up on messages `first` to `last` of the stream in field `lane`."""

SEND_ERRORS_EVENT = "send_errors"
"""A producer's event, not the audit's: `messages` failed for a `reason` in the words of the client."""

RECEIVE_ERRORS_EVENT = "receive_errors"
"""A consumer's event, not the audit's: its client reported `errors` for a `reason` in its words, with its
`code`, and the `broker` or `partition` where it names one."""

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

COUNTED_METRICS = frozenset({*_SENDING, *_READING})
"""The columns that the audit adds up; it reads no others."""

MAX_COLUMNS = 256
"""Maximum number of column lists whose counts are remembered; each journal file has its own list."""

SubscriptionPartition = tuple[int, int]
"""Subscription and partition."""


class Audit:
    """Takes every record once, in any order; it needs the least memory when records come in order of time.

    A final position of a consumer must not come more than `RECENT_NS` after a record that is newer than it.
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
        self._has_end = False  # a consumer has reported its final position
        self._unplanned = 0

    def add(self, record: Record, columns: tuple[Column, ...], subscription: int = 0) -> None:
        """Take one record; the caller passes each (source, epoch, k) once.

        `subscription` is that of the consumer; a producer's records concern all subscriptions.
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
            stream.note_written(record.at_ns, record.length_ns, spans)
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
        """Mark this epoch of a producer as closed on purpose: none of its messages is unknown."""
        self._ended.add((instance, epoch))

    def missed(self, subscription: int, partitions: Iterable[int]) -> None:
        """Mark a record of the consumer of these partitions as missing, before the next one is added.

        The messages that it received in that time are unknown, not lost.
        """
        for partition in partitions if subscription in self._subscriptions else ():
            place = subscription, partition
            self._logs[place].open_gap(self._above(place))
            self._with_gap.add(place)

    def verdict(self, *, is_loss_known: bool = True) -> dict[str, int | None]:
        """Return the counts under the names of `summary.json`; with acks=0 `lost` is None."""
        acked = sum(stream.acknowledged.count for stream in self._streams.values())
        unacked, unknown = 0, 0
        for name, stream in self._streams.items():
            instance, epoch, _ = (int(number) for number in name.split("."))
            arrived, unsure = stream.unacknowledged(is_ended=(instance, epoch) in self._ended)
            unacked += arrived
            unknown += unsure
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
            "unknown": total["unknown"] + unknown,
            "received_unacked": unacked,
            "missed_sends": self._sums["missed_sends"],
            **({"received_unplanned": self._unplanned} if self._unplanned else {}),
        }

    def by_subscription(
        self, *, is_loss_known: bool = True
    ) -> tuple[Mapping[str, int | None], ...]:
        """Return the counts of each subscription; see `verdict`."""
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
            delivery = self._stream(name).deliveries[subscription]
            for span in spans:
                self._counts[subscription]["reread"] += delivery.receive(span)
            if self._has_end:
                self._note_received((subscription, _partition(name)), delivery.highest)

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
                stream.deliveries[subscription].expire(log.deleted)
        else:
            (log.gaps if event.kind == OFFSET_GAP_EVENT else log.resolved_gaps).add(*offsets)

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
        """Return the first offset after those received."""
        subscription, partition = place
        streams = self._by_partition.get(partition, ())
        return 1 + max((stream.deliveries[subscription].highest for stream in streams), default=-1)

    def _read(self, subscription: int) -> dict[str, int]:
        """Return the counts of one subscription."""
        received = expired = unknown = lost = 0
        for partition, streams in self._by_partition.items():
            place = subscription, partition
            log = self._logs[place]
            unseen = log.unknown(self._above(place))
            for delivery in (stream.deliveries[subscription] for stream in streams):
                received += delivery.received.count
                missing = delivery.missing(log.deleted, unseen)
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
    """Caches the positions of the counts in a record: there are many columns, and they rarely change."""

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
