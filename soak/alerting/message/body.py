"""The body of the message about a finding: what, how bad, since when, why; 46 lines of text, or few more."""

from __future__ import annotations

import math
import re

from detectors import attribution
from detectors.causes.hypothesis import Confirmation
from soak.alerting.confirmation import is_loopback
from soak.alerting.document import (
    COLUMNS,
    Chart,
    Document,
    Facts,
    Numbers,
    Paragraphs,
    Points,
    Tone,
    as_text,
)
from soak.alerting.load_state import lost_text
from soak.alerting.message.changed_series import changed_series
from soak.alerting.message.context import (
    UNKNOWN,
    MessageContext,
    correction,
    current_level,
    level_amount,
    series_title,
    title_and_level,
    what_changed,
)
from soak.core import wording
from soak.core.model import Finding
from soak.core.plan.objectives import parse_objective
from soak.core.series import host_of, parse_series
from soak.core.units import SECOND_NS
from soak.store.findings.rows import is_end
from soak.store.run_folder import run_topic

MAX_LINES = 46
"""Of a text; only one in which every name is long, and every cause is possible, has some more."""
MAX_EVIDENCE = 4
MAX_AGAINST = 2
MAX_CAUSES = 2
MAX_SERIES = 4
LAB = "soakd started this cluster: faults may be those of a drill or trial"
"""What the second line says of a run on such a cluster."""
_WORSE_LATER_SECONDS = 10
_ROOM = ((4, 4, 4), (4, 4, 2), (4, 3, 1), (4, 2, 1), (4, 1, 1), (2, 1, 0))
"""The lines of a point, the points, and the other series that are named: the first that fit. Points are left
out before one loses its end, where its numbers are."""
_WIDE_SECONDS = 60
"""An onset that is known no better is a span and no second."""
_LIKELY = ((0.9, "almost certain"), (0.75, "very likely"), (0.0, "a suspicion"))
_CERTAIN = 0.99  # no score is 1
_SPARK_COLUMNS = 50
_MAX_NAME_LENGTH = 40
_MAX_SOURCE_LENGTH = 48  # source and confidence take one line


def message_document(
    context: MessageContext, max_points: int = MAX_EVIDENCE, max_series: int = MAX_SERIES
) -> Document:
    badge, tone = _badge(context)
    return Document(
        badge,
        tone,
        _title_of_page(context),
        [
            Paragraphs(_opening(context)),
            Facts(_facts(context)),
            _size(context),
            Chart(_sparkline(context), context.has_chart, context.chart_title.replace("\n", ", ")),
            _cause(context, max_points),
            _ruled_out(context, max_points),
            _other_causes(context, min(MAX_CAUSES, max_points)),
            changed_series(
                context.finding,
                context.changes,
                context.places,
                max_series=max_series,
                max_evidence=MAX_EVIDENCE,
            ),
            Facts(_links(context), copied=("run", "report", "runbook")),
        ],
    )


def _title_of_page(context: MessageContext) -> str:
    """Return the cause in words, with a capital: `Drive GC`."""
    if context.finding.cause == UNKNOWN:
        return "Cause not known yet" if context.is_unjudged else "Cause unknown"
    words = wording.cause_text(context.finding.cause)
    return words[:1].upper() + words[1:]


def _badge(context: MessageContext) -> tuple[str, Tone]:
    if context.is_withdrawn:
        return "Withdrawn", "neutral"
    if context.is_resolved:
        return "Resolved", "good"
    if context.finding.state == "gone":
        part = f" - {_news(context)}" if context.is_revised else " by now"
        return f"Resolved{part}", "good"
    if context.is_corrected:
        return f"Open - {_news(context)}", "warning"
    return ("Open again" if context.is_reopened else "Open"), "bad"


def _news(context: MessageContext) -> str:
    return "cause known" if context.is_first_cause else f"{context.corrected_part} corrected"


def message_text(context: MessageContext) -> str:
    """Return the whole text; where it is too long, lists have fewer points, and these are cut last."""
    text = ""
    for max_lines, max_points, max_series in _ROOM:
        text = as_text(message_document(context, max_points, max_series), max_lines)
        if text.count("\n") <= MAX_LINES:
            break
    return text


def _opening(context: MessageContext) -> list[str]:
    if context.is_withdrawn:
        return ["Withdrawn: data recorded since clears the cluster. It was a false alarm."]
    lines: list[str] = []
    if context.is_corrected:
        now, was = correction(context, _MAX_NAME_LENGTH)
        part = context.corrected_part
        lines = [f"{part.capitalize()} corrected by newer records: {now}, not {was}."]
        if context.is_first_cause:
            lines = [f"The cause is known by now: {now}."]
        if context.is_revised and context.finding.state == "gone":
            lines.append(f"The incident is resolved; only its {part} is new.")
    elif context.is_reopened:
        is_over = context.finding.state == "gone"
        lines = [f"The finding was resolved and {'came back' if is_over else 'is open again'}."]
        if context.latency_since_outage is not None:
            lines.append(
                "The outage is over; latency rose after it. Cause and evidence are of the outage."
            )
    # the sink was unavailable, or it was short
    if context.finding.state == "gone" and not is_end(context.kind):
        lines.append("This is resolved by now, see the next message.")
    if context.composed_wall_ns is not None:
        composed = wording.moment_with_day(context.composed_wall_ns, context.start_wall_ns)
        dated = wording.moment_with_day(context.at_wall_ns, context.composed_wall_ns)
        lines.append(f"Sent late: cause and evidence of {composed}, load and table of {dated}.")
    return lines


