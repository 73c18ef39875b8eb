"""Each finding: what stepped, since when, why, and what else moved."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from soak.core import wording
from soak.core.model import Change, Explanation
from soak.core.series import parse_series
from spark.batch.offline_analysis import Judged
from spark.report.page import Page, joined, table, tag

ORDER = 20
TITLE = "Findings"

_SEEN = {
    "both": "during the run, and again in the offline analysis of the whole run",
    "online": "during the run; the offline analysis does not show it",
    "offline": "only in the offline analysis of the whole run",
}
_MOST_SERIES = 12


def render(page: Page) -> Markup:
    found = [_finding(page, one) for one in page.shown]
    if not found:
        found = [tag("p", "No outage and no rise in latency was found.")]
    return joined([*found, *([_improvements(page)] if page.improvements else [])])


def _improvements(page: Page) -> Markup:
    """Return the falls of latency, which are no findings."""
    rows = [
        (
            page.moment(change.onset_k),
            wording.title(change.series),
            wording.level_text(change.series, change.kind, change.before, change.after),
        )
        for change in page.improvements[:_MOST_SERIES]
    ]
    more = len(page.improvements) - len(rows)
    heading = "Latency also improved; an improvement is no finding."
    rest = tag("p", f"And {more} more.") if more > 0 else ""
    return joined([tag("p", heading), table(("since", "latency", "change"), rows), rest])


def _finding(page: Page, one: Judged) -> Markup:
    found = one.finding
    low, high = found.interval
    title = f"{wording.what_text(found)}, cause {found.cause}"
    about = "" if found.is_about_cluster else " Not counted against the cluster."
    gone = "" if found.resolved_k is None else f" Resolved at {page.moment(found.resolved_k)}."
    text = (
        f"Since {page.moment(found.onset_k)}; with 95 % confidence between {page.moment(low)} and "
        f"{page.moment(high)}. {found.state.capitalize()}; confidence {found.confidence:.2%} that it "
        f"changed. Seen {_SEEN[one.found]}.{gone}{about}"
    )
    in_step = {change.series for change in one.step}
    others = [
        wording.title_with_other_source(series, found.series)
        for series in found.changes
        if series not in in_step
    ]
    shown = ", ".join(others[:_MOST_SERIES])
    more = f" and {len(others) - _MOST_SERIES} more" if len(others) > _MOST_SERIES else ""
    parts = [
        tag("h3", title),
        tag("p", text),
        tag("ul", joined([tag("li", line) for line in one.size.lines()])) if one.size else "",
        _step(page, one.step) if one.step else "",
        joined([_cause(cause) for cause in found.causes]),
        tag("p", f"Changed with it: {shown}{more}.") if others else "",
    ]
    return tag("article", joined(parts), class_="finding")


def _step(page: Page, step: Sequence[Change]) -> Markup:
    """Return the step in the offline analysis: one onset, and each latency that changed, clearest first."""
    low, high = step[0].interval
    text = (
        f"In the offline analysis it is one step at {page.moment(step[0].onset_k)}, with 95 % confidence "
        f"between {page.moment(low)} and {page.moment(high)}, of:"
    )
    rows = []
    for change in step[:_MOST_SERIES]:
        moved = wording.level_text(change.series, "step", change.before, change.after)
        source = parse_series(change.series).source
        rows.append((wording.title(change.series), source, moved))
    left = len(step) - _MOST_SERIES
    more = tag("p", f"And {left} more.") if left > 0 else ""
    return joined([tag("p", text), table(("latency", "source", "moved"), rows), more])


def _cause(cause: Explanation) -> Markup:
    items = joined([tag("li", item.text) for item in cause.evidence])
    what = f", score {cause.score:.2f}" if cause.score > 0 else ""
    if not what and cause.evidence:
        what = "; other changes:"
    if cause.suspect:
        what = f" ({cause.suspect}){what}"
    named = tag("p", joined([tag("strong", cause.cause), what])) + tag("ul", items)
    if not cause.against:
        return named
    against = joined([tag("li", item.text) for item in cause.against])
    return named + tag("p", "Against:") + tag("ul", against)
