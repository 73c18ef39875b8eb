"""What was decided when, and why: how fast a ramp got, how long a backlog took."""

from __future__ import annotations

from markupsafe import Markup

from soak.core import wording
from soak.core.units import format_rate
from spark.report.page import Page, joined, table, tag

ORDER = 55
TITLE = "Phases"

MOST_ROWS = 200


def render(page: Page) -> Markup:
    timeline = page.timeline
    rows = []
    for one, edge in timeline.phases.held(timeline.end_k):
        rate = format_rate(one.rate) if one.rate is not None else ""
        name = f"{one.phase} {one.part}".rstrip()
        length = wording.span(edge - one.from_k)
        rows.append((page.moment(one.from_k), name, one.reason, rate, length))
    headings = ("from", "phase", "why", "rate", "for")
    parts = [table(headings, rows[:MOST_ROWS], numeric=3)]
    if len(rows) > MOST_ROWS:
        parts.append(tag("p", f"{len(rows) - MOST_ROWS} more are in phases.jsonl."))
    return joined(parts)
