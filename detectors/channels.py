"""Which series is what: latencies make findings, all others are channels that may explain one."""

from __future__ import annotations

from soak.core.model import Change, Column
from soak.core.series import SeriesId, parse_series, series_name

LATENCIES = ("end_to_end_latency_seconds", "publish_latency_seconds")
QUANTILES = ("0.99", "0.999", "0.5")  # in the order in which a finding is named after them
MOST_SERIES = 8192  # whose names are taken apart once


def is_headline(column: Column | SeriesId) -> bool:
    """True for the latencies that a finding is about."""
    return column.metric in LATENCIES and dict(column.labels).get("quantile") in QUANTILES


def is_of_finding(change: Change) -> bool:
    """True for what makes a finding: an outage, and changes of the latencies."""
    return change.kind == "outage" or is_headline(parse_series(change.series))


def latency_of(series: str) -> str:
    """Return source and metric of a series: all quantiles, and all leaders, are one latency."""
    found = parse_series(series)
    return series_name(found.source, found.metric)
