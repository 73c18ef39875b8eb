"""The incidents in order of time: what changed, how bad, why, what speaks against it, what to do next."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Sequence

from markupsafe import Markup

from detectors import attribution
from soak.core import wording
from soak.core.model import Change, Evidence, Explanation
from soak.runtime.incident_size import IncidentSize
from spark.batch.offline_analysis import Judged
from spark.batch.peaks import MOST_PEAKS, Peak
from spark.batch.timeline import leader_addresses
from spark.report.backdrop import seconds_of_row
from spark.report.busy_hosts import busy_hosts_of
from spark.report.page import (
    Page,
    joined,
    numbered,
    plain,
    shown_name,
    source_text,
    table,
    tag,
    waited_text,
    what_text,
    where,
)
from spark.report.summary import affected, span_of

ORDER = 20
TITLE = "Incidents"

_SEEN = {
    "both": "during the run, and again in the offline analysis of the whole run",
    "online": "during the run; the offline analysis does not show it",
    "offline": "only in the offline analysis of the whole run",
}
_SEEN_SHORT = {"both": "in the run", "online": "in the run", "offline": "in the report"}
_MOST_SERIES, _MOST_NOTE = 12, 300
_RARE, _BEFORE_SECONDS = ("leader changes", "errors"), 5
_LATENCIES = {"end_to_end": "end-to-end", "publish": "publish"}
_P99 = "p99: median before, worst second, median after"
_NOT_COUNTED = "Not counted against the cluster: the client or a phase of the run explains it."
_NOT_COUNTED_BUSY = (
    "Left out of the verdict: the cause is unknown, and a host of the load had hardly any CPU left."
)


def render(page: Page) -> Markup:
    found = numbered(page)
    if found:
        parts = [
            _list(page, found),
            *(_finding(page, one, number) for number, one in enumerate(found, 1)),
        ]
    else:
        parts = [tag("p", "No outage was found, and no rise in latency that lasted.")]
    if page.peaks.found:
        parts.append(_peaks(page))
    return joined([*parts, *([_improvements(page)] if page.improvements else [])])


def _peaks(page: Page) -> Markup:
    """Return the largest peaks that are in no incident, in order of time."""
    peaks = page.peaks
    limit = wording.amount(peaks.limit, "seconds")
    largest = sorted(peaks.worst_first[:MOST_PEAKS], key=lambda one: one.from_k)
    rows = [
        (
            moment(page, one.from_k),
            wording.span(one.to_k - one.from_k),
            f"{one.slow_messages:,}",
            f"above {wording.amount(one.slowest, 'seconds')}",
            ", ".join(_meanwhile(page, one)) or "-",
        )
        for one in largest
    ]
    count = wording.counted(len(peaks.found), "peak")
    which = f" The {len(rows)} with most slow messages:" if len(rows) < len(peaks.found) else ""
    text = f"{count} of {_LATENCIES[peaks.latency]} latency in no incident: p99 was above {limit}.{which}"
    headings = ("since", "for", f"messages above {limit}", "slowest", "events meanwhile")
    return joined([tag("h3", "Other peaks"), tag("p", text), table(headings, rows)])


def _meanwhile(page: Page, peak: Peak) -> Iterator[str]:
    """Give what is rare in a run and happened in a peak, or in the seconds before it."""
    first = peak.from_k - _BEFORE_SECONDS
    for name in _RARE:
        kinds = seconds_of_row(page, name).values()
        if any(((k >= first) & (k < peak.to_k)).any() for k in kinds):
            yield name


def _improvements(page: Page) -> Markup:
    """Return the falls of latency, which are no findings."""
    rows = [
        (
            page.moment(change.onset_k),
            wording.title(change.series),
            where(page, change.series, leader_addresses(page.timeline)),
            wording.level_text(change.series, change.kind, change.before, change.after),
        )
        for change in page.improvements[:_MOST_SERIES]
    ]
    more = len(page.improvements) - len(rows)
    heading = "Latency also improved; an improvement is no finding."
    rest = tag("p", f"And {more} more.") if more > 0 else ""
    shown = table(("since", "latency", "where", "change"), rows)
    return tag("div", joined([tag("p", heading), shown, rest]), class_="better")


def moment(page: Page, k: int) -> Markup:
    """Return the time of a second, which the page's program can turn into local time."""
    return tag("time", page.moment(k), datetime=wording.iso(page.timeline.wall_ns(k)), data_k=k)


