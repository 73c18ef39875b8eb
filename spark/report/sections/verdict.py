"""The verdict first: what it is, of which run, and whether a drill was on."""

from __future__ import annotations

import json

from markupsafe import Markup

from soak.core import wording
from soak.core.errors import PlanError
from soak.core.plan.rates import rate_text, rates_between, size_text
from soak.store.run_folder import rate_table
from spark.batch.soak_totals import QUANTILES
from spark.batch.timeline import Timeline
from spark.report.page import Page, headline, joined, table, tag
from spark.report.summary import soak_json

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
    return joined([*parts, _figures(timeline)])


_TITLES = {"publish": "publish latency", "end_to_end": "end-to-end latency"}


def _figures(timeline: Timeline) -> Markup:
    """Return the figures of the whole soak: latencies, and what became of the messages."""
    totals = timeline.totals
    rows = [
        (
            _TITLES[name],
            *("-" if one is None else wording.amount(one, "seconds") for one in found.values()),
        )
        for name in _TITLES
        if name in totals.latencies and (found := totals.latencies[name].seconds())
    ]
    latencies = (
        table(("of the whole soak", *QUANTILES, "max"), rows, numeric=1) if rows else Markup()
    )
    return joined([latencies, tag("p", _messages(timeline))])


def _messages(timeline: Timeline) -> str:
    """Return rates, availability and losses as a sentence; "" where no client recorded anything."""
    body, counts = soak_json(timeline), timeline.totals.messages
    parts = [
        f"{name} {wording.amount(float(str(body[key])), '')}/s"
        for name, key in (("sent", "sent_per_second"), ("received", "received_per_second"))
        if body.get(key) is not None
    ]
    share = timeline.totals.availability
    if share is not None:
        part = "all" if share == 1.0 else f"{wording.share_down(share, 4)} of the"
        parts.append(f"{part} messages that were due were acknowledged")
    parts += [
        f"{counts[metric]:,} {metric.removesuffix('_messages')}"
        for metric in ("failed_messages", "missed_messages")
        if counts.get(metric)
    ]
    lost = timeline.audit.get("lost")
    parts.append("losses not known" if lost is None else f"{lost:,} lost")
    return f"In the soak: {', '.join(parts)}." if counts else ""


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
