"""The open-loop send schedule: message i is due at start + i * 10^9 // rate, whatever the broker does."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from soak.core.units import SECOND_NS


@dataclass(frozen=True, slots=True)
class Schedule:
    """Due times in integer nanoseconds, so that neither rounding nor a restart makes it drift."""

    start_ns: int
    rate: Fraction

    def __post_init__(self) -> None:
        if self.rate <= 0:
            raise ValueError(f"rate must be positive: {self.rate}")

    def due_ns(self, index: int) -> int:
        """Return when message `index` is due."""
        return self.start_ns + index * SECOND_NS * self.rate.denominator // self.rate.numerator

    def due_many_ns(self, first: int, count: int) -> NDArray[np.int64]:
        """Return the due times of `count` messages from `first` on, shape (count,).

        Exact as `due_ns` is: only the part above the first message's whole period is in int64.
        """
        base = first * SECOND_NS * self.rate.denominator
        whole, rest = divmod(base, self.rate.numerator)
        steps = np.arange(count, dtype=np.int64) * (SECOND_NS * self.rate.denominator)
        return self.start_ns + whole + (rest + steps) // self.rate.numerator

    def first_at_or_after(self, instant_ns: int) -> int:
        """Return the least index that is due at `instant_ns` or later, never below 0."""
        elapsed = instant_ns - self.start_ns
        if elapsed <= 0:
            return 0
        # due(i) >= t  <=>  i * 1e9 * d // n >= t  <=>  i >= t * n / (1e9 * d), rounded up
        return -(-elapsed * self.rate.numerator // (SECOND_NS * self.rate.denominator))
