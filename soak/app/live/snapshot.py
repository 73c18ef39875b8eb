"""A run at one moment, as terminal and browser show it, and the words for its troubles and its retention."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from soak.app.live.follow import Bin, Latency
from soak.core import wording
from soak.core.model import Finding
from soak.core.units import SECOND_NS

SILENT_SECONDS = 10
"""A source without a record for so long does not measure."""
REPORT_SECONDS = 1800
"""So long after its last record a run may still be reading and reporting."""
OVER_STATES = frozenset({"ended", "interrupted", "failed"})


@dataclass(frozen=True, slots=True)
class Totals:
    """Messages of the part of the run that was read."""

    sent: float = 0.0
    acknowledged: float = 0.0
    failed: float = 0.0


@dataclass(frozen=True, slots=True)
class Subscription:
    """What one subscription received, in messages per second and in all; its consumers together."""

    index: int
    received: float = math.nan
    lag: float = math.nan
    latency: Latency = field(default_factory=Latency)
    p99_history: tuple[float, ...] = ()
    total: float = 0.0


@dataclass(frozen=True, slots=True)
class ReportHead:
    """What the report of a run says first, and when it was made."""

    verdict: str
    headline: str
    made_wall_ns: int
    publish: Latency
    end_to_end: Latency
    is_running: bool = False  # it was made while the run went on


@dataclass(frozen=True, slots=True)
class PhaseSpan:
    """A phase from interval `from_k` to before `to_k`, which may still change."""

    name: str
    from_k: int
    to_k: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A run at one moment. Rates are messages per second, of all daemons of a kind together."""

    name: str
    run_id: str
    state: str  # as in run.json; "silent": it should be running, but nothing is recorded
    start_wall_ns: int
    now_k: int  # goes on after the end
    k: int  # never past the end
    total_seconds: int
    end_k: int | None  # as the conductor decided
    phase: str
    phases: tuple[PhaseSpan, ...]
    sent: float
    acknowledged: float
    failed: float
    publish: Latency
    publish_history: tuple[float, ...]  # p99, a second each
    subscriptions: tuple[Subscription, ...]
    totals: Totals
    troubles: tuple[str, ...]  # sentences, worst first
    retention: str
    invalid: str  # why the newest second says nothing about the cluster
    detection: str  # why findings come late; empty where they do not
    bins: tuple[Bin, ...]  # of the whole run, in order of time
    bin_seconds: int
    findings: tuple[Finding, ...]
    unread: str  # why the findings cannot be read; empty where they were
    report: ReportHead | None
    read_ratio: float  # of the journals before the newest minutes

    @property
    def is_over(self) -> bool:
        """True when nothing more will be recorded."""
        return self.state in OVER_STATES

    @property
    def has_stopped(self) -> bool:
        """True when nothing is recorded: it is over, or was killed, and the newest second is no present."""
        return self.is_over or self.state == "silent"

    @property
    def has_begun(self) -> bool:
        """False while a run is being prepared."""
        return self.start_wall_ns > 0

    def awaits_report(self, now_ns: int) -> bool:
        """True when the run has ended a moment ago, and its report is not there yet."""
        end_ns = self.start_wall_ns + self.k * SECOND_NS
        has_report = self.report is not None and self.report.made_wall_ns >= end_ns
        return self.is_over and not has_report and 0 <= now_ns - end_ns < REPORT_SECONDS * SECOND_NS


def clock_text(seconds: int) -> str:
    """Return a time as `h:mm:ss` or `m:ss`."""
    minutes, rest = divmod(max(0, seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def outage_text(what: str, seconds: int, failed: float) -> str:
    """Return `nothing acknowledged for 40 s, 12,000 failed`; the second part where messages failed."""
    also = f", {wording.amount(failed, '')} failed" if failed else ""
    return f"nothing {what} for {length_text(seconds)}{also}"


def retention_text(
    window: tuple[float, float] | None,
    seen: tuple[int, int] | None,
    k: int,
    total: int,
    *,
    is_over: bool = False,
) -> str:
    """Return when retention deletes first, or that it does; "" where neither is known.

    `window` is the forecast in seconds of the run, `seen` the first and the last second with a deletion.
    """
    if seen is not None:
        first, last = map(clock_text, seen)
        if is_over:
            return f"old data was deleted from {first} to {last}"
        ago = k - seen[1]
        return f"old data was first deleted at {first}, " + (
            "goes on" if ago <= SILENT_SECONDS else f"last {length_text(ago)} ago"
        )
    return "" if window is None else _forecast_text(window, k, k if is_over else total, is_over)


def _forecast_text(window: tuple[float, float], k: int, end: int, is_over: bool) -> str:
    early, late = (math.ceil(one) for one in window)
    if early > end:
        return f"the run ends {length_text(early - end)} before old data would be deleted"
    if is_over:
        return "no deletion of old data was seen"
    if k < early:
        latest = f" to {clock_text(late - k)}" if late > early else ""
        return f"old data is deleted in {clock_text(early - k)}{latest}"
    if k < late:
        return f"old data is deleted within {clock_text(late - k)}"
    if k <= late + SILENT_SECONDS:
        return "old data is deleted about now"
    return f"old data should be deleted for {length_text(k - late)}, no deletion seen"


def length_text(seconds: int) -> str:
    """Return a length of time as `90 s`, or in larger units from two minutes on."""
    return f"{seconds} s" if seconds < 120 else wording.span(seconds)  # noqa: PLR2004  # each of them counts
