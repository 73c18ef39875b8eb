"""The three latencies of some seconds of a run, added up from the journals' histograms."""

from __future__ import annotations

from soak.omb.fields import DELAY, END_TO_END, PUBLISH, Family, statistic_name
from soak.omb.journal_amounts import Amounts, Told, histograms
from soak.omb.merged import Cells, Merged
from soak.omb.result import Distribution

_METRICS = {
    PUBLISH: "publish_service_seconds",  # the benchmark counts from the actual send
    DELAY: "schedule_lag_seconds",
    END_TO_END: "end_to_end_latency_seconds",
}


class RunLatencies:
    """Publish latency, send delay and end-to-end latency since the last `clear`."""

    def __init__(self, cells: Cells, amounts: Amounts) -> None:
        self._amounts = amounts
        self._merged = {family: Merged(cells) for family in _METRICS}
        self.clear()

    def clear(self) -> None:
        for merged in self._merged.values():
            merged.clear()

    def add_produced(self, told: Told) -> None:
        """Take a producer's second."""
        self._take(told, PUBLISH)
        self._take(told, DELAY)

    def add_consumed(self, told: Told) -> None:
        """Take a consumer's second."""
        self._take(told, END_TO_END)

    def absorb(self, other: RunLatencies) -> None:
        """Add what another one holds."""
        for family, merged in self._merged.items():
            merged.absorb(other._merged[family])  # its own kind

    def statistics(self) -> dict[str, float]:
        """Return each latency's statistics by name, NaN where nothing was measured."""
        found: dict[str, float] = {}
        for family, merged in self._merged.items():
            found |= {
                statistic_name(family, name): value for name, value in merged.statistics().items()
            }
        return found

    def distributions(self) -> dict[str, Distribution]:
        """Return the whole distribution of each latency that was measured."""
        found = {family: merged.distribution() for family, merged in self._merged.items()}
        return {family.metric: one for family, one in found.items() if one is not None}

    def _take(self, told: Told, family: Family) -> None:
        merged, metric = self._merged[family], _METRICS[family]
        for text in histograms(told.record, metric):
            merged.add(text)
        merged.note_max(self._amounts.quantile(told, metric, "max"))
        overflow = self._amounts.count(told, "overflow_messages")
        if overflow > 0 and family is END_TO_END:  # a producer's are of latencies from the due time
            merged.add_overflow(int(overflow))
