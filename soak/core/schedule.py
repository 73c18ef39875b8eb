"""The open-loop send schedule: when each message is due, whatever the broker does.

Rates change from segment to segment. N(t), the messages due before t, is a line that bends and never jumps,
kept as an exact fraction: message i is due where N reaches i, so no change of rate loses or doubles any.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from soak.core.units import SECOND_NS

NEVER_NS = 2**63 - 1
"""Due time of a message that is never due, because the last rate of the schedule is 0."""

_LARGEST = 2**63 - 1


@dataclass(frozen=True, slots=True)
class _Segment:
    """One rate from one instant on, as the integers that due times are computed from."""

    from_ns: int
    rate: Fraction  # of all processes
    expected: Fraction  # N at its start
    parts: int  # expected = whole / parts
    whole: int
    per: int  # `per` messages are due in `period_ns`; 0: none
    period_ns: int


class Line:
    """N(t) as a list of segments, common to all shares of a schedule."""

    __slots__ = ("changes", "first", "from_ns", "segments")

    def __init__(self, start_ns: int, rate: Fraction) -> None:
        if rate < 0:
            raise ValueError(f"rate must not be negative: {rate}")
        self.segments = [_segment(start_ns, rate, Fraction(0))]
        self.from_ns = [start_ns]  # of each segment, for bisection
        self.first = [0]  # the first message of each segment, of all processes
        self.changes = 0  # number of extensions

    def extend(self, from_ns: int, rate: Fraction) -> None:
        """Set the rate of all shares from an instant on, see `Schedule.extend`."""
        if rate < 0 or from_ns < self.from_ns[0]:
            raise ValueError(f"no rate of {rate} from {from_ns} on: begins at {self.from_ns[0]}")
        self.changes += 1
        while len(self.segments) > 1 and self.from_ns[-1] >= from_ns:
            for kept in (self.segments, self.from_ns, self.first):
                kept.pop()
        last = self.segments[-1]
        if from_ns == last.from_ns:
            self.segments[-1] = _segment(from_ns, rate, last.expected)
        elif rate != last.rate:
            expected = last.expected + (from_ns - last.from_ns) * last.rate / SECOND_NS
            self.segments.append(_segment(from_ns, rate, expected))
            self.from_ns.append(from_ns)
            self.first.append(-(-expected.numerator // expected.denominator))

    def forget(self, before_ns: int) -> None:
        """Drop the segments that ended before an instant."""
        past = max(0, bisect_right(self.from_ns, before_ns) - 1)
        for kept in (self.segments, self.from_ns, self.first):
            del kept[:past]


class Schedule:
    """Due times in integer nanoseconds, so that neither rounding nor a restart makes it drift.

    Process `index` of `of` has every `of`-th message; the indices below count its own from 0 on.
    """

    def __init__(self, start_ns: int, rate: Fraction, index: int = 0, of: int = 1) -> None:
        self.line = Line(start_ns, rate)
        self._index = index
        self._of = of

    @property
    def segments(self) -> int:
        return len(self.line.segments)

    def share(self, number: int, of: int) -> Schedule:
        """Return the schedule of every `of`-th message from `number` on; both are extended together."""
        found = Schedule(0, Fraction(0), number * self._of + self._index, self._of * of)
        found.line = self.line
        return found

    def extend(self, from_ns: int, rate: Fraction) -> None:
        """Set the rate of all processes together from an instant on, and drop later changes.

        Raises:
            ValueError: the rate is negative, or the instant lies before the schedule begins.
        """
        self.line.extend(from_ns, rate)

    def forget(self, before_ns: int) -> None:
        """Drop the segments that ended before an instant; due times in them are no longer exact."""
        self.line.forget(before_ns)

    def rate_at(self, instant_ns: int) -> Fraction:
        """Return the rate of this process; before the start, its first rate."""
        return self._at(instant_ns).rate / self._of

    def span_at(self, instant_ns: int) -> tuple[int, int]:
        """Return the first instant of the rate at an instant, and the instant at which it changes."""
        changes_ns = self.line.from_ns
        after = bisect_right(changes_ns, instant_ns)
        from_ns = changes_ns[after - 1] if after else instant_ns
        return from_ns, changes_ns[after] if after < len(changes_ns) else NEVER_NS

    def due_ns(self, index: int) -> int:
        """Return the due time of message `index`, or `NEVER_NS`."""
        number = index * self._of + self._index
        one = self.line.segments[max(0, bisect_right(self.line.first, number) - 1)]
        if not one.per:
            return one.from_ns - 1 if number < self.line.first[0] else NEVER_NS
        ahead = (number * one.parts - one.whole) * one.period_ns
        return one.from_ns + ahead // (one.parts * one.per)

    def due_many_ns(self, first: int, count: int) -> NDArray[np.int64]:
        """Return the due times of `count` messages from `first` on, shape (count,), exact as `due_ns`."""
        due = self._due_in_segment(first, count)
        if due.size == count:
            return due
        parts = [due]
        while (done := sum(part.size for part in parts)) < count:
            parts.append(self._due_in_segment(first + done, count - done))
        return np.concatenate(parts)

    def first_at_or_after(self, instant_ns: int) -> int:
        """Return the least index that is due at `instant_ns` or later, never below 0."""
        one = self._at(instant_ns)
        elapsed_ns = max(0, instant_ns - one.from_ns)
        # due(i) >= t  <=>  i >= N(t), rounded up
        above = one.whole * one.period_ns + elapsed_ns * one.per * one.parts
        number = -(-above // (one.period_ns * one.parts))
        return max(0, -((self._index - number) // self._of))

    def _at(self, instant_ns: int) -> _Segment:
        line = self.line
        return line.segments[max(0, bisect_right(line.from_ns, instant_ns) - 1)]

    def _due_in_segment(self, first: int, count: int) -> NDArray[np.int64]:
        """Return the due times of the messages in the segment of `first`; at least one."""
        number = first * self._of + self._index
        begins = self.line.first
        at = max(0, bisect_right(begins, number) - 1)
        one = self.line.segments[at]
        if not one.per:
            overdue = -((number - begins[at]) // self._of)
            if overdue > 0:  # of a dropped segment: some time before this one
                return np.full(min(count, overdue), one.from_ns - 1)
            return np.full(count, NEVER_NS)
        if at + 1 < len(begins):
            count = min(count, -((number - begins[at + 1]) // self._of))
        count = min(count, max(1, _LARGEST // one.per))  # otherwise the products below exceed int64
        ahead = (number * one.parts - one.whole) * one.period_ns
        begin_ns, rest = divmod(ahead, one.parts * one.per)
        step_ns, step_rest = divmod(one.period_ns * self._of, one.per)
        room_ns = _LARGEST - one.from_ns - begin_ns
        if room_ns < 0:  # due in centuries, beyond int64
            return np.full(count, NEVER_NS)
        steps = np.arange(min(count, 1 + room_ns // (step_ns + 1)), dtype=np.int64)
        due: NDArray[np.int64] = steps * min(step_ns, _LARGEST) + (one.from_ns + begin_ns)
        if step_rest:
            # floor((x + n) / m) = floor((floor(x) + n) / m): so everything fits in int64
            due += (steps * step_rest + rest // one.parts) // one.per
        return due


def _segment(from_ns: int, rate: Fraction, expected: Fraction) -> _Segment:
    return _Segment(
        from_ns=from_ns,
        rate=rate,
        expected=expected,
        parts=expected.denominator,
        whole=expected.numerator,
        per=rate.numerator,
        period_ns=SECOND_NS * rate.denominator,
    )
