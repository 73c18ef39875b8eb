"""What was decided when, and why: how fast a ramp got, how long a backlog took."""

from __future__ import annotations

from markupsafe import Markup

from soak.core import wording
from soak.core.units import format_rate
from spark.report.page import Page, joined, table, tag
from spark.report.summary import phase_rates, planned_rate

ORDER = 55
TITLE = "Phases"

MOST_ROWS = 200


def render(page: Page) -> Markup:
    timeline = page.timeline
    rows = []
    for one, edge in timeline.phases.held(timeline.end_k):
        rate = (
            format_rate(one.rate)
            if one.rate is not None
            else _planned(page, one.phase, one.from_k, edge)
        )
        reached = phase_rates(timeline, one.from_k, edge)
        rates = [
            "-" if each is None else f"{wording.amount(each, '')}/s" for each in reached.values()
        ]
        name = f"{one.phase} {one.part}".rstrip()
        length = wording.span(edge - one.from_k)
        rows.append((page.moment(one.from_k), name, one.reason, length, rate, *rates))
    headings = ("from", "phase", "why", "for", "planned", "sent", "received")
    parts = [table(headings, rows[:MOST_ROWS], numeric=3)]
    if len(rows) > MOST_ROWS:
        parts.append(tag("p", f"{len(rows) - MOST_ROWS} more are in phases.jsonl."))
    return joined(parts)


def _planned(page: Page, phase: str, from_k: int, to_k: int) -> str:
    """Return the rate of the plan; "" where nothing is sent."""
    return "" if phase in {"drain", "end"} else planned_rate(page.timeline, [(from_k, to_k)])
