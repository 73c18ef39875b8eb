"""Load, hosts, drives and brokers over time, and a search of every series on the page."""

from __future__ import annotations

import numpy as np
from markupsafe import Markup

from soak.core import wording
from spark.batch.digest import EXTREMES_SECONDS, reduction
from spark.batch.timeline import leader_addresses, per_second
from spark.report.interactive import BROKER_PREFIXES, FIRST_METRICS
from spark.report.page import Page, joined, shown_name, table, tag, where

ORDER = 50
TITLE = "Load, hosts, drives and brokers"

MOST_ROWS = 60


def render(page: Page) -> Markup:
    """Return the places of the charts, and for readers without them a table of levels in the soak."""
    parts = []
    bookies = " and bookies" if page.timeline.plan.broker_kind == "pulsar" else ""
    for box, heading in (
        ("load", ""),
        ("hosts", "Hosts and drives"),
        ("brokers", f"Metrics of brokers{bookies}"),
    ):
        shown = heading and any(
            column.metric.startswith(_PREFIXES[box]) for column in page.timeline.columns.values()
        )
        parts.append(tag("h3", heading, class_="js-only") if shown else "")
        parts.append(tag("div", "", id=f"{box}-grid", class_="grid js-only"))
    return joined([*parts, _search(page), _levels(page)])


_PREFIXES: dict[str, tuple[str, ...]] = {
    "load": (),
    "hosts": FIRST_METRICS,
    "brokers": BROKER_PREFIXES,
}


_FIELD = Markup(  # our own
    '<input type="search" placeholder="for example: cpu, lag, fsync" autocomplete="off" spellcheck="false">'
)


def _search(page: Page) -> Markup:
    label = tag("label", joined([f"Find any of {len(page.timeline.series):,} series ", _FIELD]))
    found = tag("div", "", class_="found") + tag("div", "", class_="grid")
    return tag("div", joined([label, " ", tag("output", ""), found]), id="search", class_="js-only")


def _levels(page: Page) -> Markup:
    timeline, addresses = page.timeline, leader_addresses(page.timeline)
    names = [
        name
        for name, column in sorted(timeline.columns.items())
        if (column.metric in FIRST_METRICS or column.metric.startswith(BROKER_PREFIXES))
        and dict(column.labels).get("quantile", "0.99") == "0.99"
        and timeline.series[name][0].size
    ]
    if not names:
        return tag("p", "No probe recorded anything.")
    rows = []
    for name in names[:MOST_ROWS]:
        is_counted = reduction(timeline.columns[name]) is np.sum
        k, values = per_second(timeline, name) if is_counted else timeline.series[name]
        judged = values[timeline.is_soak(k)]
        if judged.size:
            low, middle, high = np.quantile(judged, (0, 0.5, 1))
            kept = timeline.extremes.get(name)
            if kept is not None:  # the values are of several seconds
                is_whole = timeline.is_soak(kept.k, EXTREMES_SECONDS)
                low = np.nanmin([low, *kept.low[is_whole]])
                high = np.nanmax([high, *kept.high[is_whole]])
            levels = [wording.amount_of(name, float(one)) for one in (low, middle, high)]
            rows.append(
                (shown_name(wording.title(name), 90), where(page, name, addresses), *levels)
            )
    more = (
        tag("p", f"{len(names) - MOST_ROWS} more are in the journals.")
        if len(names) > MOST_ROWS
        else ""
    )
    heading = tag("summary", "Levels in the soak, as a table")
    shown = table(("series", "where", "lowest", "median", "highest"), rows, numeric=2)
    return tag("details", joined([heading, shown, more]), open="open", class_="levels-table")
