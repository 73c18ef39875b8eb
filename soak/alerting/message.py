"""The message about a finding: plain text of at most 40 lines of 78 columns."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from soak.alerting.chart import Window
from soak.core import wording
from soak.core.model import Change, Finding, Kind
from soak.core.ports import Message
from soak.core.series import parse_series
from soak.core.units import SECOND_NS
from soak.store.findings.rows import NotificationKind

COLUMNS = 78
MAX_LINES = 40
MAX_EVIDENCE = 4
MAX_CAUSES = 2
MAX_SERIES = 4
KEY_WORDS = {"opened": "confirmed", "resolved": "gone"}
"""What a kind is called in the keys that become Message-IDs: they must not change when a mail is repeated."""
LEVEL_SECONDS = 10
"""The level after a finding is the median of the seconds around its end, this many on each side: it ends when
more than half of the last 30 s are back to normal, so that their median may be neither level."""
_SPARK_COLUMNS = 50
_MAX_NAME_LENGTH = 40
_MAX_TITLE_LENGTH = 66  # title and change take two lines at most
_MAX_SOURCE_LENGTH = 48  # source and confidence take one line
_SAME_ONSET_SECONDS = 60


@dataclass(frozen=True, slots=True)
class MessageContext:
    """What a message is about: a finding, and the notification of it that is sent.

    An occurrence above 1 is that of a finding that came back. A finding that is resolved and is not about
    the cluster was a false alarm: the message withdraws it. `previous_cause` is the other cause that readers
    know, or may know, from earlier messages; several are joined by "or".
    """

    finding: Finding
    kind: NotificationKind
    plan: str
    report: str  # the command that makes the report, and the host to run it on
    start_wall_ns: int
    changes: Sequence[Change] = ()  # of the whole run; the message shows those of the finding
    window: Window | None = None
    occurrence: int = 1
    previous_cause: str = ""
    advice: str = ""  # the next step for this cause
    other_findings: Sequence[Finding] = ()  # open ones about the cluster
    size: Sequence[str] = ()  # how large the incident was or is so far, line by line

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
    def is_withdrawn(self) -> bool:
        return self.is_resolved and not self.finding.is_about_cluster

    @property
    def is_corrected(self) -> bool:
        return self.kind == "corrected"

    @property
    def is_reopened(self) -> bool:
        return self.kind == "opened" and self.occurrence > 1

    @property
    def cause(self) -> str:
        was = f" (was {self.previous_cause})" if self.previous_cause else ""
        return self.finding.cause + was


def compose(context: MessageContext, chart_png: bytes | None, now_wall_ns: int) -> Message:
    """Return the message; its key is made from the finding, the kind and the occurrence."""
    return Message(
        key=_key(context, context.kind, context.occurrence),
        subject=wording.printable(_headline(context)),
        text=_body(context),
        chart_png=chart_png,
        follows=_follows(context),
        at_wall_ns=now_wall_ns,
        labels=_labels(context),
        begin_wall_ns=context.start_wall_ns + context.finding.onset_k * SECOND_NS,
        end_wall_ns=_end_wall_ns(context, now_wall_ns),
    )


def _key(context: MessageContext, kind: NotificationKind, occurrence: int) -> str:
    suffix = f"-{occurrence}" if occurrence > 1 else ""
    return f"{context.finding.key}.{KEY_WORDS.get(kind, kind)}{suffix}"


def _follows(context: MessageContext) -> str:
    if context.is_resolved or context.is_corrected:
        return _key(context, "opened", context.occurrence)
    return _key(context, "resolved", context.occurrence - 1) if context.is_reopened else ""


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
    if not context.is_resolved:
        return None
    resolved_k = context.finding.resolved_k
    if context.is_withdrawn or resolved_k is None:
        return now_wall_ns
    # after a clock was set back, the grid of the run lies ahead of it
    return min(context.start_wall_ns + resolved_k * SECOND_NS, now_wall_ns)


def _headline(context: MessageContext) -> str:
    finding, prefix = context.finding, f"[soakd] {context.plan}:"
    what = _what(finding)
    since = f"since {context.moment(finding.onset_k)}"
    if context.is_withdrawn:
        return f"{prefix} withdrawn: {what} {since}, cause {context.cause}"
    if context.is_resolved:
        if finding.kind == "outage":
            return f"{prefix} resolved: {what}, cause {context.cause}"
        name = _title(finding)
        back = f"back from {_amount(finding, finding.after)}{_current_level(context, ' to ')}"
        return f"{prefix} resolved: {name} {back}, cause {context.cause}"
    if context.is_corrected:
        return f"{prefix} cause corrected: {context.cause}: {what} {since}"
    state = "reopened" if context.is_reopened else "opened"
    return f"{prefix} {state}: {what} {since}, cause {context.cause}"


def _body(context: MessageContext) -> str:
    """Return the whole text; where it would be too long, each piece of evidence gets fewer lines."""
    for max_lines in (3, 2, 1):
        text = _text(context, max_lines)
        if text.count("\n") <= MAX_LINES:
            break
    return text


def _text(context: MessageContext, max_lines: int) -> str:
    blocks = [
        _opening(context),
        _facts(context),
        _sparkline(context),
        _cause(context, max_lines),
        _other_causes(context.finding, min(max_lines, 2)),
        _changed_series(context),
        _links(context),
    ]
    return "\n\n".join("\n".join(map(wording.printable, block)) for block in blocks if block) + "\n"


def _opening(context: MessageContext) -> list[str]:
    if context.is_withdrawn:
        return ["Withdrawn: data recorded since clears the cluster. It was a false alarm."]
    lines: list[str] = []
    if context.is_corrected:
        correction = f"Cause corrected: {context.cause}, from later data."
        lines = textwrap.wrap(correction, COLUMNS)
    elif context.is_reopened:
        lines = ["The finding was resolved and is open again."]
    if (
        context.finding.state == "gone" and not context.is_resolved
    ):  # the sink was unavailable, or it was short
        lines.append("This is resolved by now, see the next message.")
    return lines


def _facts(context: MessageContext) -> list[str]:
    finding = context.finding
    low, high = finding.interval
    onset_ns = context.start_wall_ns + finding.onset_k * SECOND_NS
    began = f"{wording.day(onset_ns)} {wording.moment(onset_ns)}"
    width = f"(between {context.moment_with_day(low)} and {context.moment_with_day(high)})"
    facts = [
        ("what", _what(finding)),
        ("since", f"{began} {width}"),
    ]
    if context.is_resolved and not context.is_withdrawn and finding.resolved_k is not None:
        lasted = wording.span(finding.resolved_k - finding.onset_k)
        end = f"by {context.moment_with_day(finding.resolved_k)}, after {lasted}"
        facts.append(("resolved", f"{end}{_current_level(context, '; now ')}"))
    facts += [("size" if at == 0 else "", line) for at, line in enumerate(context.size)]
    source = wording.shortened(parse_series(finding.series).source, _MAX_SOURCE_LENGTH)
    facts.append(("source", f"{source}, confidence {finding.confidence:.2%}"))
    if context.other_findings:
        facts.append(("also open", _other_findings(context)))
    return [line for key, text in facts for line in _fact(key, text)]


def _other_findings(context: MessageContext) -> str:
    """Return the open finding that began last, and how many more there are."""
    latest = max(context.other_findings, key=lambda one: one.onset_k)
    others = len(context.other_findings) - 1
    more = f", and {others} more" if others else ""
    name = wording.shortened(wording.title(latest.series), _MAX_NAME_LENGTH)
    return f"{name} since {context.moment_with_day(latest.onset_k)}, cause {latest.cause}{more}"


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
    return [f"  {spark}", f"  {left}{right:>{max(0, len(spark) - len(left))}}  {low} to {high}"]


def _cause(context: MessageContext, max_lines: int) -> list[str]:
    if not context.finding.causes:
        return _fact("cause", context.cause)
    best = context.finding.causes[0]
    notes = [f"score {best.score:.2f}"] if best.score > 0 else []
    notes += [f"was {context.previous_cause}"] if context.previous_cause else []
    known = f"{best.cause} ({', '.join(notes)})" if notes else best.cause
    is_unexplained = best.score <= 0 and best.evidence
    lines = _fact("cause", f"{known}; other changes:" if is_unexplained else known)
    for evidence in best.evidence[:MAX_EVIDENCE]:
        lines += _item(evidence.text, max_lines)
    return lines + _more_line(len(best.evidence) - MAX_EVIDENCE)


def _other_causes(finding: Finding, max_lines: int) -> list[str]:
    others = [item for item in finding.causes[1:] if item.score > 0]
    lines: list[str] = []
    for item in others[:MAX_CAUSES]:
        why = f": {item.evidence[0].text}" if item.evidence else ""
        lines += _item(f"{item.cause} {item.score:.2f}{why}", max_lines)
    more = _more_line(len(others) - MAX_CAUSES)
    return ["other possible causes", *lines, *more] if lines else []


def _changed_series(context: MessageContext) -> list[str]:
    finding = context.finding
    series = [name for name in finding.changes if name != finding.series]
    if not series:
        return []
    lines = [_changed_series_line(context, name) for name in series[:MAX_SERIES]]
    return ["also changed", *lines, *_more_line(len(series) - len(lines))]


def _changed_series_line(context: MessageContext, series: str) -> str:
    name = wording.title_with_other_source(series, context.finding.series)
    onset_k = context.finding.onset_k
    known = [
        change
        for change in context.changes
        if change.series == series and abs(change.onset_k - onset_k) <= _SAME_ONSET_SECONDS
    ]
    if not known:
        return f"  {wording.shortened(name, COLUMNS - 2)}"
    change = min(known, key=lambda one: abs(one.onset_k - onset_k))
    kind: Kind = "outage" if change.kind == "outage" else "step"
    step = wording.level_text(series, kind, change.before, change.after)
    return f"  {wording.shortened(name, COLUMNS - 4 - len(step))}  {step}"


def _links(context: MessageContext) -> list[str]:
    is_advised = context.advice and not context.is_resolved
    advice = _fact("next step", context.advice) if is_advised else []
    # the folder is one word, to be copied: it may be longer than a line
    return [*advice, f"report    {context.report}", f"finding   {context.finding.key}"]


def _more_line(count: int) -> list[str]:
    """Return how many were left out, if any were: the report has them all."""
    return [f"  and {count} more"] if count > 0 else []


def _item(text: str, max_lines: int) -> list[str]:
    return textwrap.wrap(
        text,
        COLUMNS,
        initial_indent="  - ",
        subsequent_indent="    ",
        max_lines=max_lines,
        placeholder=" ...",
    )


def _fact(key: str, text: str) -> list[str]:
    return textwrap.wrap(text, COLUMNS, initial_indent=f"{key:<10}", subsequent_indent=" " * 10)


def _title(finding: Finding) -> str:
    return wording.shortened(wording.title(finding.series), _MAX_TITLE_LENGTH)


def _what(finding: Finding) -> str:
    """Return what changed; the title of a series may be too long for a message."""
    return wording.what_text(finding, _MAX_TITLE_LENGTH)


def _amount(finding: Finding, value: float) -> str:
    return wording.amount(value, parse_series(finding.series).unit)


def _current_level(context: MessageContext, prefix: str) -> str:
    """Return the level after the finding with a prefix; "" when it is not known."""
    resolved_k = context.finding.resolved_k
    if context.window is None or resolved_k is None:
        return ""
    level = context.window.level(resolved_k - LEVEL_SECONDS, resolved_k + LEVEL_SECONDS)
    return f"{prefix}{_amount(context.finding, level)}" if math.isfinite(level) else ""
