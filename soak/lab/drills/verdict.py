"""The verdict on the run of a drill: what was injected against what was found and reported."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Protocol

import numpy as np

from soak.core import wording
from soak.core.clock import SystemClock
from soak.core.model import Record
from soak.core.series import parse_series
from soak.core.units import SECOND_NS, format_duration
from soak.lab.drills.drill import CLIENT, NOTHING, UNKNOWN, Expectation
from soak.lab.drills.injection import Injection
from soak.lab.drive.folder import DriveStatus
from soak.store.findings.topic import findings_place
from soak.store.journal.reader import read_source, sources
from soak.store.run_folder import RunFolder, read_plan, read_run

EARLY_NS, LATE_NS = 5 * SECOND_NS, 30 * SECOND_NS
"""A finding belongs to the fault if it begins at most this long before its onset and after its lifting."""

_STEAL_METRIC = "host_cpu_steal_ratio"
_MUCH_STOLEN = 0.1
_LEAST_STOLEN_SECONDS = 5

SummaryFinding = Mapping[str, Any]
"""A finding as `summary.json` has it."""


class DriveCounters(Protocol):
    """The part of `soak.lab.drive.drive.Drive` that the pool of erased pages needs."""

    def status(self) -> DriveStatus: ...


class DrivePool:
    """The bytes written to a drive since its pool of erased pages was set, by the wall clock.

    Call `sample` about once a second; between two samples the rate of writes is taken as constant.
    """

    def __init__(self, drive: DriveCounters) -> None:
        self._drive = drive
        self._wall_ns: list[int] = []
        self._written_bytes: list[int] = []

    @property
    def allowed_bytes(self) -> int | None:
        """Return how much was written before a write first waited; None before that."""
        status = self._drive.status()
        if status.aged_written_bytes is None or status.starved_written_bytes is None:
            return None
        return status.starved_written_bytes - status.aged_written_bytes

    def sample(self, at_wall_ns: int) -> None:
        status = self._drive.status()
        if status.aged_written_bytes is not None:
            self._wall_ns.append(at_wall_ns)
            self._written_bytes.append(status.written_bytes - status.aged_written_bytes)

    def written_bytes(self, at_wall_ns: int) -> float | None:
        """Return how much had been written by then; None before the first sample and after the last."""
        if not self._wall_ns or not self._wall_ns[0] <= at_wall_ns <= self._wall_ns[-1]:
            return None
        return float(np.interp(at_wall_ns, self._wall_ns, self._written_bytes))


@dataclass(frozen=True, slots=True)
class Notifications:
    """When people were notified of findings, by the keys of the findings."""

    sent_wall_ns: Mapping[str, int] = field(default_factory=dict)  # of the first message
    cause: Mapping[str, str] = field(default_factory=dict)  # in the first message
    resolved_wall_ns: Mapping[str, int] = field(default_factory=dict)  # of the last resolution


@dataclass(frozen=True, slots=True)
class Moments:
    """What a drill and its run recorded next to `summary.json`."""

    onset_wall_ns: int | None = None
    lifted_wall_ns: int | None = None
    notifications: Notifications = Notifications()
    confirmed_in_run: Container[str] | None = None  # keys of findings; None: unknown
    events_wall_ns: Sequence[int] = ()  # beginnings of events of the expected kind
    records_out_of_order: int = 0
    pool: DrivePool | None = None
    failure: str = ""  # why the fault could not be undone


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the verdict on a drill, as text for a table."""

    subject: str
    expected: str
    found: str
    is_met: bool


def read_moments(
    folder: RunFolder, injection: Injection, pool: DrivePool | None, event: str
) -> Moments:
    """Return what a finished run recorded; `event` is the kind of event that is expected, or ""."""
    sent, confirmed = read_notifications(folder)
    return Moments(
        injection.onset_wall_ns,
        injection.lifted_wall_ns,
        sent,
        confirmed,
        events_wall_ns=event_times(folder, event) if event else (),
        records_out_of_order=count_records_out_of_order(folder) if event else 0,
        pool=pool,
        failure=injection.failure,
    )


