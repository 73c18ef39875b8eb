"""How many messages a load has sent by when, from the rates that it was planned with."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np


class Arrivals:
    """Messages since the load began; the last rate goes on for ever."""

    def __init__(self, rates: Iterable[tuple[float, float]], share: float = 1.0) -> None:
        """Take (second, messages a second from it on), ascending from 0, and the share that counts.

        Raises:
            ValueError: they do not begin at 0, do not ascend, or a rate is below 0.
        """
        pairs = np.array([(float(second), float(rate)) for second, rate in rates])
        if pairs.size == 0 or pairs[0, 0] != 0 or (np.diff(pairs[:, 0]) <= 0).any():
            raise ValueError("rates must ascend from second 0")
        self._seconds, self._rates = pairs[:, 0], pairs[:, 1] * share
        if (self._rates < 0).any():
            raise ValueError("a rate must not be below 0")
        sent = np.diff(self._seconds) * self._rates[:-1]
        self._counts = np.concatenate([[0.0], np.cumsum(sent)])

    @property
    def highest_rate(self) -> float:
        return float(self._rates.max())

    @property
    def last_rate(self) -> float:
        return float(self._rates[-1])

    def count(self, seconds: float) -> float:
        """Return how many were sent in so many seconds."""
        at = int(np.searchsorted(self._seconds, seconds, side="right")) - 1
        if at < 0:
            return 0.0
        return float(self._counts[at] + (seconds - self._seconds[at]) * self._rates[at])

    def when(self, count: float) -> float:
        """Return after how many seconds so many were sent; infinity where they never are."""
        if count <= 0:
            return 0.0
        at = int(np.searchsorted(self._counts, count, side="left")) - 1
        rate = float(self._rates[at])
        if (
            rate == 0
        ):  # only after the last change: before it a count that stands still is passed over
            return math.inf
        return float(self._seconds[at] + (count - self._counts[at]) / rate)
