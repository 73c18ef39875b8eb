"""One sample of a result: ten seconds of a run's journals, all processes added up."""

from __future__ import annotations

import math
from collections.abc import Sequence

from soak.core.plan_load import Consumers
from soak.omb.journal_amounts import Amounts, Told
from soak.omb.merged import Cells
from soak.omb.run_backlog import RunBacklog
from soak.omb.run_latencies import RunLatencies

_PRODUCED = {"acked_messages": "sent_messages", "failed_messages": "failed_messages"}
_CONSUMED = {"received_messages": "received_messages"}


class RunSample:
    """Counts, rates and latencies of the seconds added since the last `clear`, and the backlog after them."""

    def __init__(self, who: Consumers, cells: Cells, amounts: Amounts) -> None:
        self._amounts = amounts
        self._backlog = RunBacklog(who, amounts)
        self.latencies = RunLatencies(cells, amounts)
        self.clear()

    def clear(self) -> None:
        self.latencies.clear()
        self._counts = dict.fromkeys((*_PRODUCED.values(), *_CONSUMED.values()), 0.0)
        self._produced: set[int] = set()
        self._consumed: set[int] = set()

    def add(self, k: int, told: Sequence[Told]) -> None:
        """Take what all sources recorded of a second."""
        for one in told:
            self._add(one)
        self._backlog.add(k, told)

    def _add(self, told: Told) -> None:
        """Take one record; it is the producer's or the consumer's by the counts that it holds."""
        k = told.record.k
        if not math.isnan(self._amounts.count(told, "acked_messages")):
            self._produced.add(k)
            self._count(told, _PRODUCED)
            self.latencies.add_produced(told)
        if not math.isnan(self._amounts.count(told, "received_messages")):
            self._consumed.add(k)
            self._count(told, _CONSUMED)
            self.latencies.add_consumed(told)

    def values(self) -> dict[str, float]:
        """Return the sample by the names of `Result.samples`; rates count recorded seconds only."""
        counts = self._counts
        return {
            **counts,
            "consume_failed_messages": 0.0,
            "publish_rate_per_second": _rate(counts["sent_messages"], self._produced),
            "publish_error_rate_per_second": _rate(counts["failed_messages"], self._produced),
            "consume_rate_per_second": _rate(counts["received_messages"], self._consumed),
            "backlog_messages": self._backlog.messages() if self._consumed else math.nan,
            **self.latencies.statistics(),
        }

    def _count(self, told: Told, names: dict[str, str]) -> None:
        for metric, name in names.items():
            amount = self._amounts.count(told, metric)
            if not math.isnan(amount):
                self._counts[name] += amount


def _rate(messages: float, seconds: set[int]) -> float:
    return messages / len(seconds) if seconds else math.nan
