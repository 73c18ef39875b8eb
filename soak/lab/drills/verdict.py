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
from soak.core.model import Record
from soak.core.series import parse_series
from soak.core.units import SECOND_NS, format_duration
from soak.lab.drills.drill import CLIENT, NOTHING, UNKNOWN, Expectation
from soak.lab.drive.folder import DriveStatus
from soak.store.findings.store import FindingsStore
from soak.store.journal.reader import read_source, sources
from soak.store.run_folder import RunFolder, read_run


class DriveCounters(Protocol):
    """The part of a drive that is asked; see `soak.lab.drive.drive.Drive`."""

    def status(self) -> DriveStatus: ...


class DrivePool:
    """Call `look` about once a second: between two looks the drive is taken to be written evenly."""

    def __init__(self, drive: DriveCounters) -> None:
        self._drive = drive
        self._wall_ns: list[int] = []
        self._written_bytes: list[int] = []

    @property
    def allowed_bytes(self) -> int | None:
        """Return what could be written before a write waited; None as long as none did."""
        said = self._drive.status()
        if said.aged_written_bytes is None or said.starved_written_bytes is None:
            return None
        return said.starved_written_bytes - said.aged_written_bytes

    def look(self, at_wall_ns: int) -> None:
        said = self._drive.status()
        if said.aged_written_bytes is not None:
            self._wall_ns.append(at_wall_ns)
            self._written_bytes.append(said.written_bytes - said.aged_written_bytes)

    def written_bytes(self, at_wall_ns: int) -> float | None:
        """Return what had been written by then; None before the first look and after the last."""
        if not self._wall_ns or not self._wall_ns[0] <= at_wall_ns <= self._wall_ns[-1]:
            return None
        return float(np.interp(at_wall_ns, self._wall_ns, self._written_bytes))


# --- What the run of a drill wrote down: who was told of which finding, its events, the order of its records.


@dataclass(frozen=True, slots=True)
class Notification:
    """What people were told, by finding."""

    at_wall_ns: Mapping[str, int] = field(default_factory=dict)  # first
    cause: Mapping[str, str] = field(default_factory=dict)  # by that first message
    gone_wall_ns: Mapping[str, int] = field(default_factory=dict)  # when it was noticed, for good
    confirmed: frozenset[str] = frozenset()  # in the run, whoever was told


def notifications(folder: RunFolder) -> Notification:
    """Return what people were told in a run.

    Nobody is told that something is gone that was not held against the cluster: then the second counts.
    """
    if not folder.findings.exists():  # the detector never ran; to look would make one
        return Notification()
    run = read_run(folder)
    with FindingsStore(folder.findings) as store:
        rows, findings = store.notifications(run.id), store.findings(run.id)
    sent = [row for row in rows if row.kind == "opened" and row.state == "sent"]
    last = {row.subject: row.occurrence for row in rows}
    resolved = [
        row for row in rows if row.kind == "resolved" and row.occurrence == last[row.subject]
    ]
    seconds = {
        one.key: run.start_wall_ns + one.resolved_k * SECOND_NS
        for one in findings
        if one.resolved_k is not None
    }
    at_wall_ns = _first([(row.subject, row.done_wall_ns) for row in sent])
    return Notification(
        at_wall_ns,
        {row.subject: row.cause for row in sent if row.done_wall_ns == at_wall_ns.get(row.subject)},
        seconds | _first([(row.subject, row.created_wall_ns) for row in resolved]),
        frozenset(one.key for one in findings if one.state != "warning"),
    )


def event_times(folder: RunFolder, kind: str) -> list[int]:
    """Return when the events of a kind began, at the earliest, in ns of the wall clock.

    That is by the run's own count of seconds, whatever became of the clock itself.
    """
    return [
        event.since_ns
        for records in _by_source(folder)
        for record in records
        for event in record.events
        if event.kind == kind
    ]


def records_out_of_order(folder: RunFolder) -> int:
    """Return how many records were written after one of the same second or a later one."""
    return sum(
        later.k <= record.k for records in _by_source(folder) for record, later in pairwise(records)
    )


def _by_source(folder: RunFolder) -> Iterator[Iterator[Record]]:
    for source in sources(folder.journal):
        yield (record for record, _ in read_source(folder.journal, source))


def _first(moments: Sequence[tuple[str, int | None]]) -> dict[str, int]:
    """Return the earliest moment of each key: one sink is enough."""
    found: dict[str, int] = {}
    for key, at_wall_ns in moments:
        if at_wall_ns is not None:
            found[key] = min(at_wall_ns, found.get(key, at_wall_ns))
    return found


