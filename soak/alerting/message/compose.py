"""Compose the message about a finding: its key, its subject, its labels for alerts, and its body."""

from __future__ import annotations

import textwrap
from dataclasses import replace

from detectors.client_seconds import LATENCIES
from soak.alerting.document import as_html
from soak.alerting.message.body import message_document, message_text
from soak.alerting.message.context import (
    UNKNOWN,
    MessageContext,
    as_probable,
    correction,
    current_level,
    level_amount,
    series_title,
    title_and_level,
    what_changed_briefly,
)
from soak.core import wording
from soak.core.model import Change
from soak.core.ports import Message
from soak.core.series import parse_series
from soak.core.units import SECOND_NS
from soak.store.findings.rows import NotificationKind, is_end

KEY_WORDS = {"opened": "confirmed", "resolved": "gone"}
"""What a kind is called in the keys that become Message-IDs: they must not change when a mail is repeated."""
LATE_SECONDS = 30
"""A message that is composed so much later than it is dated has evidence of that time, and says so."""
_MAX_SUBJECT_LENGTH = 140  # three lines of a phone; the message has the rest
_MIN_WHAT_LENGTH = 60  # of these, however long the plan's name is
_MAX_SUSPECT_LENGTH = 24  # in a subject; longer ones are in the message alone


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
        text=message_text(context),
        html=as_html(message_document(context)),
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
    second = as_probable(finding)
    if second:
        cause, where = f"{cause} or {second}", ""
    unknown = "cause not known yet: " if context.is_unjudged else "cause unknown: "
    name = unknown if finding.cause == UNKNOWN else f"{cause}{where}: "
    what = context.places.with_leader_ids(what_changed_briefly(context)).replace(" latency", "", 1)
    again = "again: " * context.is_reopened
    over = ("resolved: " if context.is_revised else "resolved by now: ") * (finding.state == "gone")
    if context.is_withdrawn:
        what = f"false alarm withdrawn: {what}"
    elif context.is_resolved:
        what = f"resolved{_recovery(context)}"
    elif context.is_first_cause:
        what = f"{over}cause known: {name}{what}"
    elif context.is_corrected:
        now, was = correction(context, _MAX_SUSPECT_LENGTH)
        what = f"{over}{context.corrected_part} now {now}, not {was}: {what}"
    elif context.latency_since_outage is not None:
        known = "" if finding.cause == UNKNOWN else f" ({wording.cause_text(finding.cause)})"
        now = title_and_level(context, context.latency_since_outage).replace(" latency", "", 1)
        what = f"{again}{over}{now}, after {what_changed_briefly(context)}{known}"
    else:
        what = f"{again}{over}{name}{what}"
    tag = wording.subject_tag(is_lab=context.is_lab)
    room = _MAX_SUBJECT_LENGTH - len(f"{tag}  - {context.plan}")
    what = textwrap.shorten(what, max(room, _MIN_WHAT_LENGTH), placeholder=" ...")
    return f"{tag} {what} - {context.plan}"


def _recovery(context: MessageContext) -> str:
    finding = context.finding
    known = "" if finding.cause == UNKNOWN else f" ({wording.cause_text(finding.cause)})"
    if finding.kind in wording.WHOLE_SENTENCES:
        return f": {what_changed_briefly(context)}{known}"
    resolved_k = finding.resolved_k
    after = "" if resolved_k is None else f" after {wording.span(resolved_k - finding.onset_k)}"
    name = series_title(context).replace(" latency", "", 1)
    was = level_amount(finding, finding.after)
    return f"{after}: {name} was {was}{current_level(context, ', now ')}{known}"
