"""CPU of a host that a page counts by mode, as one used share and one stolen share.

Method:  of the cores in each mode (node_exporter, as /proc/stat) only their sum over all modes makes a share:
         used is what is neither idle nor waits for a drive, as the probe `host` has it, with what is stolen.
Assumes: all modes of a host are in one answer.
"""

from __future__ import annotations

from dataclasses import replace
from functools import reduce

import numpy as np

from detectors.nearby import Nearby
from soak.core.model import Series
from soak.core.series import SeriesId, parse_series

USED, STOLEN = "node_cpu_ratio", "node_cpu_steal_ratio"
_BY_MODE = "node_cpu_seconds"
_NOT_USED = ("idle", "iowait")


def with_shares(nearby: Nearby) -> Nearby:
    """Return what is nearby, with both shares of each host whose CPU a page counts by mode."""
    hosts: dict[SeriesId, dict[str, Series]] = {}
    for name, cores in nearby.named(_BY_MODE).items():
        one = parse_series(name)
        labels = tuple(pair for pair in one.labels if pair[0] != "mode")
        hosts.setdefault(SeriesId(one.source, USED, labels), {})[one.label("mode")] = cores
    series, lags = dict(nearby.series), dict(nearby.lag_seconds)
    for used, modes in hosts.items():
        if "idle" not in modes:
            continue
        for share in _shares(used, modes):
            series[share.name] = share
            lags[share.name] = nearby.lag_seconds.get(modes["idle"].name, 0.0)
    return replace(nearby, series=series, lag_seconds=lags) if hosts else nearby


def _shares(used: SeriesId, modes: dict[str, Series]) -> list[Series]:
    k = reduce(np.intersect1d, [one.k for one in modes.values()])
    cores = {mode: one.values[np.isin(one.k, k)] for mode, one in modes.items()}
    total = np.sum(list(cores.values()), axis=0)
    is_known = total > 0.0
    unused = np.sum([cores[mode] for mode in _NOT_USED if mode in cores], axis=0)
    found = [Series(str(used), k[is_known], 1.0 - unused[is_known] / total[is_known])]
    if "steal" in cores:
        stolen = replace(used, metric=STOLEN)
        found.append(Series(str(stolen), k[is_known], cores["steal"][is_known] / total[is_known]))
    return found