def _list(page: Page, found: Sequence[Judged]) -> Markup:
    """Return the table of incidents."""
    rows = [_row(page, one, number) for number, one in enumerate(found, 1)]
    names = (
        "What and where",
        "Since",
        "For",
        _P99,
        "Messages hit",
        "Cause",
        "Found",
    )
    head = joined([tag("th", name, scope="col") for name in names])
    return tag("table", tag("thead", tag("tr", head)) + tag("tbody", joined(rows)), class_="list")


def _row(page: Page, one: Judged, number: int) -> Markup:
    found, (begin, end) = one.finding, span_of(page.timeline, one)
    mark = tag("b", number, class_="mark" if one.is_against_cluster else "mark other")
    what = tag("bdi", shown_name(what_text(found), 160))
    link = tag("a", joined([mark, " ", what]), href=f"#incident-{number}", data_pick=number)
    place = where(page, found.series, leader_addresses(page.timeline))
    if not found.is_about_cluster:
        place += "; not counted against the cluster"
    if one.acknowledged is not None:
        place += f"; acknowledged: {shown_name(one.acknowledged, _MOST_NOTE)}"
    note = tag("small", tag("bdi", place))
    messages = f"{affected(one):,}" if affected(one) else "-"
    for_ = wording.span(end - begin) + ("" if found.resolved_k is not None else ", not over")
    cells = [
        ("Since", moment(page, begin)),
        ("For", for_),
        (_P99, _levels(one.size)),
        ("Messages hit", messages),
        ("Cause", _cause_short(found.causes)),
        ("Found", _SEEN_SHORT[one.found]),
    ]
    row = [
        tag("th", link + note, scope="row"),
        *(tag("td", cell, data_label=name) for name, cell in cells),
    ]
    return tag("tr", joined(row), data_rank=number)


def _cause_short(causes: Sequence[Explanation]) -> Markup:
    if not causes or causes[0].cause == "unknown":
        return tag("span", "unknown")
    first = causes[0]
    score = f", score {first.score:.2f}" if first.score > 0 else ""
    suspect = tag("small", tag("bdi", shown_name(first.suspect, 80))) if first.suspect else ""
    return joined([f"{wording.cause_text(first.cause)}{score}", suspect])


def _levels(size: IncidentSize | None) -> str:
    level = None if size is None else size.levels.get("p99")
    if level is None:
        return "-"
    return " \u2192 ".join(
        "?" if math.isnan(one) else wording.amount(one, "seconds")
        for one in (level.before, level.worst, level.after)
    )


def _levels_line(line: str) -> str:
    """Return a line of a size that names its medians: `p99 5 ms before (median), 2 s in the worst second`."""
    before, now, after = line.partition(", now ")
    shown = before.replace(" before, ", " before (median), ")
    return f"{shown}, {after} afterwards (median)" if now else shown


def _finding(page: Page, one: Judged, number: int) -> Markup:
    found = one.finding
    title = f"{what_text(found)}, cause {wording.cause_text(found.cause)}"
    resolved = "" if found.resolved_k is None else f" Resolved at {page.moment(found.resolved_k)}."
    state = wording.state_word(found.state).capitalize()
    text = (
        f"Since {page.moment(found.onset_k)}{_within(page, found.interval)}. {state}. "
        f"Seen {_SEEN[one.found]}.{resolved}"
    )
    mark = tag("b", number, class_="mark" if one.is_against_cluster else "mark other")
    name = f"title-{number}"
    waited = waited_text(page, found)
    sizes = [
        *([waited] if waited else []),
        *map(_levels_line, one.size.lines() if one.size else ()),
    ]
    parts = [
        tag("h3", joined([mark, " ", tag("bdi", title)]), id=name),
        _not_counted(page, one),
        tag(
            "p",
            joined(
                [tag("bdi", where(page, found.series, leader_addresses(page.timeline))), ". ", text]
            ),
        ),
        tag("ul", joined([tag("li", line) for line in sizes])) if sizes else "",
        tag("div", joined(_evidence(page, one)), class_="evidence"),
        tag("div", "", class_="cells js-only"),
        _also(page, one),
        _key(page, one),
    ]
    return tag(
        "article", joined(parts), id=f"incident-{number}", class_="finding", aria_labelledby=name
    )


def _key(page: Page, one: Judged) -> Markup:
    """Return the key of an incident, and how it is acknowledged if it is not yet."""
    key = shown_name(one.finding.key, 160)
    shown = joined(["Key: ", tag("code", key)])
    if one.acknowledged is not None:
        return tag("p", shown, class_="soft")
    words = ("soak", "acknowledge", str(page.timeline.folder.path), key)
    command = f"{shlex.join(words)} --note 'why it is known'"
    return tag("p", joined([shown, ". A known change: ", tag("code", command)]), class_="soft")


