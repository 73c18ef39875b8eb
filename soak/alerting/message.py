"""The message about a finding: what, how bad, since when and why; its text has 46 lines, or few more."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from detectors import attribution
from detectors.causes.hypothesis import Confirmation
from detectors.client_seconds import LATENCIES
from soak.alerting.changed_series import changed_series
from soak.alerting.chart import Window
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
    as_html,
    as_text,
)
from soak.alerting.load_state import LoadState, lost_text
from soak.alerting.places import NOWHERE, Places
from soak.core import wording
from soak.core.model import Change, Finding
from soak.core.plan.objectives import parse_objective
from soak.core.ports import Message
from soak.core.series import host_of, parse_series
from soak.core.units import SECOND_NS
from soak.runtime.incident_size import IncidentSize
from soak.store.findings.rows import CORRECTIONS, NotificationKind, is_correction, is_end

MAX_LINES = 46
"""Of a text; only one in which every name is long, and every cause is possible, has some more."""
MAX_EVIDENCE = 4
MAX_AGAINST = 2
MAX_CAUSES = 2
MAX_SERIES = 4
LAB = "soakd started this cluster: faults may be those of a drill or trial"
"""What the second line says of a run on such a cluster."""
_SCORES_APART = 0.05  # of two causes, where the second is hardly less probable
_UNKNOWN = "unknown"
_MAX_SUBJECT_LENGTH = 140  # three lines of a phone; the message has the rest
_MIN_WHAT_LENGTH = 60  # of these, however long the plan's name is
_MAX_SUSPECT_LENGTH = 24  # in a subject; longer ones are in the message alone
_WORSE_LATER_SECONDS = 10
KEY_WORDS = {"opened": "confirmed", "resolved": "gone"}
"""What a kind is called in the keys that become Message-IDs: they must not change when a mail is repeated."""
LEVEL_SECONDS = 10
"""The level after a finding is the median of the seconds around its end, this many on each side: it ends when
more than half of the last 30 s are back to normal, so that their median may be neither level."""
_ROOM = ((4, 4, 4), (4, 4, 2), (4, 3, 1), (4, 2, 1), (4, 1, 1), (2, 1, 0))
"""The lines of a point, the points, and the other series that are named: the first that fit. Points are left
out before one loses its end, where its numbers are."""
LATE_SECONDS = 30
"""A message that is composed so much later than it is dated has evidence of that time, and says so."""
_WIDE_SECONDS = 60
"""An onset that is known no better is a span and no second."""
_LIKELY = ((0.9, "almost certain"), (0.75, "very likely"), (0.0, "a suspicion"))
_CERTAIN = 0.99  # no score is 1
_SPARK_COLUMNS = 50
_MAX_NAME_LENGTH = 40
_MAX_TITLE_LENGTH = 66  # title and change take two lines at most
_MAX_SOURCE_LENGTH = 48  # source and confidence take one line


@dataclass(frozen=True, slots=True)
class MessageContext:
    """What a message is about: a finding, and the notification of it that is sent.

    An occurrence above 1 is that of a finding that came back. A finding that is resolved and is not about
    the cluster was a false alarm: the message withdraws it. `previous_cause` is the other cause that readers
    know, or may know, from earlier messages; `previous_suspect` is another place that they know as the
    suspect of the same cause. Several are joined by "or".
    """

    finding: Finding
    kind: NotificationKind
    plan: str
    report: str  # the command that makes the report, and the host to run it on
    start_wall_ns: int
    changes: Sequence[Change] = ()  # of the whole run; the message shows those of the finding
    window: Window | None = None
    places: Places = NOWHERE
    occurrence: int = 1
    previous_cause: str = ""
    previous_suspect: str = ""
    advice: str = ""  # the next step for this cause
    confirmation: Confirmation | None = None  # of this cause, without placeholders
    cluster: str = ""  # kind and first address
    is_lab: bool = False  # on a cluster that soakd started itself
    composed_wall_ns: int | None = None  # None: at the time that the message is dated
    runbook_page: str = ""  # has a heading for each cause; empty: none
    other_findings: Sequence[Finding] = ()  # open ones about the cluster
    size: IncidentSize | None = None  # how large the incident was, or is so far
    load: LoadState | None = None  # when it opened, or was resolved
    audit: Mapping[str, Any] | None = None  # of the run; None before its end
    chart_title: str = ""  # of two lines
    has_chart: bool = False
    broker_state: str = ""  # whether a suspect that was silent answers again
    latency_since_outage: Change | None = None  # for which an outage that was over is open again
    at_wall_ns: int = 0  # when the message is dated
    late_seconds: float = 0.0  # after which a message of an outage counts as late; 0: not known

    def moment(self, k: int) -> str:
        return wording.moment(self.start_wall_ns + k * SECOND_NS)

    def moment_with_day(self, k: int) -> str:
        """Return the moment, with its day where that is not the day of the onset."""
        onset_ns = self.start_wall_ns + self.finding.onset_k * SECOND_NS
        return wording.moment_with_day(self.start_wall_ns + k * SECOND_NS, onset_ns)

    @property
    def is_resolved(self) -> bool:
        return self.kind == "resolved"

    @property
    def is_revised(self) -> bool:
        """True of a correction or withdrawal that follows a message that the finding is resolved."""
        return self.kind == CORRECTIONS["resolved"]

    @property
    def is_withdrawn(self) -> bool:
        return is_end(self.kind) and not self.finding.is_about_cluster

    @property
    def is_corrected(self) -> bool:
        is_other = bool(self.previous_cause or self.previous_suspect)
        return is_correction(self.kind) and is_other and not self.is_withdrawn

    @property
    def corrected_part(self) -> str:
        """Return what readers know otherwise: the cause, or the suspect alone."""
        return "cause" if self.previous_cause else "suspect"

    @property
    def is_reopened(self) -> bool:
        return self.kind == "opened" and self.occurrence > 1

    @property
    def is_unjudged(self) -> bool:
        """True before the first judgement of a cause, which an outage that is sent at once may precede."""
        finding = self.finding
        return self.kind == "opened" and not finding.causes and not finding.is_settled

    @property
    def runbook_url(self) -> str:
        return f"{self.runbook_page}#{self.finding.cause}" if self.runbook_page else ""

    @property
    def cause(self) -> str:
        was = f" (was {self.previous_cause})" if self.previous_cause else ""
        return self.finding.cause + was


def compose(context: MessageContext, chart_png: bytes | None, now_wall_ns: int) -> Message:
    """Return the message; its key is made from the finding, the kind and the occurrence."""
    context = replace(
        context,
        has_chart=chart_png is not None,
        at_wall_ns=now_wall_ns,
        composed_wall_ns=_composed_later(context, now_wall_ns),
        latency_since_outage=_latency_since_outage(context),
    )
    return Message(
        key=_key(context, context.kind, context.occurrence),
        subject=wording.printable(_subject(context)),
        text=_text(context),
        html=as_html(_document(context)),
        chart_png=chart_png,
        follows=_follows(context),
        at_wall_ns=now_wall_ns,
        labels=_labels(context),
        runbook_url=context.runbook_url,
        begin_wall_ns=context.start_wall_ns + context.finding.onset_k * SECOND_NS,
        end_wall_ns=_end_wall_ns(context, now_wall_ns),
    )


def _composed_later(context: MessageContext, now_wall_ns: int) -> int | None:
    composed_ns = context.composed_wall_ns if context.kind == "opened" else None
    is_late = composed_ns is not None and composed_ns - now_wall_ns >= LATE_SECONDS * SECOND_NS
    return composed_ns if is_late else None


def _key(context: MessageContext, kind: NotificationKind, occurrence: int) -> str:
    suffix = f"-{occurrence}" if occurrence > 1 else ""
    return f"{context.finding.key}.{KEY_WORDS.get(kind, kind)}{suffix}"


def _follows(context: MessageContext) -> str:
    if context.kind == "opened":
        return _key(context, "resolved", context.occurrence - 1) if context.is_reopened else ""
    return _key(context, "resolved" if context.is_revised else "opened", context.occurrence)


def _labels(context: MessageContext) -> dict[str, str]:
    """Return labels that identify the finding and never change, so that they resolve its alert."""
    finding = context.finding
    name = parse_series(finding.series)
    return {
        "about": "latency",
        "finding": finding.key,
        "plan": context.plan,
        "run": finding.run,
        "metric": name.metric,
        "source": name.source,
    }


def _end_wall_ns(context: MessageContext, now_wall_ns: int) -> int | None:
    if not is_end(context.kind):
        return None
    resolved_k = context.finding.resolved_k
    if resolved_k is None:
        return now_wall_ns
    # after a clock was set back, the grid of the run lies ahead of it
    return min(context.start_wall_ns + resolved_k * SECOND_NS, now_wall_ns)


def _subject(context: MessageContext) -> str:
    """Return a line whose first words suffice on a phone: what happened, then to which run."""
    finding = context.finding
    cause = wording.cause_text(finding.cause)
    is_short = 0 < len(finding.suspect) <= _MAX_SUSPECT_LENGTH
    where = f" on {context.places.with_broker_ids(finding.suspect)}" if is_short else ""
    second = _as_probable(finding)
    if second:
        cause, where = f"{cause} or {second}", ""
    unknown = "cause not known yet: " if context.is_unjudged else "cause unknown: "
    name = unknown if finding.cause == _UNKNOWN else f"{cause}{where}: "
    what = context.places.with_leader_ids(_what_briefly(context)).replace(" latency", "", 1)
    again = "again: " * context.is_reopened
    over = ("resolved: " if context.is_revised else "resolved by now: ") * (finding.state == "gone")
    if context.is_withdrawn:
        what = f"false alarm withdrawn: {what}"
    elif context.is_resolved:
        what = f"resolved{_recovery(context)}"
    elif context.is_corrected:
        now, was = _correction(context, _MAX_SUSPECT_LENGTH)
        what = f"{over}{context.corrected_part} now {now}, not {was}: {what}"
    elif context.latency_since_outage is not None:
        known = "" if finding.cause == _UNKNOWN else f" ({wording.cause_text(finding.cause)})"
        now = _title_and_level(context, context.latency_since_outage).replace(" latency", "", 1)
        what = f"{again}{over}{now}, after {_what_briefly(context)}{known}"
    else:
        what = f"{again}{over}{name}{what}"
    tag = wording.subject_tag(is_lab=context.is_lab)
    room = _MAX_SUBJECT_LENGTH - len(f"{tag}  - {context.plan}")
    what = textwrap.shorten(what, max(room, _MIN_WHAT_LENGTH), placeholder=" ...")
    return f"{tag} {what} - {context.plan}"


def _correction(context: MessageContext, width: int) -> tuple[str, str]:
    """Return what is corrected, the cause in words or the suspect alone, and what readers know instead."""
    if context.corrected_part == "suspect":
        now, was = (
            context.places.with_broker_ids(wording.shortened(one, width))
            for one in (context.finding.suspect, context.previous_suspect)
        )
        return now, was
    second = _as_probable(context.finding)
    now = wording.cause_text(context.finding.cause) + (f" or {second}" if second else "")
    return now, " or ".join(map(wording.cause_text, context.previous_cause.split(" or ")))


def _as_probable(finding: Finding) -> str:
    """Return the second cause in words where it explains the finding about as well as the first."""
    if len(finding.causes) < 2 or finding.cause == _UNKNOWN:  # noqa: PLR2004
        return ""
    first, second = finding.causes[:2]
    return wording.cause_text(second.cause) if second.score >= first.score - _SCORES_APART else ""


def _recovery(context: MessageContext) -> str:
    finding = context.finding
    known = "" if finding.cause == _UNKNOWN else f" ({wording.cause_text(finding.cause)})"
    if finding.kind in wording.WHOLE_SENTENCES:
        return f": {_what_briefly(context)}{known}"
    resolved_k = finding.resolved_k
    after = "" if resolved_k is None else f" after {wording.span(resolved_k - finding.onset_k)}"
    name = _title(context).replace(" latency", "", 1)
    return f"{after}: {name} was {_amount(finding, finding.after)}{_current_level(context, ', now ')}{known}"


def _document(
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
    if context.finding.cause == _UNKNOWN:
        return "Cause not known yet" if context.is_unjudged else "Cause unknown"
    words = wording.cause_text(context.finding.cause)
    return words[:1].upper() + words[1:]


def _badge(context: MessageContext) -> tuple[str, Tone]:
    if context.is_withdrawn:
        return "Withdrawn", "neutral"
    if context.is_resolved:
        return "Resolved", "good"
    if context.finding.state == "gone":
        part = f" - {context.corrected_part} corrected" if context.is_revised else " by now"
        return f"Resolved{part}", "good"
    if context.is_corrected:
        return f"Open - {context.corrected_part} corrected", "warning"
    return ("Open again" if context.is_reopened else "Open"), "bad"


def _text(context: MessageContext) -> str:
    """Return the whole text; where it is too long, lists have fewer points, and these are cut last."""
    text = ""
    for max_lines, max_points, max_series in _ROOM:
        text = as_text(_document(context, max_points, max_series), max_lines)
        if text.count("\n") <= MAX_LINES:
            break
    return text


def _opening(context: MessageContext) -> list[str]:
    if context.is_withdrawn:
        return ["Withdrawn: data recorded since clears the cluster. It was a false alarm."]
    lines: list[str] = []
    if context.is_corrected:
        now, was = _correction(context, _MAX_NAME_LENGTH)
        part = context.corrected_part
        lines = [f"{part.capitalize()} corrected by newer records: {now}, not {was}."]
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
        ("what", context.places.with_leaders(_what(context))),
        *([("lab", LAB)] if context.is_lab else []),
        ("since", since),
    ]
    if finding.worst_k is not None and finding.worst_k - finding.onset_k > _WORSE_LATER_SECONDS:
        facts.append(("worst", f"since {context.moment_with_day(finding.worst_k)}"))
    if is_end(context.kind) and not context.is_withdrawn and finding.resolved_k is not None:
        lasted = wording.span(finding.resolved_k - finding.onset_k)
        end = f"by {context.moment_with_day(finding.resolved_k)}, after {lasted}"
        facts.append(("resolved", f"{end}{_current_level(context, '; now ')}"))
    if finding.kind == "objective":
        unit = parse_objective(parse_series(finding.series).label("objective")).unit
        left = wording.budget_left_text(finding.before - finding.after, unit)
        facts.append(("budget", left))
    source = wording.shortened(parse_series(finding.series).source, _MAX_SOURCE_LENGTH)
    if finding.suspect:
        is_own = finding.run.lower() in finding.suspect.lower()
        named = context.places.named(finding.suspect)
        was = context.places.named(context.previous_suspect)
        notes = (
            f"{', made for this run' * is_own}{_loopback(context)}{f' (was {was})' if was else ''}"
        )
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
    low, high = (_amount(context.finding, edge(measured)) for edge in (min, max))
    length = wording.amount(len(row) / len(spark), "")
    scale = f", {low} to {high}, log scale, {length} s a column"
    lines = [wording.shortened(_title(context), COLUMNS - len(scale)) + scale, f"  {spark}"]
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
    """Return how old the incident is, and until when a message with its cause may follow."""
    onset_ns = context.start_wall_ns + context.finding.onset_k * SECOND_NS
    age = wording.span(max(0, context.at_wall_ns - onset_ns) / SECOND_NS)
    last = wording.moment(onset_ns + attribution.JUDGED_SECONDS * SECOND_NS)
    return f"not known yet ({age} after the onset); a correction follows by {last} if one is found"


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
    is_news = is_other and context.finding.cause != _UNKNOWN
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


def _loopback(context: MessageContext) -> str:
    """Return the note that an address of a broker is a local one, "" where it is not."""
    if not is_loopback(context.finding.suspect):
        return ""
    host = host_of(parse_series(context.finding.series).source)
    return f" (an address of {host or 'the load host'} itself: a broker, a relay or a tunnel)"


def _title(context: MessageContext) -> str:
    series = context.finding.series
    title = wording.shortened(wording.title(series), _MAX_TITLE_LENGTH)
    return _with_all_leaders(title, context)


def _what(context: MessageContext) -> str:
    """Return what changed; the title of a series may be too long for a message."""
    text = wording.what_text(context.finding, _MAX_TITLE_LENGTH)
    if context.late_seconds and context.finding.kind == "outage":
        limit = wording.amount(context.late_seconds, "seconds")
        text = text.replace(" came late", f" came more than {limit} late")
    return _with_all_leaders(text, context)


def _what_briefly(context: MessageContext) -> str:
    """Return what a subject has room for: of an outage its length, without its messages."""
    finding = context.finding
    if finding.kind == "outage":
        return wording.level_text(finding.series, finding.kind, finding.before, finding.after)
    return _what(context)


def _latency_since_outage(context: MessageContext) -> Change | None:
    """Return the worst rise of latency after an outage that was over; None where there is none."""
    finding = context.finding
    if not context.is_reopened or finding.kind != "outage":
        return None
    began_k = finding.onset_k if finding.worst_k is None else finding.worst_k
    rises = [
        change
        for change in context.changes
        if change.kind == "step"
        and change.direction == "up"
        and change.state == "confirmed"
        and change.onset_k > began_k + finding.after
        and change.series in finding.changes
        and parse_series(change.series).metric in LATENCIES
    ]
    return max(rises, key=lambda change: (change.after, change.series), default=None)


def _now(context: MessageContext) -> str:
    """Return how the cluster is now, where that is known and the other facts do not say it, else ""."""
    rise = context.latency_since_outage
    if rise is None or context.finding.state == "gone":
        return context.places.named(context.broker_state)
    return f"{_title_and_level(context, rise)}, since {context.moment_with_day(rise.onset_k)}"


def _title_and_level(context: MessageContext, rise: Change) -> str:
    title = wording.shortened(wording.title(rise.series), _MAX_TITLE_LENGTH)
    level = wording.level_text(rise.series, rise.kind, rise.before, rise.after)
    return context.places.with_leaders(f"{title} {level}")


def _with_all_leaders(title: str, context: MessageContext) -> str:
    """Return a title that names every leader whose latency rose about as much as that of its own."""
    own = parse_series(context.finding.series)
    leader = own.label("leader")
    if not leader or context.finding.kind != "step":
        return title
    least = math.sqrt(max(1.0, context.finding.ratio))  # half of the step, on logarithms
    alike = {
        name.label("leader")
        for one in context.changes
        if (name := parse_series(one.series)).metric == own.metric
        and name.source == own.source
        and name.label("quantile") == own.label("quantile")
        and name.label("leader") not in {"", leader}
        and one.series in context.finding.changes
        and one.before > 0.0
        and one.after / one.before >= least
    }
    names = sorted({leader, *alike})
    if not alike:
        return title
    known = set(context.places.broker_ids.values())
    every = "all leaders" if known and known <= set(names) else f"leaders {', '.join(names)}"
    return title.replace(f"(leader {leader})", f"({every})", 1)


def _amount(finding: Finding, value: float) -> str:
    return wording.amount(value, parse_series(finding.series).unit)


def _current_level(context: MessageContext, prefix: str) -> str:
    """Return the level after the finding with a prefix; "" when it is not known."""
    resolved_k = context.finding.resolved_k
    if context.window is None or resolved_k is None:
        return ""
    level = context.window.level(resolved_k, resolved_k + LEVEL_SECONDS)
    if not math.isfinite(level):  # sent at once, before there is a second after it
        level = context.window.level(resolved_k - LEVEL_SECONDS, resolved_k)
    return f"{prefix}{_amount(context.finding, level)}" if math.isfinite(level) else ""
