"""The message about a finding: plain text of at most 40 lines of 78 columns."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from soak.alerting.chart import Window
from soak.core import wording
from soak.core.model import Change, Finding
from soak.core.ports import Message
from soak.core.units import SECOND_NS

COLUMNS = 78
MAX_LINES = 40
MAX_EVIDENCE = 4
MAX_CAUSES = 2
MAX_SERIES = 4
LEVEL_SECONDS = 10
"""The level after a finding went away is the median from so many seconds before then on: it is found to be
over when more than half of the last 30 s are, so that a median of all of them may be neither level."""
_SPARK_COLUMNS = 50
_MAX_NAME_LENGTH = 40
_MAX_TITLE_LENGTH = 66  # with what it did two lines at most
_MAX_SOURCE_LENGTH = 48  # with the confidence one line


@dataclass(frozen=True, slots=True)
class MessageContext:
    """What a mail is about: one finding of one run, told as `kind`: `confirmed`, `corrected` or `gone`.

    A turn above 1 is that of a finding which came back. One that is told as gone and is not about the
    cluster is taken back: its last cause cleared the cluster. `was` is the cause that its readers
    know from before, or may know, where that is another; several are joined by "or".
    """

    finding: Finding
    kind: str
    plan: str
    report: str  # the command that makes the run's report, and on which host
    start_wall_ns: int
    changes: Sequence[Change] = ()  # of the whole run; those of the finding are told
    window: Window | None = None
    turn: int = 1
    was: str = ""
    advice: str = ""  # where to look first, for one who is told of its cause
    beside: Sequence[Finding] = ()  # others about the cluster that last

    def moment(self, k: int) -> str:
        return wording.moment(self.start_wall_ns + k * SECOND_NS)

    def day(self, k: int) -> str:
        return wording.day(self.start_wall_ns + k * SECOND_NS)

    def later(self, k: int) -> str:
        """Return the moment, with its day where that is not the one of the onset."""
        onset_ns = self.start_wall_ns + self.finding.onset_k * SECOND_NS
        return wording.moment_with_day(self.start_wall_ns + k * SECOND_NS, onset_ns)

    @property
    def is_gone(self) -> bool:
        return self.kind == "gone"

    @property
    def is_taken_back(self) -> bool:
        return self.is_gone and not self.finding.is_about_cluster

    @property
    def is_corrected(self) -> bool:
        return self.kind == "corrected"

    @property
    def is_back(self) -> bool:
        return self.kind == "confirmed" and self.turn > 1

    @property
    def cause(self) -> str:
        return self.finding.cause + (f" (was {self.was})" if self.was else "")


def compose(subject: MessageContext, chart_png: bytes | None, now_wall_ns: int) -> Message:
    """Return the message; its key is that of the finding, the kind and the turn."""
    return Message(
        key=_key(subject, subject.kind, subject.turn),
        subject=wording.printable(_headline(subject)),
        text=_body(subject),
        chart_png=chart_png,
        follows=_follows(subject),
        at_wall_ns=now_wall_ns,
        labels=_labels(subject),
        begin_wall_ns=subject.start_wall_ns + subject.finding.onset_k * SECOND_NS,
        end_wall_ns=_end_wall_ns(subject, now_wall_ns),
    )


def _key(subject: MessageContext, kind: str, turn: int) -> str:
    return f"{subject.finding.key}.{kind}{f'-{turn}' if turn > 1 else ''}"


def _follows(subject: MessageContext) -> str:
    if subject.is_gone or subject.is_corrected:
        return _key(subject, "confirmed", subject.turn)
    return _key(subject, "gone", subject.turn - 1) if subject.is_back else ""


def _labels(subject: MessageContext) -> dict[str, str]:
    """Return what tells this finding from others, and nothing that a later word on it may change."""
    finding = subject.finding
    name = wording.split(finding.series)
    return {
        "about": "latency",
        "finding": finding.key,
        "plan": subject.plan,
        "run": finding.run,
        "metric": name.metric,
        "source": name.source,
    }


def _end_wall_ns(subject: MessageContext, now_wall_ns: int) -> int | None:
    if not subject.is_gone:
        return None
    gone_k = subject.finding.gone_k
    if subject.is_taken_back or gone_k is None:
        return now_wall_ns
    # the run's own grid lies ahead of a clock that was set back
    return min(subject.start_wall_ns + gone_k * SECOND_NS, now_wall_ns)


def _headline(subject: MessageContext) -> str:
    finding = subject.finding
    name, cause = _title(finding), subject.cause
    since = f"since {subject.moment(finding.onset_k)}"
    if subject.is_taken_back:
        return f"[soakd] {subject.plan}: taken back: {name} {_step(finding)} {since}, cause {cause}"
    if subject.is_gone:
        back = f"back from {_amount(finding, finding.after)}{_current_level(subject, ' to ')}"
        return f"[soakd] {subject.plan}: over: {name} {back}, cause {cause}"
    if subject.is_corrected:
        return f"[soakd] {subject.plan}: cause corrected: {cause}: {name} {_step(finding)} {since}"
    again = "again: " if subject.is_back else ""
    return f"[soakd] {subject.plan}: {again}{name} {_step(finding)} {since}, cause {cause}"


def _body(subject: MessageContext) -> str:
    """Return the whole text; where it would be too long, each reason gets fewer lines."""
    for most_lines in (3, 2, 1):
        text = _text(subject, most_lines)
        if text.count("\n") <= MAX_LINES:
            break
    return text


def _text(subject: MessageContext, most_lines: int) -> str:
    blocks = [
        _opening(subject),
        _facts(subject),
        _picture(subject),
        _cause(subject, most_lines),
        _other_causes(subject.finding, min(most_lines, 2)),
        _changed_series(subject),
        _links(subject),
    ]
    return "\n\n".join("\n".join(map(wording.printable, block)) for block in blocks if block) + "\n"


def _opening(subject: MessageContext) -> list[str]:
    if subject.is_taken_back:
        return ["Taken back: what was seen since clears the cluster. It was a false alarm."]
    lines: list[str] = []
    if subject.is_corrected:
        lines = textwrap.wrap(f"Cause corrected: {subject.cause}: more was seen since.", COLUMNS)
    elif subject.is_back:
        lines = ["It was over, and is here again."]
    is_over_by_now = subject.finding.state == "gone" and not subject.is_gone
    if is_over_by_now:  # the sink was away, or it was short
        lines.append("It is over by now, as the next message tells.")
    return lines


def _facts(subject: MessageContext) -> list[str]:
    finding = subject.finding
    low, high = finding.interval
    began = f"{subject.day(finding.onset_k)} {subject.moment(finding.onset_k)}"
    width = f"between {subject.later(low)} and {subject.later(high)}"
    facts = [("what", f"{_title(finding)} {_step(finding)}"), ("since", f"{began}, {width}")]
    if subject.is_gone and not subject.is_taken_back and finding.gone_k is not None:
        lasted = wording.span(finding.gone_k - finding.onset_k)
        over = (
            f"by {subject.later(finding.gone_k)}, after {lasted}{_current_level(subject, '; now ')}"
        )
        facts.append(("over", over))
    source = wording.shortened(wording.split(finding.series).source, _MAX_SOURCE_LENGTH)
    facts.append(("seen by", f"{source}, confidence {finding.confidence:.2%} that it moved"))
    if subject.beside:
        facts.append(("beside", _other_findings(subject)))
    return [line for key, text in facts for line in _fact(key, text)]


def _other_findings(subject: MessageContext) -> str:
    """Return which other finding lasts: the one that began last, and how many there are."""
    latest = max(subject.beside, key=lambda one: one.onset_k)
    more = f", and {len(subject.beside) - 1} more" if len(subject.beside) > 1 else ""
    name = wording.shortened(wording.title(latest.series), _MAX_NAME_LENGTH)
    return f"{name} since {subject.later(latest.onset_k)}, cause {latest.cause}{more}"


def _picture(subject: MessageContext) -> list[str]:
    window = subject.window
    if window is None:
        return []
    first, last = int(window.k[0]), int(window.k[-1])
    values = dict(zip(window.k.tolist(), window.headline_values.tolist(), strict=True))
    row = [values.get(k, math.nan) for k in range(first, last + 1)]
    spark = wording.sparkline(row, _SPARK_COLUMNS)
    left, right = subject.moment(first), subject.moment(last)
    measured = [value for value in row if math.isfinite(value)]
    if not measured:
        return []
    low, high = (_amount(subject.finding, edge(measured)) for edge in (min, max))
    return [f"  {spark}", f"  {left}{right:>{max(0, len(spark) - len(left))}}  {low} to {high}"]


def _cause(subject: MessageContext, most_lines: int) -> list[str]:
    if not subject.finding.causes:
        return _fact("cause", subject.cause)
    best = subject.finding.causes[0]
    notes = [f"score {best.score:.2f}"] if best.score > 0 else []
    notes += [f"was {subject.was}"] if subject.was else []
    known = f"{best.cause} ({', '.join(notes)})" if notes else best.cause
    is_unexplained = best.score <= 0 and best.evidence
    lines = _fact("cause", f"{known}; what else changed:" if is_unexplained else known)
    for evidence in best.evidence[:MAX_EVIDENCE]:
        lines += _item(evidence.text, most_lines)
    return lines + _more_line(len(best.evidence) - MAX_EVIDENCE)


def _other_causes(finding: Finding, most_lines: int) -> list[str]:
    rest = [item for item in finding.causes[1:] if item.score > 0]
    lines: list[str] = []
    for item in rest[:MAX_CAUSES]:
        why = f": {item.evidence[0].text}" if item.evidence else ""
        lines += _item(f"{item.cause} {item.score:.2f}{why}", most_lines)
    return ["also possible", *lines, *_more_line(len(rest) - MAX_CAUSES)] if lines else []


def _changed_series(subject: MessageContext) -> list[str]:
    finding = subject.finding
    series = [name for name in finding.changes if name != finding.series]
    if not series:
        return []
    lines = [_changed_series_line(subject, name) for name in series[:MAX_SERIES]]
    return ["also moved", *lines, *_more_line(len(series) - len(lines))]


def _changed_series_line(subject: MessageContext, series: str) -> str:
    name = wording.title_with_other_source(series, subject.finding.series)
    known = [
        (apart, at)
        for at, change in enumerate(subject.changes)
        if change.series == series
        and (apart := abs(change.onset_k - subject.finding.onset_k)) <= 60  # noqa: PLR2004  # the same minute
    ]
    if not known:
        return f"  {wording.shortened(name, COLUMNS - 2)}"
    change = subject.changes[min(known)[1]]
    step = wording.level_text(series, "step", change.before, change.after)
    return f"  {wording.shortened(name, COLUMNS - 4 - len(step))}  {step}"


def _links(subject: MessageContext) -> list[str]:
    advice = _fact("next", subject.advice) if subject.advice and not subject.is_gone else []
    # the folder is one word, to be copied: it may be longer than a line
    return [*advice, f"more      {subject.report}", f"finding   {subject.finding.key}"]


def _more_line(count: int) -> list[str]:
    """Return how many were left out, if any were: the report has them all."""
    return [f"  and {count} more"] if count > 0 else []


def _item(text: str, most_lines: int) -> list[str]:
    return textwrap.wrap(
        text,
        COLUMNS,
        initial_indent="  - ",
        subsequent_indent="    ",
        max_lines=most_lines,
        placeholder=" ...",
    )


def _fact(key: str, text: str) -> list[str]:
    return textwrap.wrap(text, COLUMNS, initial_indent=f"{key:<10}", subsequent_indent=" " * 10)


def _title(finding: Finding) -> str:
    return wording.shortened(wording.title(finding.series), _MAX_TITLE_LENGTH)


def _step(finding: Finding) -> str:
    return wording.change_text(finding)


def _amount(finding: Finding, value: float) -> str:
    return wording.amount(value, wording.split(finding.series).unit)


def _current_level(subject: MessageContext, before: str) -> str:
    """Return the level that the finding went back to, with what stands before it; "" when it is not known."""
    gone_k = subject.finding.gone_k
    if subject.window is None or gone_k is None:
        return ""
    level = subject.window.level(gone_k - LEVEL_SECONDS, gone_k + LEVEL_SECONDS)
    return f"{before}{_amount(subject.finding, level)}" if math.isfinite(level) else ""