def read_notifications(folder: RunFolder) -> tuple[Notifications, frozenset[str]]:
    """Return the notifications of a run, and the keys of the findings that were confirmed in it.

    No message is sent when a finding that is not about the cluster resolves: the end of its second counts.
    """
    run = read_run(folder)
    place = findings_place(folder, read_plan(folder), run.id, SystemClock())
    if not place.exists():  # the detector never ran; opening the store would create it
        return Notifications(), frozenset()
    try:
        with place.open() as store:
            rows, findings = store.notifications(run.id), store.findings(run.id)
    finally:
        place.close()
    sent = [row for row in rows if row.kind == "opened" and row.state == "sent"]
    last = {row.subject: row.occurrence for row in rows}
    resolved = [
        row for row in rows if row.kind == "resolved" and row.occurrence == last[row.subject]
    ]
    seconds = {
        one.key: run.start_wall_ns + (one.resolved_k + 1) * SECOND_NS
        for one in findings
        if one.resolved_k is not None
    }
    first = _earliest([(row.subject, row.done_wall_ns) for row in sent])
    return Notifications(
        first,
        {row.subject: row.cause for row in sent if row.done_wall_ns == first.get(row.subject)},
        seconds | _earliest([(row.subject, row.created_wall_ns) for row in resolved]),
    ), frozenset(one.key for one in findings if one.state != "warning")


def event_times(folder: RunFolder, kind: str) -> list[int]:
    """Return when the events of a kind began, in ns of the wall clock.

    The times follow the run's own count of seconds, which a step of the clock does not change.
    """
    return [
        event.since_ns
        for records in _records_by_source(folder)
        for record in records
        for event in record.events
        if event.kind == kind
    ]


def count_records_out_of_order(folder: RunFolder) -> int:
    """Return how many records follow one of the same second or a later one."""
    return sum(
        later.k <= record.k
        for records in _records_by_source(folder)
        for record, later in pairwise(records)
    )


def stolen_text(folder: RunFolder) -> str:
    """Return in how many seconds of a run the hypervisor took much of the CPU, "" where in hardly any.

    A drill needs all of a machine: what it then measures is that of the other virtual machines, too.
    """
    stolen: dict[int, float] = {}
    for source in sources(folder.journal):
        for record, columns in read_source(folder.journal, source):
            for column, value in zip(columns, record.values, strict=True):
                if column.metric == _STEAL_METRIC:
                    stolen[record.k] = max(value, stolen.get(record.k, 0.0))
    found = sum(value >= _MUCH_STOLEN for value in stolen.values())
    if found < _LEAST_STOLEN_SECONDS:
        return ""
    return (
        f"other virtual machines took {_MUCH_STOLEN:.0%} and more of the CPU in {found} of "
        f"{len(stolen)} s: repeat the drill when they are quiet"
    )


def _records_by_source(folder: RunFolder) -> Iterator[Iterator[Record]]:
    for source in sources(folder.journal):
        yield (record for record, _ in read_source(folder.journal, source))


def _earliest(times: Sequence[tuple[str, int | None]]) -> dict[str, int]:
    """Return the earliest time of each key: one sink is enough."""
    found: dict[str, int] = {}
    for key, at_wall_ns in times:
        if at_wall_ns is not None:
            found[key] = min(at_wall_ns, found.get(key, at_wall_ns))
    return found


@dataclass(frozen=True, slots=True)
class FaultFindings:
    """The findings of a run that count, by what they mean for the drill.

    `wrong` are those of the fault that name another cause. Findings that the lifting brings about, such as a
    broker that starts again, are not wrong, unless the fault was so short that its own may still begin.
    """

    relevant: Sequence[SummaryFinding]
    of_fault: Sequence[SummaryFinding]  # began near the fault; without one: all relevant ones
    wrong: Sequence[SummaryFinding]
    before: Sequence[SummaryFinding]  # false alarms: about the cluster, and before the fault
    after: Sequence[SummaryFinding]  # about the cluster, after the lifting, with another cause
    match: SummaryFinding | None  # the nearest of the expected cause; None if there are wrong ones
    shown: SummaryFinding | None  # a wrong one, else the expected one, else another of the fault


def classify(
    expect: Expectation, findings: Sequence[SummaryFinding], moments: Moments
) -> FaultFindings:
    """Sort the findings of `summary.json` by what they mean for the drill."""
    onset_ns, lifted_ns = moments.onset_wall_ns, moments.lifted_wall_ns
    relevant = [one for one in findings if _is_relevant(expect, one, moments)]
    length_ns = None if onset_ns is None or lifted_ns is None else lifted_ns - onset_ns
    of_fault = relevant
    if expect.cause != NOTHING:
        late_ns = math.inf if length_ns is None else length_ns + LATE_NS
        of_fault = _near(relevant, onset_ns, late_ns)
    harmless = {expect.cause} if expect.cause == CLIENT else {expect.cause, UNKNOWN}
    during_ns = math.inf if length_ns is None else max(LATE_NS, length_ns)
    wrong = [
        one for one in _near(of_fault, onset_ns, during_ns) if one.get("cause") not in harmless
    ]
    expected = nearest([one for one in of_fault if one.get("cause") == expect.cause], onset_ns)
    about_cluster = [one for one in relevant if one.get("is_about_cluster")]
    return FaultFindings(
        relevant=relevant,
        of_fault=of_fault,
        wrong=wrong,
        before=[
            one
            for one in about_cluster
            if _offset_ns(one, onset_ns) < -EARLY_NS and not _is_cpu_steal(one)
        ],
        after=[
            one
            for one in about_cluster
            if one.get("cause") != expect.cause
            and one not in wrong
            and _offset_ns(one, lifted_ns) > 0
        ],
        match=None if wrong else expected,
        shown=nearest(wrong, onset_ns) or expected or nearest(of_fault, onset_ns),
    )


