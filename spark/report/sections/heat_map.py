"""How the whole distribution of latency moved: the share of messages in each band, over time."""

from __future__ import annotations

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from soak.core import wording
from soak.core.model import THRESHOLDS_SECONDS
from soak.core.series import parse_series
from spark.batch.outcomes import shares_shown
from spark.report.charts import WIDTH, Plot
from spark.report.page import Page, clients_text, joined, tag, titled

ORDER = 40
TITLE = "Latency of all messages over time"

HEIGHT = 278
MOST_COLUMNS = 240
_NAMES = {"publish": "Publish", "end_to_end": "End-to-end"}
_SHADES = 5  # classes heat1 to heat5: share of messages 0.1 % to all, a factor of ten in two shades


def render(page: Page) -> Markup:
    timeline = page.timeline
    step = max(timeline.step, -(-timeline.end_k // MOST_COLUMNS) // timeline.step * timeline.step)
    found = shares_shown(timeline, step)
    if found is None:
        if any(
            timeline.totals.messages.get(name) for name in ("acked_messages", "received_messages")
        ):
            return tag(
                "p", "How long each message took is not known: the journals have no histograms."
            )
        return tag("p", "No message was acknowledged or received.")
    latency, thresholds, share = found
    name = _NAMES[latency]
    k = np.arange(share.shape[1]) * step
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
    keys = ((1, "below 1%"), (2, "1 to 3%"), (3, "3 to 10%"), (4, "10 to 30%"), (5, "30% and more"))
    legend = [tag("span", joined([tag("i", class_=f"swatch heat{n}"), text])) for n, text in keys]
    note = "Share of each interval's messages in each latency band, from 100 µs on, eight bands a decade."
    metric = f"{latency}_latency_above_messages"
    counted = [one for one in timeline.columns if parse_series(one).metric == metric]
    still = [
        titled(page, f"{name} latency", clients_text(page, counted)),
        tag("p", joined(["Share of the messages of an interval: ", *legend]), class_="legend"),
        plot.svg(f"Heat map of {name.lower()} latency, {page.times}"),
    ]
    drawn = tag("div", "", class_="wide js-only") + tag("div", joined(still), class_="still")
    return joined([drawn, tag("p", note, class_="soft")])


def _extent(low: float, high: float) -> str:
    above = wording.amount(low, "seconds")
    if high == THRESHOLDS_SECONDS[-1]:
        return f"{above} and more"
    return f"{above} to {wording.amount(high, 'seconds')}"


def _shade(share: NDArray[np.float64]) -> NDArray[np.int64]:
    edges = np.array([0.01, 0.03, 0.10, 0.30])
    return np.where(share > 0, 1 + np.searchsorted(edges, share, side="right"), 0)
