"""The verdict first: what it is, of which run, and whether a drill was on."""

from __future__ import annotations

import json

from markupsafe import Markup

from soak.core import wording
from soak.core.errors import PlanError
from soak.core.plan.rates import rate_text, rates_between, size_text
from soak.store.run_folder import rate_table
from spark.batch.timeline import Timeline
from spark.report.page import Page, headline, joined, tag

ORDER = 10
TITLE = ""


def render(page: Page) -> Markup:
    timeline, covered = page.timeline, page.covered
    facts = (
        f"{timeline.plan.name}, run {timeline.run.id} from {wording.iso(timeline.run.start_wall_ns)}: "
        f"{wording.span(timeline.soak_seconds.size)} of soak at {_rate(timeline)} of "
        f"{size_text(timeline.plan.load)}, {wording.share_down(covered.ratio, 1)} of the seconds recorded, "
        f"{covered.invalid_seconds} s invalid. State: {timeline.run.state}."
    )
    parts = [tag("p", headline(page), class_=f"verdict {page.verdict}"), tag("p", facts)]
    if page.drill is not None:
        injected = json.dumps(page.drill.get("config", {}))
        text = (
            f"DRILL {page.drill.get('drill', '')}: the fault {page.drill.get('fault', '')} was injected "
            f"into this run ({injected}). The detector did not know."
        )
        parts.insert(0, tag("p", text, class_="drill"))
    return joined(parts)


def _rate(timeline: Timeline) -> str:
    """Return which rates the soak was to have, from the lowest to the highest."""
    load = timeline.plan.load
    try:
        table = rate_table(timeline.plan, timeline.folder)
    except PlanError:
        return f"the rates of {load.profile.file}, which cannot be read,"
    spans = timeline.soak_spans
    found = [
        rate for span in spans for _, rate in rates_between(load, timeline.phases, table, *span)
    ]
    return rate_text(found or [load.rate])
