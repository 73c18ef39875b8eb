"""The odds of a message to be slower than p99 and p99.9 were at first, from counts above fixed thresholds.

Method:  over the first 120 rows the threshold whose share of messages is nearest to 1 % (to 0.1 %) is taken
         for good, or until a source that was started anew has it no more; then each second has its odds,
         half a message added on both sides so that none is 0.
Assumes: at least 30 messages above the threshold in these rows, and a share within a factor of 4, else that
         quantile has no odds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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


@dataclass(frozen=True, slots=True)
class Places:
    """Where among its columns a source has the counts above thresholds, and that of all messages."""

    thresholds: tuple[str, ...]
    above: NDArray[np.int64]
    total: int


@dataclass(slots=True)
class Exceedance:
    """One latency of one source: what was counted so far above which thresholds, then those chosen."""

    rows: int = 0
    above: dict[str, float] = field(default_factory=dict)
    total: float = 0.0
    chosen: list[str | None] | None = None

    def odds(
        self, thresholds: tuple[str, ...], above: NDArray[np.float64], total: float
    ) -> list[float]:
        """Take a second that counts; return its odds for each of `SHARES`, NaN while they are not known."""
        unknown = [float("nan")] * len(SHARES)
        if not total > 0.0:
            return unknown
        if not self._is_of(thresholds):
            self.rows, self.above, self.total, self.chosen = 0, {}, 0.0, None
        if self.chosen is None:
            self._learn(thresholds, above, total)
            return unknown
        counts = [None if at is None else above[thresholds.index(at)] for at in self.chosen]
        return [
            float("nan")
            if count is None
            else float((count + _HALF) / (max(0.0, total - count) + _HALF))
            for count in counts
        ]

    def _is_of(self, thresholds: tuple[str, ...]) -> bool:
        """True for the thresholds that are being learnt, or that have those chosen."""
        if self.chosen is None:
            return not self.above or tuple(self.above) == thresholds
        return all(at is None or at in thresholds for at in self.chosen)

    def _learn(self, thresholds: tuple[str, ...], above: NDArray[np.float64], total: float) -> None:
        seen = zip(thresholds, above.tolist(), strict=True)
        self.above = {at: self.above.get(at, 0.0) + count for at, count in seen}
        self.total += total
        self.rows += 1
        if self.rows == ROWS:
            counts = np.array(list(self.above.values()))
            places = [_nearest(counts, self.total, share) for share in SHARES.values()]
            self.chosen = [None if at is None else thresholds[at] for at in places]
            self.above = {}

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> Exceedance:
        """Return what `dataclasses.asdict` described, once through JSON."""
        return cls(state["rows"], state["above"], state["total"], state["chosen"])


def places(columns: Sequence[Column], metric: str) -> Places | None:
    """Return where the counts above thresholds stand, and that of all messages; None without them."""
    above, total = COUNTS[metric]
    at = [i for i, column in enumerate(columns) if column.metric == above]
    all_at = [i for i, column in enumerate(columns) if column.metric == total]
    if not at or not all_at:
        return None
    thresholds = tuple(dict(columns[i].labels).get("threshold", "") for i in at)
    return Places(thresholds, np.array(at, np.int64), all_at[0])


def _nearest(above: NDArray[np.float64], total: float, share: float) -> int | None:
    enough = above >= _LEAST_ABOVE
    if not enough.any():
        return None
    apart = np.abs(np.log(np.where(enough, above, 1.0) / total / share))
    at = int(np.argmin(np.where(enough, apart, np.inf)))
    return at if apart[at] <= np.log(4.0) else None
