"""The odds of a message to be slower than p99 and p99.9 were at first, from counts above fixed thresholds.

Method:  over the first 120 rows the threshold whose share of messages is nearest to 1 % (to 0.1 %) is taken
         for good; then each second has its odds, half a message added on both sides so that none is 0.
Assumes: at least 30 messages above the threshold in these rows, else that quantile has no odds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from soak.core.model import Column

ROWS = 120
SHARES = {"0.99": 0.01, "0.999": 0.001}
COUNTS = {
    "publish_latency_seconds": ("publish_latency_above_messages", "acked_messages"),
    "end_to_end_latency_seconds": ("end_to_end_latency_above_messages", "received_messages"),
}
"""Where a source tells how many messages were above each threshold, and how many there were."""
_LEAST_ABOVE = 30
_HALF = 0.5


@dataclass(slots=True)
class Exceedance:
    """One latency of one source: what was counted so far, then the thresholds (by their place) chosen."""

    rows: int
    above: list[float]
    total: float
    chosen: list[int | None] | None = None

    def odds(self, above: NDArray[np.float64], total: float) -> list[float]:
        """Take a second that counts; return its odds for each of `SHARES`, NaN while they are not known."""
        unknown = [float("nan")] * len(SHARES)
        if not total > 0.0:
            return unknown
        if self.chosen is None:
            self._learn(above, total)
            return unknown
        return [
            float("nan")
            if at is None
            else float((above[at] + _HALF) / (max(0.0, total - above[at]) + _HALF))
            for at in self.chosen
        ]

    def _learn(self, above: NDArray[np.float64], total: float) -> None:
        self.above = (np.asarray(self.above) + above).tolist()
        self.total += total
        self.rows += 1
        if self.rows == ROWS:
            self.chosen = [_nearest(np.asarray(self.above), self.total, s) for s in SHARES.values()]
            self.above = []

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> Exceedance:
        """Return what `dataclasses.asdict` described, once through JSON."""
        return cls(state["rows"], state["above"], state["total"], state["chosen"])


def places(columns: Sequence[Column], metric: str) -> tuple[NDArray[np.int64], int] | None:
    """Return where the counts above thresholds stand, and that of all messages; None without them."""
    above, total = COUNTS[metric]
    at = [i for i, column in enumerate(columns) if column.metric == above]
    all_at = [i for i, column in enumerate(columns) if column.metric == total]
    return (np.array(at, np.int64), all_at[0]) if at and all_at else None


def _nearest(above: NDArray[np.float64], total: float, share: float) -> int | None:
    enough = above >= _LEAST_ABOVE
    if not enough.any():
        return None
    apart = np.abs(np.log(np.where(enough, above, 1.0) / total / share))
    at = int(np.argmin(np.where(enough, apart, np.inf)))
    return at if apart[at] <= np.log(4.0) else None
