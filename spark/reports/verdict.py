"""The verdict first: what it is, of which run, and whether a drill was on."""

from __future__ import annotations

import json

from markupsafe import Markup

from soak.core import wording
from soak.core.units import format_rate, format_size
from spark.reports._headline import headline
from spark.reports._page import Page, joined, tag

ORDER = 10
TITLE = ""


def render(page: Page) -> Markup:
    timeline, covered = page.timeline, page.covered
    load = timeline.plan.load
    soak = timeline.phases.decision_at(timeline.soak[0])
    rate = load.rate if soak is None or soak.rate is None else soak.rate
    facts = (
        f"{timeline.plan.name}, run {timeline.run.id} from {wording.iso(timeline.run.start_wall_ns)}: "
        f"{wording.span(timeline.soak_seconds.size)} of soak at {format_rate(rate)} of "
        f"{format_size(load.message_size)}, {covered.ratio:.1%} of the seconds recorded, "
        f"{covered.untrusted_seconds} s not trusted. State: {timeline.run.state}."
    )
    parts = [tag("p", headline(page), class_=f"verdict {page.verdict}"), tag("p", facts)]
    if page.drill is not None:
        injected = json.dumps(page.drill.get("config", {}))
        text = (
            f"DRILL {page.drill.get('drill', '')}: the fault {page.drill.get('fault', '')} was injected "
            f"into this run ({injected}). The detector was not told."
        )
        parts.insert(0, tag("p", text, class_="drill"))
    return joined(parts)