def _is_relevant(expect: Expectation, one: SummaryFinding, moments: Moments) -> bool:
    """Return whether a finding counts: a confirmed one that blames the cluster, its cause, or the client.

    A finding that only the report's offline analysis found was not detected in the run: it counts only where
    nothing may be found. Where nothing was injected the client may be blamed, and so may CPU steal. A step
    back down is `unknown` and not about the cluster, so that cause alone is not enough.
    """
    cause, in_run = one.get("cause"), moments.confirmed_in_run
    if one.get("state") == "warning":
        return False
    if expect.cause != NOTHING and in_run is not None and one.get("key") not in in_run:
        return False
    if one.get("is_about_cluster") or cause == expect.cause != UNKNOWN:
        return True
    return cause == CLIENT and expect.cause != NOTHING and not _is_cpu_steal(one)


def _is_cpu_steal(one: SummaryFinding) -> bool:
    """Return whether a finding is explained by CPU steal, which no drill causes: then it is true."""
    cause = one.get("cause")
    return any(
        evidence.get("cause") == cause
        and parse_series(str(evidence.get("numbers", {}).get("series", ""))).metric == _STEAL_METRIC
        for evidence in one.get("evidence", ())
    )


def _near(
    findings: Sequence[SummaryFinding], onset_ns: int | None, length_ns: float
) -> list[SummaryFinding]:
    """Return the findings that began at most `length_ns` after the onset, or shortly before it."""
    return [one for one in findings if -EARLY_NS <= _offset_ns(one, onset_ns) <= length_ns]


def nearest(findings: Sequence[SummaryFinding], onset_ns: int | None) -> SummaryFinding | None:
    """Return the finding that began nearest to the onset."""

    def distance(one: SummaryFinding) -> float:
        offset_ns = _offset_ns(one, onset_ns)
        return math.inf if math.isnan(offset_ns) else abs(offset_ns)

    return min(findings, key=distance, default=None)


def _offset_ns(one: SummaryFinding, wall_ns: int | None) -> float:
    """Return how long after a moment a finding began; NaN if either is unknown."""
    at_ns = began_wall_ns(one)
    return math.nan if at_ns is None or wall_ns is None else at_ns - wall_ns


def began_wall_ns(finding: SummaryFinding) -> int | None:
    """Return when a finding began; None if it has no time."""
    try:
        at = dt.datetime.fromisoformat(str(finding.get("at")))
    except ValueError:
        return None
    if at.tzinfo is None:
        at = at.replace(tzinfo=dt.UTC)
    return round(at.timestamp() * SECOND_NS)


def judge(expect: Expectation, summary: Mapping[str, Any], moments: Moments) -> list[Check]:
    """Compare a run's `summary.json` with what the drill expects; it is passed if all checks are met."""
    audit = summary.get("audit", {})
    checks = [
        _count("lost", expect.lost, audit.get("lost")),
        _count("duplicated", expect.duplicated, audit.get("duplicated")),
        *_outcome(expect, summary),
        *_event(expect, moments),
    ]
    if moments.failure:
        checks.append(Check("lifted", "undone", moments.failure, is_met=False))
    findings: Sequence[SummaryFinding] = summary.get("findings", [])
    if expect.cause == NOTHING:
        effect = "seen" if moments.onset_wall_ns is not None else "never seen"
        return [
            Check("fault", "seen", effect, effect == "seen"),
            _no_findings("cause", findings),
            *checks,
        ]
    return [*_judge_fault(expect, classify(expect, findings, moments), moments), *checks]


def _judge_fault(expect: Expectation, findings: FaultFindings, moments: Moments) -> list[Check]:
    match = findings.match or {}
    causes = ", ".join(sorted({str(one.get("cause")) for one in findings.of_fault}))
    state = wording.state_word(str(match.get("state", "no finding")))
    key, sent = str(match.get("key", "")), moments.notifications
    return [
        Check("cause", expect.cause, causes or "no finding", bool(match)),
        Check("state", expect.state, state, state == expect.state),
        _no_findings("before", findings.before),
        _onset(expect, match, moments.onset_wall_ns),
        *_in_time(
            "notified", expect.alert_within, moments.onset_wall_ns, sent.sent_wall_ns.get(key)
        ),
        *_in_time(
            "resolved",
            expect.resolved_within,
            moments.lifted_wall_ns,
            sent.resolved_wall_ns.get(key),
            may_be_early=not expect.until_lifted,
        ),
        *_pool(expect, match, moments.pool),
        *_metric(expect, match),
    ]


