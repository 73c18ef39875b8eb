"""CPU of hosts: shares of what a page counts by mode, and from where on work waits for a processor.

Method:  of the cores in each mode (node_exporter, as /proc/stat) only their sum over all modes makes a share:
         used is what is neither idle nor waits for a drive, as the probe `host` has it, with what is stolen.
         A share runs short at a level, however little of it was left before: it cannot double at 80 %.
Assumes: all modes of a host are in one answer.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import reduce

import numpy as np

from detectors.causes.channel import Shift
from detectors.nearby import Nearby
from soak.core.model import Series
from soak.core.series import SeriesId, parse_series

_USED, _STOLEN = "node_cpu_ratio", "node_cpu_steal_ratio"  # of a page
_BY_MODE = "node_cpu_seconds"
_NOT_USED = ("idle", "iowait")
_HARDLY_MORE = 1.5


@dataclass(frozen=True, slots=True)
class Limit:
    """From where on work has to wait; `rise` is the least difference."""

    metric: str
    after: float
    rise: float

    def was_exceeded(self, one: Shift) -> bool:
        """True for a channel that was as far before, and is hardly further now."""
        return one.before >= self.after and one.ratio < _HARDLY_MORE

    def is_exceeded(self, one: Shift) -> bool:
        """True for a channel that came this far, whenever that was."""
        return one.after >= self.after and one.rise >= self.rise


USED = Limit("host_cpu_ratio", 0.75, 0.15)
STOLEN = Limit("host_cpu_steal_ratio", 0.05, 0.04)
WAITING = Limit("process_cpu_waiting_ratio", 0.5, 0.25)
PRESSURE = Limit("node_pressure_cpu_waiting_seconds", 0.25, 0.15)
BUSIEST_CORE = Limit("vectorized_reactor_utilization_ratio", 0.9, 0.1)
LIMITS = {
    one.metric: one
    for one in (
        USED,
        STOLEN,
        Limit(_USED, USED.after, USED.rise),
        Limit(_STOLEN, STOLEN.after, STOLEN.rise),
        PRESSURE,
        BUSIEST_CORE,
    )
}
"""Of a broker's host, and of a broker's busiest core, by metric."""
USED_OF_STOLEN = {STOLEN.metric: USED.metric, _STOLEN: _USED}
"""The share of a host that is used or stolen, by that of what is stolen alone."""
SHARES = (USED.metric, BUSIEST_CORE.metric, _USED)
"""How much of the processors is used."""
OF_HOST = frozenset({USED.metric, _USED, PRESSURE.metric})
"""What our own daemons on the host have a part in."""


def runs_short(one: Shift) -> bool:
    """True for CPU that rose to where work waits for it, whenever that was."""
    limit = LIMITS.get(one.metric)
    return limit is not None and one.is_higher and limit.is_exceeded(one)


def was_short(found: Iterable[Shift]) -> bool:
    """True when the CPU of all these, which ran short at the onset, had been nearly as short before."""
    return all(one.metric in LIMITS and LIMITS[one.metric].was_exceeded(one) for one in found)


def with_shares(nearby: Nearby) -> Nearby:
    """Return what is nearby, with both shares of each host whose CPU a page counts by mode."""
    hosts: dict[SeriesId, dict[str, Series]] = {}
    for name, cores in nearby.named(_BY_MODE).items():
        one = parse_series(name)
        labels = tuple(pair for pair in one.labels if pair[0] != "mode")
        hosts.setdefault(SeriesId(one.source, _USED, labels), {})[one.label("mode")] = cores
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
        stolen = replace(used, metric=_STOLEN)
        found.append(Series(str(stolen), k[is_known], cores["steal"][is_known] / total[is_known]))
    return found