# --- The verdict on a run that a drill was put into: what its fault was, against what was found.
# The findings are those of `summary.json`; who was told of them, and what the drive took, is known beside it.

EARLY_NS, LATE_NS = 5 * SECOND_NS, 30 * SECOND_NS
"""A finding is the fault's when it begins at most so long before it was felt and after it was lifted."""

_STOLEN = "host_cpu_steal_ratio"


@dataclass(frozen=True, slots=True)
class Moments:
    """When a drill's fault was felt and lifted, and when people were told of findings, by their keys."""

    onset_wall_ns: int | None = None
    lifted_wall_ns: int | None = None
    told_wall_ns: Mapping[str, int] = field(default_factory=dict)  # first sent
    gone_wall_ns: Mapping[str, int] = field(default_factory=dict)  # noticed to be gone
    told_cause: Mapping[str, str] = field(default_factory=dict)  # by what was first sent
    events_wall_ns: Sequence[int] = ()  # of the kind that is expected, at the earliest
    disordered: int = 0  # records after one of the same second or a later one
    pool: DrivePool | None = None
    failure: str = ""  # what kept the fault from being undone
    in_run: Container[str] | None = None  # keys of what was confirmed in the run; None: not known


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the verdict on a drill, as text for a table."""

    subject: str
    expected: str
    found: str
    is_met: bool


def judge(expect: Expectation, summary: Mapping[str, Any], moments: Moments) -> list[Check]:
    """Compare a run's `summary.json` with what the drill must bring out; passed when all are met."""
    findings: Sequence[Mapping[str, Any]] = summary.get("findings", [])
    audit = summary.get("audit", {})
    counts = [
        _count("lost", expect.lost, audit.get("lost")),
        _count("duplicated", expect.duplicated, audit.get("duplicated")),
        *_outcome(expect, summary),
        *_event(expect, moments),
    ]
    if moments.failure:
        counts.append(Check("lifted", "undone", moments.failure, is_met=False))
    if expect.cause == NOTHING:
        felt = "felt" if moments.onset_wall_ns is not None else "never felt"
        return [Check("fault", "felt", felt, felt == "felt"), _quiet(findings, "cause"), *counts]
    about = relevant(expect, findings, moments)
    own = of_fault(about, moments)
    found = None if wrong(expect, own, moments) else nearest(expect, own, moments.onset_wall_ns)
    causes = ", ".join(sorted({str(one.get("cause")) for one in own})) or "no finding"
    state = str(found.get("state")) if found else "no finding"
    key = str(found.get("key")) if found else ""
    told, gone = moments.told_wall_ns.get(key), moments.gone_wall_ns.get(key)
    return [
        Check("cause", expect.cause, causes, found is not None),
        Check("state", expect.state, state, state == expect.state),
        _quiet(before_fault(about, moments), "before"),
        _onset(expect, found, moments.onset_wall_ns),
        *_soon("told", expect.alert_within, moments.onset_wall_ns, told),
        *_soon("gone", expect.gone_within, moments.lifted_wall_ns, gone, early=not expect.lasts),
        *_pool(expect, found, moments.pool),
        *_metric(expect, found),
        *counts,
    ]


def relevant(
    expect: Expectation, findings: Sequence[Mapping[str, Any]], moments: Moments
) -> list[Mapping[str, Any]]:
    """Return those that count: confirmed ones about the cluster, or that blame what did it, or the client.

    What only the report found or confirmed, looking back, was not detected: it counts where nothing may be.
    Where nothing was done the client may be blamed, as it may for CPU that a hypervisor took. A step back
    down is `unknown` and about nobody, so that cause alone is not enough.
    """

    def counts(one: Mapping[str, Any]) -> bool:
        cause = one.get("cause")
        if one.get("is_about_cluster") or cause == expect.cause != UNKNOWN:
            return True
        return cause == CLIENT and expect.cause != NOTHING and not _is_stolen(one)

    def was_seen(one: Mapping[str, Any]) -> bool:
        known = moments.in_run
        return expect.cause == NOTHING or known is None or one.get("key") in known

    return [
        one for one in findings if one.get("state") != "warning" and counts(one) and was_seen(one)
    ]


