"""What else moved: the channels in which a cause would show, on the same time axis."""

from __future__ import annotations

import numpy as np
from markupsafe import Markup

from soak.core import wording
from spark.report.charts import Plot, log_range, shade
from spark.report.page import Page, joined, tag

ORDER = 50
TITLE = "Series in which a cause would show"

HEIGHT = 110
MOST_PLOTS = 8
TURNOVER = (
    "disk_device_turnover_ratio"  # of a drive's life: a restarted probe does not begin it anew
)
SHOWN = (
    ("fsync_latency_seconds", "0.99"),
    ("disk_write_await_seconds", ""),
    ("node_disk_io_time_seconds", ""),
    (TURNOVER, ""),
    ("retention_deleted_bytes", ""),
    ("schedule_lag_seconds", "0.99"),
    ("host_cpu_ratio", ""),
    ("node_pressure_io_waiting_seconds", ""),
    ("lag_messages", ""),
)


def render(page: Page) -> Markup:
    parts = [part for metric, quantile in SHOWN for part in _plots(page, metric, quantile)]
    return joined(parts) if parts else tag("p", "No probe recorded anything.")


def _plots(page: Page, metric: str, quantile: str) -> list[Markup]:
    """Return the plots of a metric; of very many, as of a thousand topics, those that moved most."""
    series = page.timeline.series
    names = [
        name
        for name, column in sorted(page.timeline.columns.items())
        if column.metric == metric
        and (not quantile or ("quantile", quantile) in column.labels)
        and series[name][0].size
    ]
    shown = sorted(names, key=lambda name: -float(np.ptp(series[name][1])))[:MOST_PLOTS]
    plots = [_plot(page, name) for name in names if name in shown]
    if len(names) > len(shown):
        rest = (
            f"{len(names) - len(shown)} more of {metric}, which changed less, are in the journals."
        )
        plots.append(tag("p", rest))
    return plots


def _plot(page: Page, name: str) -> Markup:
    k, values = page.timeline.series[name]
    column = page.timeline.columns[name]
    unit = column.unit
    if column.metric == TURNOVER:
        values = values - values[0]  # since the run's begin
    is_log = unit == "seconds" and bool((values > 0).any())
    if is_log:
        low, high = log_range([values])
    else:
        low, high = min(0.0, float(values.min())), float(np.max(values))
        high = high if high > low else low + 1.0
    plot = Plot(page, HEIGHT, low, high, unit, is_log=is_log)
    shade(plot)
    plot.line(k, values, "channel", name)
    title = wording.title(name)
    return tag("h3", title, title=name) + plot.svg(title)
