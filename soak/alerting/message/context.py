"""What a message about a finding is made of, and the words that its subject and its body share."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from detectors.causes.hypothesis import Confirmation
from soak.alerting.chart import Window
from soak.alerting.load_state import LoadState
from soak.alerting.places import NOWHERE, Places
from soak.core import wording
from soak.core.model import Change, Finding
from soak.core.series import parse_series
from soak.core.units import SECOND_NS
from soak.runtime.incident_size import IncidentSize
from soak.store.findings.rows import CORRECTIONS, NotificationKind, is_correction, is_end

UNKNOWN = "unknown"
LEVEL_SECONDS = 10
"""The level after a finding is the median of so many seconds after its end. Where none of them is recorded,
it is that of so many before: a finding ends when more than half of the last 30 s are back to normal."""
_SCORES_APART = 0.05  # of two causes, where the second is hardly less probable
_MAX_TITLE_LENGTH = 66  # title and change take two lines at most


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
    def is_first_cause(self) -> bool:
        """True when a cause is known of which earlier messages said that it is unknown."""
        return self.is_corrected and self.previous_cause == UNKNOWN

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


def series_title(context: MessageContext) -> str:
    series = context.finding.series
    title = wording.shortened(wording.title(series), _MAX_TITLE_LENGTH)
    return _with_all_leaders(title, context)


def what_changed(context: MessageContext) -> str:
    """Return what changed; the title of a series may be too long for a message."""
    text = wording.what_text(context.finding, _MAX_TITLE_LENGTH)
    if context.late_seconds and context.finding.kind == "outage":
        limit = wording.amount(context.late_seconds, "seconds")
        text = text.replace(" came late", f" came more than {limit} late")
    return _with_all_leaders(text, context)


def what_changed_briefly(context: MessageContext) -> str:
    """Return what a subject has room for: of an outage its length, without its messages."""
    finding = context.finding
    if finding.kind == "outage":
        return wording.level_text(finding.series, finding.kind, finding.before, finding.after)
    return what_changed(context)


def title_and_level(context: MessageContext, rise: Change) -> str:
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


def level_amount(finding: Finding, value: float) -> str:
    return wording.amount(value, parse_series(finding.series).unit)


def current_level(context: MessageContext, prefix: str) -> str:
    """Return the level after the finding with a prefix; "" when it is not known."""
    resolved_k = context.finding.resolved_k
    if context.window is None or resolved_k is None:
        return ""
    level = context.window.level(resolved_k, resolved_k + LEVEL_SECONDS)
    if not math.isfinite(level):  # sent at once, before there is a second after it
        level = context.window.level(resolved_k - LEVEL_SECONDS, resolved_k)
    return f"{prefix}{level_amount(context.finding, level)}" if math.isfinite(level) else ""


def correction(context: MessageContext, width: int) -> tuple[str, str]:
    """Return what is corrected, the cause in words or the suspect alone, and what readers know instead."""
    if context.corrected_part == "suspect":
        now, was = (
            context.places.with_broker_ids(wording.shortened(one, width))
            for one in (context.finding.suspect, context.previous_suspect)
        )
        return now, was
    second = as_probable(context.finding)
    now = wording.cause_text(context.finding.cause) + (f" or {second}" if second else "")
    return now, " or ".join(map(wording.cause_text, context.previous_cause.split(" or ")))


def as_probable(finding: Finding) -> str:
    """Return the second cause in words where it explains the finding about as well as the first."""
    if len(finding.causes) < 2 or finding.cause == UNKNOWN:  # noqa: PLR2004
        return ""
    first, second = finding.causes[:2]
    return wording.cause_text(second.cause) if second.score >= first.score - _SCORES_APART else ""
