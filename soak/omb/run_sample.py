"""Adds up the journals' seconds: ten for a sample of a result, or all for its totals."""

from __future__ import annotations

import math

from soak.omb.delay_bounds import KEPT, DelayBounds
from soak.omb.fields import DELAY, END_TO_END, PUBLISH, Family, statistic_name
from soak.omb.journal_amounts import Amounts, Told, histograms
from soak.omb.merged import Cells, Merged
from soak.omb.result import Distribution

_LAG = "schedule_lag_seconds"
_METRICS = {
    PUBLISH: "publish_latency_seconds",
    DELAY: _LAG,
    END_TO_END: "end_to_end_latency_seconds",
}
_PRODUCED = {"acked_messages": "sent_messages", "failed_messages": "failed_messages"}
_CONSUMED = {"received_messages": "received_messages"}


class RunSample:
    """Counts, rates and latencies of the seconds added since the last `clear`."""

    def __init__(self, cells: Cells, amounts: Amounts) -> None:
        self._amounts = amounts
        self._merged = {family: Merged(cells) for family in _METRICS}
        self.clear()

    def clear(self) -> None:
        for merged in self._merged.values():
            merged.clear()
        self._bounds = DelayBounds()
        self._counts: dict[str, float] = {}
        self._lags: dict[int, list[float]] = {}
        self._produced: set[int] = set()
        self._consumed: set[int] = set()
        self.is_delay_bounded = False

    def add(self, told: Told) -> None:
        """Take one record; it is the producer's or the consumer's by the counts that it holds."""
        record, _ = told
        if not math.isnan(self._amounts.count(told, "acked_messages")):
            self._produced.add(record.k)
            self._count(told, _PRODUCED)
            self._take(told, PUBLISH)
            self._take_delay(told)
        if not math.isnan(self._amounts.count(told, "received_messages")):
            self._consumed.add(record.k)
            self._count(told, _CONSUMED)
            self._take(told, END_TO_END)
            lag = self._amounts.count(told, "lag_messages")
            if not math.isnan(lag):
                self._lags.setdefault(record.k, []).append(lag)

    def values(self) -> dict[str, float]:
        """Return the sample by the names of `Result.samples`; rates count recorded seconds only."""
        sent, failed = (
            self._counts.get("sent_messages", 0.0),
            self._counts.get("failed_messages", 0.0),
        )
        received = self._counts.get("received_messages", 0.0)
        return {
            "sent_messages": sent,
            "received_messages": received,
            "failed_messages": failed,
            "consume_failed_messages": 0.0,
            "publish_rate_per_second": _rate(sent, self._produced),
            "publish_error_rate_per_second": _rate(failed, self._produced),
            "consume_rate_per_second": _rate(received, self._consumed),
            "backlog_messages": self._backlog(),
            **self.latencies(),
        }

    def latencies(self) -> dict[str, float]:
        """Return each latency's statistics by name, NaN where nothing was measured."""
        found: dict[str, float] = {}
        for family, merged in self._merged.items():
            is_bounded = family is DELAY and self.is_delay_bounded
            statistics = self._bounds.statistics() if is_bounded else merged.statistics()
            found |= {statistic_name(family, name): value for name, value in statistics.items()}
        return found

    def distributions(self) -> dict[str, Distribution]:
        """Return the whole distribution of each latency that was measured."""
        found = {}
        for family, merged in self._merged.items():
            one = merged.distribution()
            if one is not None:
                found[family.metric] = one
        return found

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
                self._counts[name] = self._counts.get(name, 0.0) + amount

    def _take(self, told: Told, family: Family) -> None:
        merged, metric = self._merged[family], _METRICS[family]
        for text in histograms(told[0], metric):
            merged.add(text)
        merged.note_max(self._amounts.quantile(told, metric, "max"))
        overflow = self._amounts.count(told, "overflow_messages")
        if overflow > 0 and family is not DELAY:
            merged.add_overflow(int(overflow))

    def _take_delay(self, told: Told) -> None:
        if histograms(told[0], _LAG):
            self._take(told, DELAY)
            return
        quantiles = {name: self._amounts.quantile(told, _LAG, name) for name in KEPT}
        self._bounds.add(quantiles, self._amounts.count(told, "sent_messages"))
        self.is_delay_bounded = True


def _rate(messages: float, seconds: set[int]) -> float:
    return messages / len(seconds) if seconds else math.nan
