"""What the subscriptions of a run had not read: as they say it, and counted where they cannot know it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from soak.core.plan_load import Consumers
from soak.omb.journal_amounts import Amounts, Told

FRESH_SECONDS = 5
"""So long after a subscription reads on, its own idea of the lag may be from before the pause."""
_CONSUMER = "consume."


class RunBacklog:
    """Takes a run's seconds in order. Each subscription counts for itself: some may read while others pause.

    One that receives nothing hears of no new message: what is acknowledged is added to what it had left.
    """

    def __init__(self, who: Consumers, amounts: Amounts) -> None:
        self._who = who
        self._amounts = amounts
        self._left = [math.nan] * who.subscriptions
        self._silent_k = [-math.inf] * who.subscriptions  # the last second without a message

    def add(self, k: int, told: Sequence[Told]) -> None:
        """Take what all sources recorded of a second."""
        acked = sum(self._counts(told, "acked_messages"))
        consumers: dict[int, list[Told]] = {}
        for one in told:
            if one.source.startswith(_CONSUMER):
                index = int(one.source.partition("@")[0].removeprefix(_CONSUMER))
                consumers.setdefault(self._who.subscription_of(index), []).append(one)
        for at, mine in consumers.items():
            received = self._counts(mine, "received_messages")
            if received:
                self._note(at, k, acked, sum(received), self._counts(mine, "lag_messages"))

    def messages(self) -> float:
        """Return what is left of all subscriptions of which something is known; NaN of none."""
        known = [left for left in self._left if not math.isnan(left)]
        return sum(known) if known else math.nan

    def _note(self, at: int, k: int, acked: float, received: float, lags: Sequence[float]) -> None:
        if not received:
            self._silent_k[at] = k
        is_fresh = k - self._silent_k[at] > FRESH_SECONDS
        counted = self._left[at] + acked - received
        if math.isnan(counted) or (is_fresh and len(lags) == self._who.per_subscription):
            self._left[at] = sum(lags) if lags else math.nan
        else:
            self._left[at] = max(0.0, counted)

    def _counts(self, told: Sequence[Told], metric: str) -> list[float]:
        found = [self._amounts.count(one, metric) for one in told]
        return [count for count in found if not math.isnan(count)]