def wrong(
    expect: Expectation, findings: Sequence[Mapping[str, Any]], moments: Moments
) -> list[Mapping[str, Any]]:
    """Return those of a fault's that blame another cause, the client too, or the cluster for the client's.

    What comes of the lifting, as when a broker is started again, is no blame for the fault, unless that was
    so short that its own findings may still begin.
    """
    begin_ns, end_ns = moments.onset_wall_ns, moments.lifted_wall_ns
    if begin_ns is None:
        return []
    length_ns = math.inf if end_ns is None else max(LATE_NS, end_ns - begin_ns)
    harmless = {expect.cause} if expect.cause == CLIENT else {expect.cause, UNKNOWN}
    return [
        one for one in _between(findings, begin_ns, length_ns) if one.get("cause") not in harmless
    ]


def of_fault(findings: Sequence[Mapping[str, Any]], moments: Moments) -> list[Mapping[str, Any]]:
    """Return the findings that began while the fault was at work, or shortly before or after."""
    begin_ns, end_ns = moments.onset_wall_ns, moments.lifted_wall_ns
    if begin_ns is None:
        return []
    length_ns = math.inf if end_ns is None else end_ns - begin_ns + LATE_NS
    return _between(findings, begin_ns, length_ns)


def before_fault(
    findings: Sequence[Mapping[str, Any]], moments: Moments
) -> list[Mapping[str, Any]]:
    """Return the findings about the cluster that began before the fault could be felt: false alarms.

    CPU that a hypervisor took is none: it was so.
    """
    begin_ns = moments.onset_wall_ns
    if begin_ns is None:
        return []

    def is_early(one: Mapping[str, Any]) -> bool:
        away = _away_seconds(one, begin_ns)
        return away is not None and away * SECOND_NS < -EARLY_NS

    return [
        one
        for one in findings
        if one.get("is_about_cluster") and is_early(one) and not _is_stolen(one)
    ]


def after_lifting(
    expect: Expectation, findings: Sequence[Mapping[str, Any]], moments: Moments
) -> list[Mapping[str, Any]]:
    """Return the findings about the cluster that began after the fault was lifted, and are not the fault's.

    Those that blame something else for the fault itself are told by `wrong`.
    """
    if moments.lifted_wall_ns is None:
        return []
    told = [id(one) for one in wrong(expect, findings, moments)]

    def is_late(one: Mapping[str, Any]) -> bool:
        at = at_wall_ns(one)
        return at is not None and moments.lifted_wall_ns is not None and at > moments.lifted_wall_ns

    return [
        one
        for one in findings
        if one.get("is_about_cluster")
        and one.get("cause") != expect.cause
        and id(one) not in told
        and is_late(one)
    ]


def _is_stolen(one: Mapping[str, Any]) -> bool:
    """True for a finding explained by CPU that a hypervisor took: no drill does that, and it was so."""
    cause = one.get("cause")
    return any(
        evidence.get("cause") == cause
        and parse_series(str(evidence.get("numbers", {}).get("series", ""))).metric == _STOLEN
        for evidence in one.get("evidence", ())
    )


def _between(
    findings: Sequence[Mapping[str, Any]], begin_ns: int, length_ns: float
) -> list[Mapping[str, Any]]:
    """Return those that began so long after a moment at most, or shortly before it."""

    def is_near(one: Mapping[str, Any]) -> bool:
        away = _away_seconds(one, begin_ns)
        return away is not None and -EARLY_NS <= away * SECOND_NS <= length_ns

    return [one for one in findings if is_near(one)]


def nearest(
    expect: Expectation, findings: Sequence[Mapping[str, Any]], onset_wall_ns: int | None
) -> Mapping[str, Any] | None:
    """Return the finding of the expected cause whose onset lies nearest to the fault's."""
    named = [one for one in findings if one.get("cause") == expect.cause]
    return closest(named, onset_wall_ns)


def closest(
    findings: Sequence[Mapping[str, Any]], onset_wall_ns: int | None
) -> Mapping[str, Any] | None:
    """Return the finding whose onset lies nearest to the fault's, whatever its cause."""

    def distance(one: Mapping[str, Any]) -> float:
        away = None if onset_wall_ns is None else _away_seconds(one, onset_wall_ns)
        return math.inf if away is None else abs(away)

    return min(findings, key=distance, default=None)


def _onset(
    expect: Expectation, found: Mapping[str, Any] | None, onset_wall_ns: int | None
) -> Check:
    expected = f"within {format_duration(expect.onset_within)} of the fault"
    if onset_wall_ns is None:
        return Check("onset", expected, "the fault was never felt", is_met=False)
    away = None if found is None else _away_seconds(found, onset_wall_ns)
    if away is None:
        return Check("onset", expected, "no onset", is_met=False)
    text = f"{abs(away):.1f} s {'after' if away >= 0 else 'before'} it"
    return Check("onset", expected, text, abs(away) * SECOND_NS <= expect.onset_within)


