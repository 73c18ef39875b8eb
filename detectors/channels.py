"""Which series is what: latencies make findings, all others are channels that may explain one."""

from __future__ import annotations

import re
from functools import lru_cache

from soak.core.model import Column
from soak.core.wording import WAITING

LATENCIES = ("end_to_end_latency_seconds", "publish_latency_seconds")
QUANTILES = ("0.99", "0.999", "0.5")  # in the order in which a finding is named after them
MOST_SERIES = 8192  # whose names are taken apart once
_LABEL = re.compile(r'(\w+)="([^"]*)"')


def is_headline(column: Column) -> bool:
    """True for the latencies that a finding is about."""
    return column.metric in LATENCIES and dict(column.labels).get("quantile") in QUANTILES


def is_told(column: Column) -> bool:
    """True for what makes a finding: the latencies, and the wait of those that have none yet."""
    return column.metric == WAITING or is_headline(column)


def source_of(series: str) -> str:
    """Return the part before the bar of `source|column name`."""
    return series.partition("|")[0]


def host_of(source: str) -> str:
    """Return the part of `daemon@host` after the at, "" without one."""
    return source.partition("@")[2]


@lru_cache(maxsize=MOST_SERIES)
def column_of(series: str) -> Column:
    """Return metric and labels from `source|column name`; the name does not hold the unit."""
    name = series.partition("|")[2] or series
    metric, _, labels = name.partition("{")
    return Column(metric, tuple(_LABEL.findall(labels)))


def latency_of(series: str) -> str:
    """Return source and metric of a series: all quantiles, and all leaders, are one latency."""
    return f"{source_of(series)}|{column_of(series).metric}"
