"""A result as series: latencies by sample, and what may explain them by second, under our own names."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from soak.core.model import Column, Series
from soak.omb.fields import END_TO_END, PUBLISH, Family, statistic_name
from soak.omb.result import Floats, Result

SOURCE = "omb"
_QUANTILES = {"p50": "0.5", "p99": "0.99", "p99.9": "0.999"}
_BACKLOG = "backlog_messages"
_RATES = {
    "publish_rate_per_second": "sent_messages",
    "consume_rate_per_second": "received_messages",
}
_PARTS = 5  # of a sample, so that what lasts for a few samples has values enough to be judged


def latencies(result: Result) -> dict[str, Series]:
    """Return the measured latencies by their names in the result; k counts samples, missing ones left out."""
    found = {}
    for family in (END_TO_END, PUBLISH):
        for statistic in _QUANTILES:
            name = statistic_name(family, statistic)
            values = result.samples.get(name, np.empty(0))
            here = np.flatnonzero(values > 0.0)  # NaN is not
            if here.size:
                found[name] = Series(_name(family, statistic), here, values[here])
    return found


def by_second(result: Result) -> dict[str, Series]:
    """Return latencies, rates and backlog by name; k counts seconds, several values a sample.

    Within a sample latencies and rates are the same; a backlog, told at its end, goes straight there.
    """
    begins = np.concatenate([[0.0], result.seconds])
    places = np.arange(result.seconds.size * _PARTS) / _PARTS
    k = np.unique(np.floor(np.interp(places, np.arange(begins.size), begins)).astype(np.int64))
    sample = np.searchsorted(result.seconds, k, side="right")
    told = {one.name: result.samples[name][sample] for name, one in latencies(result).items()}
    told |= {
        f"{SOURCE}|{metric}": result.samples[name][sample]
        for name, metric in _RATES.items()
        if name in result.samples
    }
    backlog = result.samples.get(_BACKLOG, np.empty(0))
    known = np.flatnonzero(np.isfinite(backlog))
    if known.size:
        told[f"{SOURCE}|lag_messages"] = np.interp(k, result.seconds[known], backlog[known])
    return {name: _measured(name, k, values) for name, values in told.items()}


def second_of(result: Result, sample: int) -> int:
    """Return the second in which a sample begins; that of the one after the last is the end."""
    return int(result.seconds[sample - 1]) if sample else 0


def _measured(name: str, k: NDArray[np.int64], values: Floats) -> Series:
    here = np.isfinite(values)
    return Series(name, k[here], values[here])


def _name(family: Family, statistic: str) -> str:
    column = Column(family.metric, (("quantile", _QUANTILES[statistic]),), "seconds")
    return f"{SOURCE}|{column.name}"
