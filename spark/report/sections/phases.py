"""What was decided when, and why, and what came of it: rates, and latencies of the phase."""

from __future__ import annotations

from markupsafe import Markup

from soak.core import wording
from spark.batch.timeline import Timeline
from spark.report.page import Page, joined, rate_with_bytes, table, tag
from spark.report.summary import phase_rate, phase_rates

ORDER = 55
TITLE = "Phases"

MOST_ROWS = 200


def render(page: Page) -> Markup:
    timeline = page.timeline
    rows, held = [], timeline.phases.held(timeline.end_k)
    for one, edge in held[:MOST_ROWS]:
        rate = phase_rate(timeline, one, edge)
        reached = phase_rates(timeline, one.from_k, edge)
        rates = [
            "-" if each is None else rate_with_bytes(timeline, each) for each in reached.values()
        ]
        latencies = [
            "-" if value is None else wording.amount(value, "seconds")
            for latency in ("publish", "end_to_end")
            for value in _latency(timeline, one.from_k, latency)
        ]
        name = f"{one.phase} {one.part}".rstrip()
        length = wording.span(edge - one.from_k)
        rows.append((page.moment(one.from_k), name, one.reason, length, rate, *rates, *latencies))
    headings = (
        *("from", "phase", "why", "for", "planned", "sent", "received"),
        *("publish p50", "p99", "end to end p50", "p99"),
    )
    parts = [table(headings, rows, numeric=3)]
    if len(held) > MOST_ROWS:
        parts.append(tag("p", f"{len(held) - MOST_ROWS} more are in summary.json."))
    return joined(parts)


def _latency(timeline: Timeline, from_k: int, name: str) -> tuple[float | None, float | None]:
    """Return p50 and p99 of a phase, in seconds."""
    found = timeline.totals.phase_seconds(from_k, name) or {}
    return found.get("p50"), found.get("p99")
