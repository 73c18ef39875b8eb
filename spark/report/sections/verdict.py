"""The verdict first: what it is, the numbers of the soak, its objectives, and whether a drill was on."""

from __future__ import annotations

import json

from markupsafe import Markup

from detectors.objectives import Standing
from soak.core import wording
from soak.core.plan.rates import size_text
from soak.core.units import SECOND_NS
from spark.batch.outcomes import state_of
from spark.batch.soak_totals import QUANTILES
from spark.batch.timeline import Timeline
from spark.report.busy_hosts import busy_hosts
from spark.report.page import (
    Page,
    covered_text,
    headline,
    joined,
    number_of_worst,
    rate_with_bytes,
    table,
    tag,
)
from spark.report.sections.audit import not_audited
from spark.report.summary import outages, planned_rate, soak_json, soak_seconds

ORDER = 10
TITLE = ""

_TITLES = {"publish": "Publish", "end_to_end": "End to end"}


def render(page: Page) -> Markup:
    timeline, covered = page.timeline, page.covered
    planned = wording.span(timeline.plan.phases.soak / SECOND_NS)
    facts = (
        f"Soak: {planned} planned, {wording.span(soak_seconds(timeline))} on record, at {_rate(timeline)} of "
        f"{size_text(timeline.plan.load)}. {covered_text(page)}, {covered.invalid_seconds} s are invalid. "
        f"State: {timeline.run.state}."
    )
    more = Markup()
    if page.shown:
        worst = number_of_worst(page)
        link = tag("a", "See the evidence", href=f"#incident-{worst}", data_pick=worst)
        more = joined([" ", link])
    sentence = tag("p", joined([headline(page), more]), class_=f"verdict {page.verdict}")
    parts = [
        sentence,
        not_audited(page),
        _figures(page),
        tag("p", facts, class_="soft"),
        _objectives(page),
    ]
    for host, used in busy_hosts(timeline).items():
        parts.insert(1, tag("p", wording.busy_host_text(host, used)))
    if page.drill is not None:
        injected = json.dumps(page.drill.get("config", {}))
        text = (
            f"DRILL {page.drill.get('drill', '')}: the fault {page.drill.get('fault', '')} was injected "
            f"into this run ({injected}). The detector did not know."
        )
        if not page.drill.get("drill") and not page.drill.get("fault"):
            text = "DRILL: faults were injected into this run. The detector did not know."
        parts.insert(0, tag("p", text, class_="drill"))
    return joined(parts)


def _figures(page: Page) -> Markup:
    """Return the figures of the whole soak: latencies, rates, and what became of the messages."""
    totals = page.timeline.totals
    rows = [
        (
            _TITLES[name],
            *("-" if one is None else wording.amount(one, "seconds") for one in found.values()),
        )
        for name in _TITLES
        if name in totals.latencies and (found := totals.latencies[name].seconds())
    ]
    parts = []
    if rows:
        parts.append(table(("Latency of the whole soak", *QUANTILES, "max"), rows, numeric=1))
    elif totals.messages.get("acked_messages"):
        text = "Latency of the whole soak is not known: the journals have no histograms."
        parts.append(tag("p", text, class_="soft"))
    if totals.messages:
        cells = [_cell(*one) for one in _numbers(page)]
        parts.append(tag("dl", joined(cells)))
    return tag("div", joined(parts), class_="numbers") if parts else Markup()


def _cell(name: str, value: str, note: str) -> Markup:
    return tag("div", joined([tag("dt", name), tag("dd", value), tag("dd", note, class_="soft")]))


def _numbers(page: Page) -> list[tuple[str, str, str]]:
    """Return name, value and note of rates, losses and availability; all of them are in `summary.json`."""
    timeline = page.timeline
    body, counts, audit = soak_json(timeline), timeline.totals.messages, timeline.audit
    found = []
    if body.get("sent_per_second") is not None:
        rate, _, size = rate_with_bytes(timeline, float(str(body["sent_per_second"]))).partition(
            ", "
        )
        received = body.get("received_per_second")
        more = (
            ""
            if received is None
            else f"; received {rate_with_bytes(timeline, float(str(received)))}"
        )
        found.append(("Sent", rate, f"{size}, of {_rate(timeline)} planned{more}"))
    lost, acked = audit.get("lost"), audit.get("acked")
    note = "" if acked is None else f"of {wording.amount(float(acked), '')} acknowledged"
    shown = "not audited" if timeline.not_audited else wording.known(lost)
    found.append(("Lost", shown, note))
    doubled, reordered = audit.get("duplicated"), audit.get("reordered")
    found.append(("Duplicated", wording.known(doubled), f"reordered {wording.known(reordered)}"))
    share = timeline.totals.availability
    if share is not None:
        parts = [
            f"{counts[metric]:,} {name}"
            for metric, name in (("failed_messages", "failed"), ("missed_messages", "skipped"))
            if counts.get(metric)
        ]
        shown = "100%" if share == 1.0 else wording.share_down(share, 3)
        note = ", ".join(parts) or "no message failed or was skipped"
        stopped = outages(timeline, page.judged)
        if stopped["count"]:
            times = wording.counted(int(stopped["count"]), "outage")
            came = (
                f"a producer got no acknowledgement then; {shown} of the messages were acknowledged"
            )
            note = ", ".join([came, *parts])
            shown = f"{times}, {stopped['seconds']:.0f} s"
        found.append(("Availability", shown, note))
    return found


def _rate(timeline: Timeline) -> str:
    return planned_rate(timeline, timeline.soak_spans)


def _objectives(page: Page) -> Markup:
    """Return the objectives of the plan: how many minutes or messages were bad, and what is left of each."""
    if not page.standings:
        return tag("p", "The plan states no objectives.", class_="soft")
    note = (
        "Only the soak counts, without the seconds in which a client itself was at fault. A minute is bad "
        "when too many of its messages were above the limit, failed or were skipped, and in an outage."
    )
    headings = ("objective", "state", "bad", "judged", "budget", "left")
    rows = [_objective_row(page, one) for one in page.standings]
    return joined([table(headings, rows, numeric=2), tag("p", note, class_="soft")])


def _objective_row(page: Page, one: Standing) -> tuple[str, ...]:
    state, unit = state_of(one), one.objective.unit
    if one.missed_k is not None:
        state = f"missed since {page.moment(one.missed_k)}"
    return (
        str(one.objective),
        state,
        wording.counted(one.bad, unit.removesuffix("s")),
        f"{one.judged:,} of {one.whole:,}",
        wording.amount(one.budget, unit),
        wording.budget_left_text(one.left, unit).removesuffix(" left"),
    )
