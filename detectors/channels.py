"""Which series is what: latencies make findings, all others are channels that may explain one."""

from __future__ import annotations

from soak.core.model import Column
from soak.core.series import SeriesId, parse_series, series_name
from soak.core.wording import WAITING

LATENCIES = ("end_to_end_latency_seconds", "publish_latency_seconds")
QUANTILES = ("0.99", "0.999", "0.5")  # in the order in which a finding is named after them
MOST_SERIES = 8192  # whose names are taken apart once


def is_headline(column: Column | SeriesId) -> bool:
    """True for the latencies that a finding is about."""
    return column.metric in LATENCIES and dict(column.labels).get("quantile") in QUANTILES


def is_told(column: Column | SeriesId) -> bool:
    """True for what makes a finding: the latencies, and the wait of those that have none yet."""
    return column.metric == WAITING or is_headline(column)


def latency_of(series: str) -> str:
    """Return source and metric of a series: all quantiles, and all leaders, are one latency."""
    found = parse_series(series)
    return series_name(found.source, found.metric)
