"""What one subscription's consumer told of one partition's log: what was deleted, where it ended."""

from __future__ import annotations

from soak.core.lanes import IntervalSet
from soak.core.unsettled import NO_END


class ReadLog:
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
            found.add(above, NO_END)
            return found
        for first, last in self._late:
            found.add(first, last)
        if log_end > position:
            found.add(position, log_end - 1)
        if self._gap_begin is not None and position > self._gap_begin:
            found.add(self._gap_begin, position - 1)
        return found
