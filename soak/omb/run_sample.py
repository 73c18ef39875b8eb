"""One sample of a result: ten seconds of a run's journals, all processes added up."""

from __future__ import annotations

import math

from soak.omb.journal_amounts import Amounts, Told
from soak.omb.merged import Cells
from soak.omb.run_latencies import RunLatencies

_PRODUCED = {"acked_messages": "sent_messages", "failed_messages": "failed_messages"}
_CONSUMED = {"received_messages": "received_messages"}


class RunSample:
    """Counts, rates and latencies of the seconds added since the last `clear`."""

    def __init__(self, cells: Cells, amounts: Amounts) -> None:
        self._amounts = amounts
        self.latencies = RunLatencies(cells, amounts)
        self.clear()

    def clear(self) -> None:
        self.latencies.clear()
        self._counts = dict.fromkeys((*_PRODUCED.values(), *_CONSUMED.values()), 0.0)
        self._lags: dict[int, list[float]] = {}
        self._produced: set[int] = set()
        self._consumed: set[int] = set()

    def add(self, told: Told) -> None:
        """Take one record; it is the producer's or the consumer's by the counts that it holds."""
        k = told[0].k
        if not math.isnan(self._amounts.count(told, "acked_messages")):
            self._produced.add(k)
            self._count(told, _PRODUCED)
            self.latencies.add_produced(told)
        if not math.isnan(self._amounts.count(told, "received_messages")):
            self._consumed.add(k)
            self._count(told, _CONSUMED)
            self.latencies.add_consumed(told)
            lag = self._amounts.count(told, "lag_messages")
            if not math.isnan(lag):
                self._lags.setdefault(k, []).append(lag)

    def values(self) -> dict[str, float]:
        """Return the sample by the names of `Result.samples`; rates count recorded seconds only."""
        counts = self._counts
        return {
            **counts,
            "consume_failed_messages": 0.0,
            "publish_rate_per_second": _rate(counts["sent_messages"], self._produced),
            "publish_error_rate_per_second": _rate(counts["failed_messages"], self._produced),
            "consume_rate_per_second": _rate(counts["received_messages"], self._consumed),
            "backlog_messages": self._backlog(),
            **self.latencies.statistics(),
        }

    def _backlog(self) -> float:
        """Return the lag of all consumers in the last second of which most of them told."""
        if not self._lags:
            return math.nan
        last_k = max(self._lags, key=lambda k: (len(self._lags[k]), k))
        return sum(self._lags[last_k])

    def _count(self, told: Told, names: dict[str, str]) -> None:
        for metric, name in names.items():
            amount = self._amounts.count(told, metric)
            if not math.isnan(amount):
                self._counts[name] += amount


def _rate(messages: float, seconds: set[int]) -> float:
    return messages / len(seconds) if seconds else math.nan
