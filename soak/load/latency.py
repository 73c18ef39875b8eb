"""Latency columns of a record: quantiles, maximum and counts above thresholds, also by partition leader."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from soak.core.histogram import Histogram
from soak.core.model import THRESHOLDS_SECONDS, Column
from soak.load.leaders import Leaders
from soak.runtime.recorder import quantile_column

LEADER_INFO = "leader_info"
"""Always 1; its labels give a leader's address, as in Prometheus' `_info` metrics."""
QUANTILES = (0.5, 0.99, 0.999)

Columns = list[tuple[Column, float]]


def quantile_columns(
    metric: str, histogram: Histogram, quantiles: tuple[float, ...] = QUANTILES
) -> Columns:
    """Return quantiles and the maximum of a latency."""
    values = histogram.quantiles_seconds(quantiles)
    is_counted = histogram.total or histogram.negative
    return [
        *(
            (quantile_column(metric, f"{quantile:g}"), value)
            for quantile, value in zip(quantiles, values, strict=True)
        ),
        (
            quantile_column(metric, "max"),
            histogram.max_ns / 1e9 if is_counted else float("nan"),
        ),
    ]


def threshold_columns(
    metric: str, histogram: Histogram, limits_seconds: tuple[float, ...] = ()
) -> Columns:
    """Return how many latencies are at or above each fixed threshold and each limit of an objective."""
    thresholds = sorted({*THRESHOLDS_SECONDS, *limits_seconds})
    return [
        (Column(metric, (("threshold", f"{threshold:.10g}"),), "messages"), float(count))
        for threshold, count in zip(thresholds, histogram.above(thresholds), strict=True)
    ]


class LatencyByLeader:
    """One histogram for each partition leader, so that one slow broker is not hidden by the others."""

    def __init__(self, metric: str) -> None:
        self._metric = metric
        self._histograms: dict[str, Histogram] = {}
        self._addresses: dict[str, str] = {}

    def record_ns(
        self, leaders: Leaders, partition: NDArray[np.int64], latency_ns: NDArray[np.int64]
    ) -> None:
        """Count latencies, shape (n,), under the names of the leaders of their partitions."""
        leader = leaders.of(partition)
        for number in np.unique(leader[leader >= 0]).tolist():
            name = leaders.name_of(number)
            self._histograms.setdefault(name, Histogram()).record_ns(latency_ns[leader == number])
            self._addresses[name] = leaders.address_of(number)

    def following(self) -> LatencyByLeader:
        """Return an empty one of the same leaders, so that a leader without messages keeps its columns."""
        found = LatencyByLeader(self._metric)
        found._histograms = {name: Histogram() for name in self._histograms}
        found._addresses = dict(self._addresses)
        return found

    def samples(self) -> Columns:
        """Return p50, p99, p99.9 and the address of each leader, in order of their names."""
        found = []
        for name, histogram in sorted(self._histograms.items()):
            values = histogram.quantiles_seconds(QUANTILES)
            for quantile, value in zip(QUANTILES, values, strict=True):
                plain = quantile_column(self._metric, f"{quantile:g}")
                labels = (("leader", name), *plain.labels)
                found.append((Column(self._metric, labels, plain.unit), value))
            if address := self._addresses.get(name):
                found.append((Column(LEADER_INFO, (("leader", name), ("address", address))), 1.0))
        return found

    def histograms(self) -> dict[str, Histogram]:
        """Return the histograms that are not empty, by the name of their column."""
        return {
            Column(self._metric, (("leader", name),)).name: histogram
            for name, histogram in sorted(self._histograms.items())
            if histogram.total
        }