def _facts(context: MessageContext) -> list[tuple[str, str]]:
    finding = context.finding
    low, high = finding.interval
    onset_ns = context.start_wall_ns + finding.onset_k * SECOND_NS
    began = f"{wording.day(onset_ns)} {wording.moment(onset_ns)}"
    width = f"between {context.moment_with_day(low)} and {context.moment_with_day(high)}"
    since = f"{began} ({width})"
    if high - low > _WIDE_SECONDS:
        since = f"some time {width}, most likely {began}"
    now = _now(context)
    facts = [
        *([("now", now)] if now else []),
        ("what", context.places.with_leaders(what_changed(context))),
        *([("lab", LAB)] if context.is_lab else []),
        ("since", since),
    ]
    if finding.worst_k is not None and finding.worst_k - finding.onset_k > _WORSE_LATER_SECONDS:
        facts.append(("worst", f"since {context.moment_with_day(finding.worst_k)}"))
    if is_end(context.kind) and not context.is_withdrawn and finding.resolved_k is not None:
        lasted = wording.span(finding.resolved_k - finding.onset_k)
        end = f"by {context.moment_with_day(finding.resolved_k)}, after {lasted}"
        facts.append(("resolved", f"{end}{current_level(context, '; now ')}"))
    if finding.kind == "objective":
        unit = parse_objective(parse_series(finding.series).label("objective")).unit
        left = wording.budget_left_text(finding.before - finding.after, unit)
        facts.append(("budget", left))
    source = wording.shortened(parse_series(finding.series).source, _MAX_SOURCE_LENGTH)
    if finding.suspect:
        named = context.places.named(finding.suspect)
        was = context.places.named(context.previous_suspect)
        own = ", made for this run" * _is_own_topic(finding)
        notes = f"{own}{_loopback(context)}{f' (was {was})' if was else ''}"
        facts.append(("suspect", f"{named}{notes}"))
    if context.cluster:
        facts.append(("cluster", context.cluster))
    if context.load is not None:
        of = "" if context.audit is None else " in the whole run"
        facts += [("load", context.load.text()), ("lost", f"{lost_text(context.audit)}{of}")]
    facts.append(("source", source))
    if context.other_findings:
        facts.append(("also open", _other_findings(context)))
    return facts


def _size(context: MessageContext) -> Numbers:
    size = context.size
    if size is None:
        return Numbers((), ())
    rows = [
        (
            f"{size.latency.replace('_', '-')} {name}".strip(),
            *(wording.amount(one, "seconds") for one in (level.before, level.worst, level.after)),
        )
        for name, level in size.levels.items()
    ]
    if not context.is_resolved:
        rows = [row[:-1] for row in rows]
    rows = [row for at, row in enumerate(rows) if at == 0 or row[1:] != rows[at - 1][1:]]
    columns = ("minute before", "worst second", "after")[: 3 if context.is_resolved else 2]
    note = size.messages_text()
    if note and not context.is_resolved:
        note = f"{note}; those that still wait are not counted"
    return Numbers(columns, rows, note)


def _other_findings(context: MessageContext) -> str:
    """Return the open finding that began last, and how many more there are."""
    latest = max(context.other_findings, key=lambda one: one.onset_k)
    others = len(context.other_findings) - 1
    more = f", and {others} more" if others else ""
    name = wording.shortened(wording.title(latest.series), _MAX_NAME_LENGTH)
    cause = wording.cause_text(latest.cause)
    return f"{name} since {context.moment_with_day(latest.onset_k)}, cause {cause}{more}"


def _sparkline(context: MessageContext) -> list[str]:
    window = context.window
    if window is None:
        return []
    first, last = int(window.k[0]), int(window.k[-1])
    values = dict(zip(window.k.tolist(), window.headline_values.tolist(), strict=True))
    row = [values.get(k, math.nan) for k in range(first, last + 1)]
    measured = [value for value in row if math.isfinite(value)]
    if not measured:
        return []
    spark = wording.sparkline(row, _SPARK_COLUMNS)
    left, right = context.moment(first), context.moment(last)
    low, high = (level_amount(context.finding, edge(measured)) for edge in (min, max))
    length = wording.amount(len(row) / len(spark), "")
    scale = f", {low} to {high}, log scale, {length} s a column"
    lines = [wording.shortened(series_title(context), COLUMNS - len(scale)) + scale, f"  {spark}"]
    if first <= context.finding.onset_k <= last:
        column = (context.finding.onset_k - first) * len(spark) // len(row)
        lines.append(f"  {' ' * column}^ onset")
    return [*lines, f"  {left}{right:>{max(0, len(spark) - len(left))}}"]


