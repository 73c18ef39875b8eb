"""One lane's books: what was sent, acknowledged and given up, and what each subscription received of it."""

from __future__ import annotations

from collections.abc import Sequence

from soak.core.lanes import IntervalSet
from soak.core.model import Span
from soak.core.units import SECOND_NS
from soak.core.unsettled import Unsettled, part, placed, possible


class Reading:
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
            self._unsettled.add(part(piece, first, last))

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
            may_be_gone, room_gone = possible(piece, gone)
            may_be_hidden, room_hidden = possible(piece, hidden)
            either = IntervalSet([*may_be_gone, *may_be_hidden]).count
            piece_gone = min(may_be_gone.count, room_gone)
            piece_hidden = min(may_be_hidden.count, room_hidden, either - piece_gone)
            expired += piece_gone
            unknown += piece_hidden
            lost += count - piece_gone - piece_hidden
        return expired, unknown, lost


RECENT_NS = 2 * SECOND_NS
"""Records come in order of their second: one may be older than one before it, by less than this."""

Written = tuple[int, Sequence[Span]]
"""When a record was written, and what it acknowledged."""


class Lane:
    """Sequence numbers of one (instance, incarnation, partition)."""

    __slots__ = ("acknowledged", "failed", "readings", "recent", "sent_next")

    def __init__(self, subscriptions: int) -> None:
        self.acknowledged = IntervalSet()
        self.failed = IntervalSet()
        self.sent_next = 0
        self.recent: list[
            Written
        ] = []  # they may be younger than a last word that comes after them
        self.readings = [Reading() for _ in range(subscriptions)]

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
        piece, known = placed(span), self.acknowledged
        is_new = span[0] > known.maximum
        parts = [span[:2]] if is_new else list(known.missing(span[0], span[1]))
        for first, last in parts:
            known.add(first, last)
            for reading in self.readings:
                reading.acknowledge(part(piece, first, last))

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