def _not_counted(page: Page, one: Judged) -> Markup:
    """Return why an incident does not count, if it does not."""
    found = one.finding
    if one.acknowledged is not None:
        note = tag("bdi", shown_name(one.acknowledged, _MOST_NOTE))
        return tag("p", tag("b", joined(["Acknowledged, and not counted: ", note])))
    if not found.is_about_cluster:
        return tag("p", tag("b", _NOT_COUNTED))
    return (
        tag("p", tag("b", _NOT_COUNTED_BUSY)) if busy_hosts_of(page.timeline, found) else Markup()
    )


def _evidence(page: Page, one: Judged) -> list[Markup]:
    """Return evidence for the first cause and against it, what to do next, and the rival causes."""
    causes = one.finding.causes
    if not causes:
        return [tag("div", tag("h4", "Evidence") + tag("p", "No cause was judged."))]
    first, *others = causes
    about = f" ({shown_name(first.suspect, 80)})" if first.suspect else ""
    if first.score > 0:
        heading = f"Evidence for {wording.cause_text(first.cause)}{about}, score {first.score:.2f}"
    else:
        heading = (
            "The cause is unknown; other changes:" if first.evidence else "The cause is unknown"
        )
    columns = [tag("div", joined([tag("h4", heading), _items(page, first.evidence)]))]
    against = (
        _items(page, first.against)
        if first.against
        else tag(
            "p", "Nothing speaks against it." if first.score > 0 else "No cause was ruled out."
        )
    )
    title = "Evidence against" if first.score > 0 else "Ruled out"
    columns.append(tag("div", joined([tag("h4", title), against])))
    advice = attribution.next_step(one.finding)
    busy = busy_hosts_of(page.timeline, one.finding)
    if busy:
        hosts = shown_name(", ".join(busy), 160)
        advice = f"free the load host {hosts} of other work, or use more cores, and soak again"
    elif first.score <= 0:
        when = page.moment(one.finding.onset_k)
        advice = f"compare the charts below, and ask what began at {when}: a deployment, a job, other clients"
    if advice:
        columns.append(
            tag(
                "div", tag("h4", "What to do next") + tag("p", f"{advice[:1].upper()}{advice[1:]}.")
            )
        )
    columns += [
        tag(
            "div",
            joined([tag("h4", _rival(other)), _items(page, other.evidence), *_but(page, other)]),
        )
        for other in others
    ]
    return columns


def _rival(other: Explanation) -> str:
    about = f" ({shown_name(other.suspect, 80)})" if other.suspect else ""
    return f"Rival cause: {wording.cause_text(other.cause)}{about}, score {other.score:.2f}"


def _but(page: Page, other: Explanation) -> list[Markup]:
    """Return what speaks against a rival cause, if anything does."""
    if not other.against:
        return []
    return [tag("p", "Against it:"), _items(page, other.against)]


def _items(page: Page, items: Sequence[Evidence]) -> Markup:
    return tag("ul", joined([tag("li", plain(page, item.text)) for item in items]))


def _also(page: Page, one: Judged) -> Markup:
    """Return the step as the offline analysis has it, and what else changed."""
    in_step = {change.series for change in one.step}
    others = [
        f"{wording.title(series)} of {source_text(page, series.partition('|')[0])}"
        for series in one.finding.changes
        if series not in in_step
    ]
    shown = ", ".join(others[:_MOST_SERIES])
    more = f" and {len(others) - _MOST_SERIES} more" if len(others) > _MOST_SERIES else ""
    return joined(
        [
            _step(page, one.step) if one.step else "",
            tag("p", f"Changed with it: {shown}{more}.", class_="soft") if others else "",
        ]
    )


def _within(page: Page, interval: tuple[int, int]) -> str:
    """Return the interval that holds an onset; "" where that is known to the second."""
    low, high = map(page.moment, interval)
    return "" if low == high else f"; with 95 % confidence between {low} and {high}"


def _step(page: Page, step: Sequence[Change]) -> Markup:
    """Return the step in the offline analysis: one onset, and each latency that changed, clearest first."""
    first = step[0]
    text = (
        f"In the offline analysis it is one step at {page.moment(first.onset_k)}"
        f"{_within(page, first.interval)}. These levels are of the whole stretches before and after it:"
    )
    addresses = leader_addresses(page.timeline)
    rows = [
        (
            wording.title(change.series),
            where(page, change.series, addresses),
            wording.level_text(change.series, "step", change.before, change.after),
        )
        for change in step[:_MOST_SERIES]
    ]
    left = len(step) - _MOST_SERIES
    more = tag("p", f"And {left} more.") if left > 0 else ""
    return joined([tag("p", text), table(("latency", "where", "changed"), rows), more])
