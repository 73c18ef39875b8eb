"""From change points to findings: grouped into incidents, and given a cause once enough is known.

Runs in the driver beside the query, from what the store and the journals say, so a batch that is delivered
again, or a process that starts anew, comes to the same findings.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count

import numpy as np

from detectors import level_shift
from detectors.attribution import NO_CAUSE, UNKNOWN, attribute, attribute_breach, is_so_far
from detectors.client_seconds import identity
from detectors.incidents import REJOIN_SECONDS, TOGETHER_SECONDS, Incident, group, is_regression
from detectors.nearby import Nearby, TimedEvent
from soak.core.model import Change, Explanation, Finding
from soak.core.plan.phases import Phases
from soak.core.plan.plan import STREAM_DETECTOR, Plan
from soak.core.ports import Clock
from soak.core.series import host_of, parse_series, source_of
from soak.core.units import SECOND_NS
from soak.store.findings.port import FindingsPlace
from soak.store.findings.topic import findings_place
from soak.store.journal.history import MAX_WINDOW_SECONDS, History, Window
from soak.store.run_folder import RunFolder, read_phases, read_run

BEFORE_SECONDS = 600  # looked at around an onset
AFTER_SECONDS = 300
SOON_SECONDS = 15  # of the new level before a cause is reported: a reader waits for it
SETTLE_SECONDS = 22  # before that none is known, beyond what the slowest channel lags
BREACH_SECONDS = 60  # of patience for the cause of an incident in which a budget was spent
PATIENCE_SECONDS = 10  # for a source that has fallen silent
_PRODUCER = "produce."


@dataclass(slots=True)
class Attribution:
    """Keeps the findings up to date with the changes of one run, where its plan has them."""

    folder: RunFolder
    run: str
    plan: Plan
    clock: Clock
    history: History = field(init=False)
    findings: FindingsPlace = field(init=False)
    _host: str = field(init=False)  # the one that this process is on
    _own: tuple[int, int] = (-1, 0)  # the newest second of its sources, and since when it is that
    _is_settled: bool = False  # all findings are
    _has_news: bool = False  # changes that were stored since the last look
    _settled: dict[str, tuple[Incident, Finding]] = field(default_factory=dict)  # by key
    _turn: threading.Lock = field(default_factory=threading.Lock)  # at the store

    def __post_init__(self) -> None:
        self.history = History(self.folder.journal)
        self.findings = findings_place(self.folder, self.plan, self.run, self.clock)
        self._host = read_run(self.folder).host

    def advance(self, changes: Sequence[Change]) -> None:
        """Take the changes of a batch, which may be none, and judge what can be judged by now."""
        self.record(changes)
        self.judge()

    def record(self, changes: Sequence[Change]) -> None:
        """Store the changes of a batch; `judge` may run meanwhile in another thread."""
        if not changes:
            return
        with self._turn, self.findings.open() as store:
            store.record_changes(self.run, changes)
        self._has_news = True

    def judge(self) -> None:
        """Judge what can be judged by now: nothing while all findings are settled and no change is new."""
        if self._has_news or not self._is_settled:
            self._work(is_over=False)

    def conclude(self) -> None:
        """Judge what is still open by what is known: no more records will come to this process."""
        self._work(is_over=True)

    def _work(self, *, is_over: bool) -> None:
        """Bring the findings up to date; while it thinks, the store is free for the changes of a batch."""
        self._has_news = False
        try:
            self._judge_all(is_over=is_over)
        except BaseException:
            self._has_news = True  # so that the next try takes all of it
            raise

    def _judge_all(self, *, is_over: bool) -> None:
        with self._turn, self.findings.open() as store:
            known = store.changes(self.run)
            stored = {finding.key: finding for finding in store.findings(self.run)}
            assigned = store.assigned(self.run)
        found = group(known, assigned, step_config(self.plan).minimum_effect)
        incidents = named(self.run, found, {*stored, *assigned.values()})
        members = {identity(c): incident.key for incident in incidents for c in incident.changes}
        judged = self._findings_of(incidents, stored, known, is_over=is_over)
        with self._turn, self.findings.open() as store:
            # before the findings: a crash between leaves keys without a finding, which the next makes
            store.assign(
                self.run, {name: key for name, key in members.items() if name not in assigned}
            )
            for key in stored.keys() - {incident.key for incident in incidents}:
                store.drop_warning(key)
            for finding in judged:
                if finding != stored.get(finding.key):
                    store.save_finding(finding, list(self.plan.sinks), self.clock.wall_ns())

    def _findings_of(
        self,
        incidents: Sequence[Incident],
        stored: Mapping[str, Finding],
        known: Sequence[Change],
        *,
        is_over: bool,
    ) -> list[Finding]:
        """Return what is known of each incident by now, in the order in which it is stored."""
        self._is_settled = True
        latest = self._latest() if incidents else {}
        of_series = [change for change in known if change.kind != "objective"]
        judged: list[Finding] = []
        same = self._same(incidents, stored)

        def is_breach(one: Incident) -> bool:
            kind = same[one.key].kind if one.key in same else one.headline.kind
            return kind == "objective"

        # breaches come last, for the others are their causes
        for incident in sorted(incidents, key=is_breach):
            if incident.key in same:
                judged.append(same[incident.key])
                continue
            before = stored.get(incident.key)
            finding = finding_of(self.run, incident, before)
            if finding.kind == "objective":
                finding = self._breach(incident, finding, before, judged, latest, is_over=is_over)
            else:
                finding = self._judged(
                    incident, finding, before, of_series, latest, is_over=is_over
                )
            judged.append(finding)
            if finding.is_settled:
                self._settled[incident.key] = incident, finding
        return judged

    def _same(
        self, incidents: Sequence[Incident], stored: Mapping[str, Finding]
    ) -> dict[str, Finding]:
        """Return the findings of incidents that were settled at an earlier look and have not changed since.

        There may be thousands, and nothing new is known of any.
        """
        by_key = {incident.key: incident for incident in incidents}
        self._settled = {
            key: known
            for key, known in self._settled.items()
            if by_key.get(key) == known[0] and stored.get(key) == known[1]
        }
        return {key: finding for key, (_, finding) in self._settled.items()}

    def _judged(  # what is known of one incident
        self,
        incident: Incident,
        finding: Finding,
        before: Finding | None,
        known: Sequence[Change],
        latest: dict[str, int],
        *,
        is_over: bool,
    ) -> Finding:
        """Return the finding with its causes: a first word soon, the last one when all is seen."""
        causes: Sequence[Explanation] = before.causes if before is not None else ()
        worst = incident.headline
        if _is_other_trouble(before, worst):
            causes = ()
        is_settled = before is not None and before.is_settled and before.worst_k == worst.onset_k
        if finding.state != "warning" and not is_settled:
            last_k = worst.onset_k + AFTER_SECONDS
            newest_k = max(latest.values(), default=0)
            is_open = is_so_far(causes)
            is_soon = is_open and self._has_passed(worst.onset_k + SOON_SECONDS, latest)
            is_all_there = is_open and self._is_all_there(worst, latest)
            is_last = is_over or newest_k >= last_k
            is_settled = newest_k >= last_k or (is_over and self._is_run_over())
            if is_soon or is_all_there or is_last:
                nearby = self._nearby(worst, known, newest_k + 1)
                named = causes if _is_same_onset(before, worst) else ()
                found = attribute(incident, nearby, is_last=is_settled, named=named)
                if found[0].cause != UNKNOWN or is_all_there or is_last:
                    causes = found
            self._is_settled &= is_settled
        is_about_cluster = is_regression(incident, causes)
        return replace(
            finding, causes=tuple(causes), is_about_cluster=is_about_cluster, is_settled=is_settled
        )

    def _breach(
        self,
        incident: Incident,
        finding: Finding,
        before: Finding | None,
        others: Sequence[Finding],
        latest: dict[str, int],
        *,
        is_over: bool,
    ) -> Finding:
        """Return the finding of a missed objective with its causes, which are those of other incidents.

        They are known soon after, and may change as long as causes of a step may.
        """
        causes: Sequence[Explanation] = before.causes if before is not None else ()
        is_settled = before is not None and before.is_settled
        if not is_settled:
            newest_k = max(latest.values(), default=0)
            is_settled = newest_k >= finding.raised_k + AFTER_SECONDS or (
                is_over and self._is_run_over()
            )
            found = attribute_breach(incident.headline, others)
            is_known = bool(found) and found[0].cause != UNKNOWN and not is_so_far(found)
            if is_known or is_over or newest_k >= finding.raised_k + BREACH_SECONDS:
                causes = found or NO_CAUSE
            self._is_settled &= is_settled
        about = is_regression(incident, causes)
        return replace(finding, causes=tuple(causes), is_about_cluster=about, is_settled=is_settled)

    def _is_run_over(self) -> bool:
        """True when it has an end; a pause has none, and who goes on afterwards sees more."""
        return read_phases(self.folder.phases).end_k is not None

    def _is_all_there(self, worst: Change, latest: dict[str, int]) -> bool:
        """True when every channel would have shown by now what it had to show of the onset."""
        window = self.history.window(worst.onset_k, worst.onset_k + 1)
        late_seconds = max(
            (lag for name, lag in lags(window).items() if not _is_deletion(name)), default=0.0
        )
        wanted_k = worst.interval[1] + SETTLE_SECONDS + round(late_seconds)
        return self._has_passed(wanted_k, latest)

    @staticmethod
    def _has_passed(k: int, latest: dict[str, int]) -> bool:
        """True when all sources have come so far, or are silent."""
        if not latest:
            return False
        return min(latest.values()) >= k or max(latest.values()) >= k + PATIENCE_SECONDS

    def _latest(self) -> dict[str, int]:
        """Return how far each source has come, none of another host further than those of this one.

        The run goes by this host's clock, and another's may be ahead; unless all of this host are silent.
        """
        found = self.history.latest()
        newest = max(
            (k for source, k in found.items() if host_of(source) == self._host), default=-1
        )
        now_ns = self.clock.mono_ns()
        if newest > self._own[0]:
            self._own = newest, now_ns
        if newest < 0 or now_ns - self._own[1] > PATIENCE_SECONDS * SECOND_NS:
            return found
        return {source: min(k, newest) for source, k in found.items()}

    def _nearby(self, worst: Change, known: Sequence[Change], end_k: int) -> Nearby:
        k0, k1 = seconds_around(worst, end_k)
        phases = read_phases(self.folder.phases)
        window = self.history.window(k0, k1)
        earlier = self.history.earlier_events(k0)
        return nearby_of(window, known, phases, earlier, self.plan.topic.names)


def _is_other_trouble(before: Finding | None, worst: Change) -> bool:
    """True when the causes stored of an incident say nothing of the change that is its worst by now.

    A change that came much later may have a cause of its own. One that came soon after may not, unless the
    first was the client's: that would hide what the cluster did.
    """
    if before is None or before.worst_k is None or _is_same_onset(before, worst):
        return False
    return abs(before.worst_k - worst.onset_k) > REJOIN_SECONDS or not before.is_about_cluster


def _is_same_onset(before: Finding | None, worst: Change) -> bool:
    """True when the causes stored of an incident are about the change that is its worst by now."""
    if before is None or before.worst_k is None:
        return False
    return abs(before.worst_k - worst.onset_k) <= TOGETHER_SECONDS


def step_config(plan: Plan) -> level_shift.Config:
    """Return what the plan has the online detector tell."""
    found: level_shift.Config = plan.detection.detectors[STREAM_DETECTOR]
    return found


def named(run: str, incidents: Iterable[Incident], taken: Collection[str]) -> list[Incident]:
    """Return the incidents with a key each: new ones get one after their first raise, never a taken one."""
    used, found = set(taken), []
    following: dict[int, int] = {}  # by the second of the raise: many incidents may share one
    for incident in incidents:
        key = incident.key
        if not key:
            for number in count(following.get(incident.raised_k, 1)):
                key = f"{run}-{incident.raised_k}" + (f"-{number}" if number > 1 else "")
                if key not in used:
                    break
            following[incident.raised_k] = number + 1
            used.add(key)
        found.append(replace(incident, key=key))
    return found


def finding_of(run: str, incident: Incident, before: Finding | None) -> Finding:
    """Return an incident as a finding, without causes; `before` is the last word on it."""
    headline, opening = incident.headline, incident.opening
    failed, late, due = messages_in_outages(incident)
    return Finding(
        key=incident.key,
        run=run,
        raised_k=incident.raised_k if before is None else before.raised_k,
        onset_k=opening.onset_k,
        interval=opening.interval,
        series=headline.series,
        kind=headline.kind,
        before=headline.before,
        after=headline.after,
        state=incident.state,
        confidence=headline.confidence,
        is_about_cluster=False,
        changes=tuple(name for name in incident.moved if name != headline.series),
        resolved_k=incident.resolved_k,
        failed_messages=failed,
        late_messages=late,
        due_messages=due,
        worst_k=headline.onset_k,
    )


def messages_in_outages(incident: Incident) -> tuple[int | None, int | None, int | None]:
    """Return messages that failed, came late and were due, of all clients; None without an outage.

    Outages of one series follow each other, so their messages add up; those of a leader are among those of
    its client, so the largest counts of each client. What was not acknowledged could not be received, so
    consumers count only where no producer has an outage.
    """
    outages = [change for change in incident.changes if change.kind == "outage"]
    if not outages:
        return None, None, None
    produced = [one for one in outages if source_of(one.series).startswith(_PRODUCER)]
    by_series: dict[str, tuple[int, int, int]] = {}
    for one in produced or outages:
        failed, late, due = by_series.get(one.series, (0, 0, 0))
        by_series[one.series] = (
            failed + (one.failed_messages or 0),
            late + (one.late_messages or 0),
            max(due, one.due_messages or 0),  # since the start of the run
        )
    by_source: dict[str, tuple[int, ...]] = {}
    for series, counts in by_series.items():
        known = by_source.get(source_of(series), (0, 0, 0))
        by_source[source_of(series)] = tuple(map(max, known, counts))
    failed, late, due = (sum(counts) for counts in zip(*by_source.values(), strict=True))
    return failed, late, due


def seconds_around(change: Change, end_k: int) -> tuple[int, int]:
    """Return first second and first after it that causes look at, before `end_k`: at most a window.

    An onset may lie anywhere in hours: between two stretches that counted, or within a long period.
    """
    k1 = min(change.onset_k + AFTER_SECONDS + 1, end_k)
    k0 = max(0, change.interval[0] - BEFORE_SECONDS, k1 - MAX_WINDOW_SECONDS)
    return k0, max(k0, k1)


def nearby_of(
    window: Window,
    changes: Iterable[Change],
    phases: Phases,
    earlier_events: dict[str, int],
    topics: Iterable[str],
) -> Nearby:
    """Return a window of the journals as causes want to see it."""
    return Nearby(
        k0=window.k0,
        k1=window.k1,
        series={name: window.series(name) for name in window.columns},
        changes=tuple(c for c in changes if window.k0 <= c.onset_k < window.k1),
        events=tuple(TimedEvent(k, event, source) for k, source, event in window.events),
        earlier_events=earlier_events,
        invalid_k={
            source: seconds.k[~seconds.valid].astype(np.int64)
            for source, seconds in window.sources.items()
        },
        phases=tuple(zip(phases.from_k, phases.names, strict=True)),
        lag_seconds=lags(window),
        topics=frozenset(filter(None, topics)),
    )


def _is_deletion(series: str) -> bool:
    """True for a probe that reports deletions at once; the drive feels them later."""
    return parse_series(series).metric.startswith("retention_")


def lags(window: Window) -> dict[str, float]:
    """Return by how many seconds a channel may show a change late, of those that do."""
    return {
        name: column.lag_seconds for name, column in window.columns.items() if column.lag_seconds
    }
