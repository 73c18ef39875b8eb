"""The open-loop send schedule: when each message is due, whatever the broker does.

Rates change from segment to segment. N(t), the messages due before t, is a line that bends and never jumps,
kept as an exact fraction: message i is due where N reaches i, so no change of rate loses or doubles any.
"""

from __future__ import annotations

from bisect import bisect_right
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from soak.core.units import SECOND_NS

NEVER_NS = 2**63 - 1
"""When a message is due that the schedule does not reach: its last rate is 0."""


class Schedule:
    """Due times in integer nanoseconds, so that neither rounding nor a restart makes it drift.

    Process `index` of `of` has every `of`-th message; the indices below count its own from 0 on.
    """

    def __init__(self, start_ns: int, rate: Fraction, index: int = 0, of: int = 1) -> None:
        if rate < 0:
            raise ValueError(f"rate must not be negative: {rate}")
        self._index = index
        self._of = of
        self._from_ns = [start_ns]
        self._rates = [rate]
        self._own_rates = [rate / of]
        self._expected = [Fraction(0)]  # N at the start of each segment
        self._first = [0]  # the first message of each segment, of all processes

    @property
    def segments(self) -> int:
        return len(self._from_ns)

    def extend(self, from_ns: int, rate: Fraction) -> None:
        """Let all processes together have this rate from an instant on, whatever was to come after it.

        Raises:
            ValueError: the rate is negative, or the instant lies before the schedule begins.
        """
        if rate < 0 or from_ns < self._from_ns[0]:
            raise ValueError(f"no rate of {rate} from {from_ns} on: begins at {self._from_ns[0]}")
        while len(self._from_ns) > 1 and self._from_ns[-1] >= from_ns:
            for kept in self._columns():
                kept.pop()
        if from_ns == self._from_ns[0]:
            self._rates[0], self._own_rates[0] = rate, rate / self._of
        elif rate != self._rates[-1]:
            expected = self._expected_at(len(self._from_ns) - 1, from_ns)
            self._from_ns.append(from_ns)
            self._rates.append(rate)
            self._own_rates.append(rate / self._of)
            self._expected.append(expected)
            self._first.append(-(-expected.numerator // expected.denominator))

    def forget(self, before_ns: int) -> None:
        """Drop the segments that ended before an instant; nothing earlier may be asked for again."""
        past = max(0, bisect_right(self._from_ns, before_ns) - 1)
        for kept in self._columns():
            del kept[:past]

    def rate_at(self, instant_ns: int) -> Fraction:
        """Return the rate of this process; before the start, the one that it starts with."""
        return self._own_rates[self._at(instant_ns)]

    def due_ns(self, index: int) -> int:
        """Return when message `index` is due, or `NEVER_NS`."""
        number = index * self._of + self._index
        at = max(0, bisect_right(self._first, number) - 1)
        rate, expected = self._rates[at], self._expected[at]
        if not rate:
            return NEVER_NS
        ahead = (number * expected.denominator - expected.numerator) * SECOND_NS * rate.denominator
        return self._from_ns[at] + ahead // (expected.denominator * rate.numerator)

    def due_many_ns(self, first: int, count: int) -> NDArray[np.int64]:
        """Return the due times of `count` messages from `first` on, shape (count,), exact as `due_ns`."""
        parts = []
        while count > 0:
            part = self._due_in_segment(first, count)
            parts.append(part)
            first, count = first + part.size, count - part.size
        return parts[0] if len(parts) == 1 else np.concatenate([*parts, np.empty(0, np.int64)])

    def first_at_or_after(self, instant_ns: int) -> int:
        """Return the least index that is due at `instant_ns` or later, never below 0."""
        at = self._at(instant_ns)
        elapsed_ns = max(0, instant_ns - self._from_ns[at])
        rate, expected = self._rates[at], self._expected[at]
        # due(i) >= t  <=>  i >= N(t), rounded up
        scale = SECOND_NS * rate.denominator
        above = expected.numerator * scale + elapsed_ns * rate.numerator * expected.denominator
        number = -(-above // (scale * expected.denominator))
        return max(0, -((self._index - number) // self._of))

    def _columns(self) -> tuple[list[Any], ...]:
        return self._from_ns, self._rates, self._own_rates, self._expected, self._first

    def _at(self, instant_ns: int) -> int:
        return max(0, bisect_right(self._from_ns, instant_ns) - 1)

    def _expected_at(self, at: int, instant_ns: int) -> Fraction:
        elapsed_ns = instant_ns - self._from_ns[at]
        return self._expected[at] + elapsed_ns * self._rates[at] / SECOND_NS

    def _due_in_segment(self, first: int, count: int) -> NDArray[np.int64]:
        """Return the due times of those that lie in the segment of `first`; at least one."""
        number = first * self._of + self._index
        at = max(0, bisect_right(self._first, number) - 1)
        rate, expected = self._rates[at], self._expected[at]
        if not rate:
            return np.full(count, NEVER_NS)
        if at + 1 < len(self._first):
            count = min(count, -((number - self._first[at + 1]) // self._of))
        ahead = (number * expected.denominator - expected.numerator) * SECOND_NS * rate.denominator
        whole, rest = divmod(ahead, expected.denominator * rate.numerator)
        # floor((x + n) / m) = floor((floor(x) + n) / m): from here on all fits in int64
        rest //= expected.denominator
        step_ns, step_rest = divmod(SECOND_NS * rate.denominator * self._of, rate.numerator)
        steps = np.arange(count, dtype=np.int64)
        due: NDArray[np.int64] = steps * step_ns + (steps * step_rest + rest) // rate.numerator
        return due + (self._from_ns[at] + whole)