def _onset(expect: Expectation, match: SummaryFinding, onset_wall_ns: int | None) -> Check:
    expected = f"within {format_duration(expect.onset_within)} of the fault"
    offset_ns = _offset_ns(match, onset_wall_ns)
    if math.isnan(offset_ns):
        found = "no onset" if onset_wall_ns is not None else "the fault had no effect"
        return Check("onset", expected, found, is_met=False)
    found = f"{abs(offset_ns) / SECOND_NS:.1f} s {'after' if offset_ns >= 0 else 'before'} it"
    return Check("onset", expected, found, abs(offset_ns) <= expect.onset_within)


def _in_time(
    subject: str,
    within_ns: int,
    since_ns: int | None,
    at_ns: int | None,
    *,
    may_be_early: bool = True,
) -> list[Check]:
    """Return a check of something that must follow within a time; none if that is not judged."""
    if not within_ns:
        return []
    expected = f"within {format_duration(within_ns)}"
    if since_ns is None or at_ns is None:
        return [Check(subject, expected, "never", is_met=False)]
    after_ns = at_ns - since_ns
    is_met = after_ns <= within_ns and (may_be_early or after_ns >= 0)
    return [Check(subject, expected, f"after {after_ns / SECOND_NS:.1f} s", is_met)]


def _pool(expect: Expectation, match: SummaryFinding, pool: DrivePool | None) -> list[Check]:
    """Return a check of the bytes written when the finding began; none if that is not judged.

    An onset is known by its second, so anything written within that second counts.
    """
    if not expect.pool_within:
        return []
    expected = f"within {expect.pool_within:.0%} of the pool"
    at_ns = began_wall_ns(match)
    if pool is None or at_ns is None or pool.allowed_bytes is None:
        return [Check("written", expected, "unknown", is_met=False)]
    least, most = (pool.written_bytes(at_ns + later_ns) for later_ns in (0, SECOND_NS))
    if least is None or most is None:
        return [Check("written", expected, "unknown", is_met=False)]
    written = min(max(least, pool.allowed_bytes), most)
    amounts = (wording.amount(each, "bytes") for each in (written, pool.allowed_bytes))
    is_met = abs(written / pool.allowed_bytes - 1.0) <= expect.pool_within
    return [Check("written", expected, " of ".join(amounts), is_met)]


def _metric(expect: Expectation, match: SummaryFinding) -> list[Check]:
    """Return a check of the metrics that changed with the finding; none if that is not judged."""
    if not expect.metric:
        return []
    metrics = {parse_series(series).metric for series in match.get("also", ())}
    if match:
        metrics.add(str(match.get("metric")))
    found = ", ".join(sorted(metrics)) or "no finding"
    return [Check("stepped", expect.metric, found, expect.metric in metrics)]


def _outcome(expect: Expectation, summary: Mapping[str, Any]) -> list[Check]:
    """Return a check of the outcomes of the phases; none if that is not judged."""
    if not expect.outcome:
        return []
    outcomes = [one.get("outcome", {}).get("outcome") for one in summary.get("phases", ())]
    found = ", ".join(str(one) for one in outcomes if one) or "none"
    return [Check("outcome", expect.outcome, found, expect.outcome in outcomes)]


def _event(expect: Expectation, moments: Moments) -> list[Check]:
    """Return checks of the expected event and the order of the records; none if that is not judged."""
    if not expect.event:
        return []
    since_ns, times = moments.onset_wall_ns, moments.events_wall_ns
    away_ns = min((abs(at - since_ns) for at in times), default=None) if since_ns else None
    found = "never" if away_ns is None else f"{away_ns / SECOND_NS:.1f} s from it"
    expected = f"{expect.event} within {format_duration(expect.onset_within)} of the fault"
    is_met = away_ns is not None and away_ns <= expect.onset_within
    count = moments.records_out_of_order
    order = f"{count} out of order" if count else "in order"
    return [
        Check("event", expected, found, is_met),
        Check("records", "in order", order, not count),
    ]


def _no_findings(subject: str, findings: Sequence[SummaryFinding]) -> Check:
    causes = [
        str(one.get("cause"))
        for one in findings
        if one.get("is_about_cluster") and one.get("state") != "warning"
    ]
    found = ", ".join(sorted(causes)) or "no finding"
    return Check(subject, "no finding about the cluster", found, not causes)


def _count(subject: str, expected: int, found: object) -> Check:
    return Check(
        subject, str(expected), "unknown" if found is None else str(found), found == expected
    )