def _cause(context: MessageContext, max_points: int) -> Points:
    if context.is_unjudged:
        return Points(_not_judged_yet(context), (), key="cause")
    if not context.finding.causes:
        return Points(context.cause, (), key="cause")
    best = context.finding.causes[0]
    notes = [f"score {_score(best.score)}, {_likely(best.score)}"] if best.score > 0 else []
    notes += [f"was {context.previous_cause}"] if context.previous_cause else []
    known = f"{best.cause} ({', '.join(notes)})" if notes else best.cause
    is_unexplained = best.score <= 0 and best.evidence
    points = [evidence.text for evidence in best.evidence[:max_points]]
    if best.score > 0:  # of an unknown cause it is what is ruled out
        points += [
            f"against: {evidence.text}" for evidence in best.against[: min(MAX_AGAINST, max_points)]
        ]
    return Points(
        f"{known}; other changes:" if is_unexplained else known,
        [*map(context.places.named, points)],
        key="cause",
        left_out=len(best.evidence) - max_points,
    )


def _not_judged_yet(context: MessageContext) -> str:
    """Return how old the incident is, and until when a cause may follow, unless that time is past."""
    onset_ns = context.start_wall_ns + context.finding.onset_k * SECOND_NS
    now_ns = context.composed_wall_ns or context.at_wall_ns
    age = wording.span(max(0, now_ns - onset_ns) / SECOND_NS)
    last_ns = onset_ns + attribution.JUDGED_SECONDS * SECOND_NS
    by = f" by {wording.moment(last_ns)}" if now_ns < last_ns else ""
    return f"not known yet ({age} after the onset); another message follows{by} if one is found"


def _score(score: float) -> str:
    return f"{score:.2f}" if score <= _CERTAIN else f">{_CERTAIN:.2f}"


def _likely(score: float) -> str:
    return next(words for least, words in _LIKELY if score >= least)


def _ruled_out(context: MessageContext, max_points: int) -> Points:
    """Return what an unknown cause is not."""
    causes = context.finding.causes
    excluded = causes[0].against if causes and causes[0].score <= 0 else ()
    if not excluded:
        return Points("", ())
    named = [context.places.named(one.text) for one in excluded[:max_points]]
    return Points("ruled out", named, left_out=len(excluded) - max_points)


def _other_causes(context: MessageContext, max_causes: int) -> Points:
    """Return the other causes: of the first their evidence, of the others at least their names."""
    others = [item for item in context.finding.causes[1:] if item.score > 0]
    points = [
        f"{item.cause} {_score(item.score)}"
        + (f": {item.evidence[0].text}" if item.evidence else "")
        for item in others[:max_causes]
    ]
    if others[max_causes:]:
        points.append(
            ", ".join(f"{item.cause} {_score(item.score)}" for item in others[max_causes:])
        )
    return Points("other possible causes", [*map(context.places.named, points)])


def _links(context: MessageContext) -> list[tuple[str, str]]:
    is_other = bool(context.previous_cause or context.previous_suspect)
    is_news = is_other and context.finding.cause != UNKNOWN
    is_advised = context.advice and (not is_end(context.kind) or is_news)
    confirmation = context.confirmation
    if is_end(context.kind) and confirmation is not None and not confirmation.is_lasting:
        confirmation = None  # what it shows is over
    return [
        *(_confirmation(confirmation) if is_advised else []),
        *([("next step", context.advice)] if is_advised else []),
        *([("runbook", context.runbook_url)] if context.runbook_url else []),
        ("report", context.report),
        ("finding", context.finding.key),
    ]


def _confirmation(one: Confirmation | None) -> list[tuple[str, str]]:
    """Return where to run the command, the command alone in its line, to be copied, and what it shows."""
    if one is None:
        return []
    return [("confirm", one.where), ("run", one.command), ("shows", one.sign)]


def _is_own_topic(finding: Finding) -> bool:
    """True where a topic that was made for the run is suspected: its name has the id, which may be short."""
    name = re.escape(run_topic(finding.run))
    own = rf"topic (.*[^\w.-])?{name}(-\d+)?(-partition-\d+)?(?![\w.-])"
    return re.match(own, finding.suspect, re.IGNORECASE) is not None


def _loopback(context: MessageContext) -> str:
    """Return the note that an address of a broker is a local one, "" where it is not."""
    if not is_loopback(context.finding.suspect):
        return ""
    host = host_of(parse_series(context.finding.series).source)
    return f" (an address of {host or 'the load host'} itself: a broker, a relay or a tunnel)"


def _now(context: MessageContext) -> str:
    """Return how the cluster is now, where that is known and the other facts do not say it, else ""."""
    rise = context.latency_since_outage
    if rise is None or context.finding.state == "gone":
        return context.places.named(context.broker_state)
    return f"{title_and_level(context, rise)}, since {context.moment_with_day(rise.onset_k)}"
