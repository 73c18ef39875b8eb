"""How the whole distribution of latency moved: the share of messages in each band, over time."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from soak.core import wording
from soak.core.histogram import THRESHOLDS_SECONDS
from spark.report.charts import WIDTH, Plot
from spark.report.page import Page, joined, tag

ORDER = 40
TITLE = "Distribution of end-to-end latency"

METRIC = "end_to_end_latency_above_messages"
HEIGHT = 260
MOST_COLUMNS = 240
_SHADES = 5  # classes heat1 to heat5: share of messages 0.1 % to all, a factor of ten in two shades


def render(page: Page) -> Markup:
    found = shares(page)
    if found is None:
        return tag("p", "Nothing was received.")
    k, thresholds, share = found
    plot = Plot(page, HEIGHT, thresholds[0], thresholds[-1], "seconds")
    width = plot.x(float(k[1] - k[0])) - plot.x(0) + 0.3 if k.size > 1 else WIDTH / 10
    cells = []
    for band in range(share.shape[0]):
        top, foot = plot.y(thresholds[band + 1]), plot.y(thresholds[band])
        for shade in range(1, _SHADES + 1):
            hit = np.flatnonzero(_shade(share[band]) == shade)
            path = "".join(
                f"M{plot.x(float(k[at])):.1f} {top:.1f}h{width:.1f}v{foot - top:.1f}h{-width:.1f}z"
                for at in hit
            )
            if path:
                text = _extent(thresholds[band], thresholds[band + 1])
                cells.append(tag("path", tag("title", text), d=path, class_=f"heat{shade}"))
    plot._below += cells  # noqa: SLF001  # cells lie below the axes, as bands do
    for one in page.shown:
        plot.mark(one.finding.onset_k, "onset", f"{page.moment(one.finding.onset_k)}")
    keys = ((1, "below 1 %"), (2, "1-3 %"), (3, "3-10 %"), (4, "10-30 %"), (5, "30 % and more"))
    legend = [tag("span", joined([tag("i", class_=f"swatch heat{n}"), text])) for n, text in keys]
    note = "Share of each interval's messages in each latency band, from 100 us on, eight bands a decade."
    return joined(
        [tag("p", note), tag("p", joined(legend), class_="legend"), plot.svg("Heat map of latency")]
    )


def shares(
    page: Page,
) -> tuple[NDArray[np.int64], list[float], NDArray[np.float64]] | None:
    """Return bucket starts, thresholds, and the share of messages between two of them: (bands, buckets).

    Messages of all consumers count together; above the highest threshold they belong to the topmost band.
    """
    timeline = page.timeline
    by_threshold = defaultdict(list)
    for name, column in timeline.columns.items():
        if column.metric == METRIC and timeline.series[name][0].size:
            by_threshold[float(dict(column.labels)["threshold"])].append(timeline.series[name])
    if len(by_threshold) < 2:  # noqa: PLR2004  # a band has two ends
        return None
    thresholds = sorted(by_threshold)
    step = max(timeline.step, -(-timeline.end_k // MOST_COLUMNS))
    buckets = np.arange(0, max(timeline.end_k, 1), step)
    above = np.zeros((len(thresholds), buckets.size))
    for row, threshold in enumerate(thresholds):
        for k, counts in by_threshold[threshold]:
            keep = (k >= 0) & (k < buckets.size * step)
            np.add.at(above[row], k[keep] // step, counts[keep])
    between = above[:-1] - above[1:]
    between[-1] += above[-1]  # nobody tells these apart
    used = np.flatnonzero(between.sum(axis=1))
    if used.size == 0:
        return None
    first, last = int(used[0]), int(used[-1])
    total = np.maximum(above[0], 1.0)
    return buckets, thresholds[first : last + 2], between[first : last + 1] / total


def _extent(low: float, high: float) -> str:
    above = wording.amount(low, "seconds")
    if high == THRESHOLDS_SECONDS[-1]:
        return f"{above} and more"
    return f"{above} to {wording.amount(high, 'seconds')}"


def _shade(share: NDArray[np.float64]) -> NDArray[np.int64]:
    edges = np.array([0.01, 0.03, 0.10, 0.30])
    return np.where(share > 0, 1 + np.searchsorted(edges, share, side="right"), 0)