def _soon(
    subject: str, within_ns: int, since_ns: int | None, at_ns: int | None, *, early: bool = True
) -> list[Check]:
    """Return a line about something that must follow soon, where that is judged; may it be `early`?"""
    if not within_ns:
        return []
    expected = f"within {format_duration(within_ns)}"
    if since_ns is None or at_ns is None:
        return [Check(subject, expected, "never", is_met=False)]
    after_ns = at_ns - since_ns
    is_met = after_ns <= within_ns and (early or after_ns >= 0)
    return [Check(subject, expected, f"after {after_ns / SECOND_NS:.1f} s", is_met)]


def _pool(
    expect: Expectation, found: Mapping[str, Any] | None, pool: DrivePool | None
) -> list[Check]:
    """Return a line about what was written when the finding began; none where that is not judged."""
    if not expect.pool_within:
        return []
    expected = f"within {expect.pool_within:.0%} of the pool"
    at = None if found is None else at_wall_ns(found)
    written = None if pool is None or at is None else pool.written_bytes(at)
    if pool is None or pool.allowed_bytes is None or written is None:
        return [Check("written", expected, "not known", is_met=False)]
    amounts = (wording.amount(each, "bytes") for each in (written, pool.allowed_bytes))
    is_met = abs(written / pool.allowed_bytes - 1.0) <= expect.pool_within
    return [Check("written", expected, " of ".join(amounts), is_met)]


def _metric(expect: Expectation, found: Mapping[str, Any] | None) -> list[Check]:
    """Return a line about what stepped with the finding; none where that is not judged."""
    if not expect.metric:
        return []
    also = () if found is None else found.get("also", ())
    metrics = {parse_series(series).metric for series in also}
    if found is not None:
        metrics.add(str(found.get("metric")))
    text = ", ".join(sorted(metrics)) or "no finding"
    return [Check("stepped", expect.metric, text, expect.metric in metrics)]


def _outcome(expect: Expectation, summary: Mapping[str, Any]) -> list[Check]:
    """Return a line about what the phases came to; none where that is not judged."""
    if not expect.outcome:
        return []
    outcomes = [one.get("outcome", {}).get("outcome") for one in summary.get("phases", ())]
    text = ", ".join(str(one) for one in outcomes if one) or "none"
    return [Check("outcome", expect.outcome, text, expect.outcome in outcomes)]


def _event(expect: Expectation, moments: Moments) -> list[Check]:
    """Return lines about the event that must be told, and about the records; none where not judged."""
    if not expect.event:
        return []
    since_ns, told_ns = moments.onset_wall_ns, moments.events_wall_ns
    away_ns = min((abs(at - since_ns) for at in told_ns), default=None) if since_ns else None
    text = "never" if away_ns is None else f"{away_ns / SECOND_NS:.1f} s from it"
    expected = f"{expect.event} within {format_duration(expect.onset_within)} of the fault"
    is_met = away_ns is not None and away_ns <= expect.onset_within
    order = f"{moments.disordered} out of order" if moments.disordered else "in order"
    return [
        Check("event", expected, text, is_met),
        Check("records", "in order", order, not moments.disordered),
    ]


def _quiet(findings: Sequence[Mapping[str, Any]], subject: str) -> Check:
    loud = [
        str(one.get("cause"))
        for one in findings
        if one.get("is_about_cluster") and one.get("state") != "warning"
    ]
    found = ", ".join(sorted(loud)) or "no finding"
    return Check(subject, "no finding about the cluster", found, not loud)


def _count(subject: str, expected: int, found: object) -> Check:
    return Check(
        subject, str(expected), "unknown" if found is None else str(found), found == expected
    )


def at_wall_ns(finding: Mapping[str, Any]) -> int | None:
    """Return when a finding began; None when it says no time."""
    try:
        at = dt.datetime.fromisoformat(str(finding.get("at")))
    except ValueError:
        return None
    if at.tzinfo is None:
        at = at.replace(tzinfo=dt.UTC)
    return round(at.timestamp() * SECOND_NS)


def _away_seconds(finding: Mapping[str, Any], onset_wall_ns: int) -> float | None:
    """Return the finding's onset minus the fault's; None when the finding says no time."""
    at = at_wall_ns(finding)
    return None if at is None else (at - onset_wall_ns) / SECOND_NS
