"""Latency columns of a record: quantiles, maximum, counts above thresholds, and the same by partition leader."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from soak.core.histogram import Histogram
from soak.core.model import Column
from soak.load.leaders import Leaders
from soak.runtime.recorder import quantile_column

LEADER_INFO = "leader_info"
"""Always 1: its labels tell a leader's address, as pages of Prometheus tell what is no number."""
QUANTILES = (0.5, 0.99, 0.999)


class LatencyByLeader:
    """One histogram a leader; nothing at all while there is only one."""

    def __init__(self, metric: str) -> None:
        self._metric = metric
        self._histograms: dict[str, Histogram] = {}
        self._addresses: dict[str, str] = {}

    def record_ns(
        self, leaders: Leaders, partition: NDArray[np.int64], latency_ns: NDArray[np.int64]
    ) -> None:
        """Count latencies, shape (n,), under the names of those who lead their partitions."""
        leader = leaders.of(partition)
        for number in np.unique(leader[leader >= 0]).tolist():
            name = leaders.name_of(number)
            self._histograms.setdefault(name, Histogram()).record_ns(latency_ns[leader == number])
            self._addresses[name] = leaders.address_of(number)

    def following(self) -> LatencyByLeader:
        """Return an empty one of the same leaders: one without a message keeps its columns."""
        found = LatencyByLeader(self._metric)
        found._histograms = {name: Histogram() for name in self._histograms}
        found._addresses = dict(self._addresses)
        return found

    def samples(self) -> list[tuple[Column, float]]:
        """Return p50, p99 and p99.9 of each leader and where it is to be found, in order of their names."""
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
        """Return by its column's name each histogram that counts something."""
        return {
            Column(self._metric, (("leader", name),)).name: histogram
            for name, histogram in sorted(self._histograms.items())
            if histogram.total
        }
