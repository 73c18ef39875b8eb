"""From change points to findings: grouped into incidents, and given a cause once enough is known.

Runs in the driver, in a thread next to the query. It goes from moment to moment of the run's own time, and
judges each by what the journals and the query had shown by then. A moment is an interval in which something
was found, or at which the cause of an open incident is due. It is judged when all sources have passed it. So
neither the batches in which records came nor the speed of the host change what is found. Nor does a restart:
the new process judges the last moment again, to the same effect.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count

import numpy as np

from detectors import level_shift
from detectors.attribution import (
    JUDGED_SECONDS,
    NO_CAUSE,
    UNKNOWN,
    attribute,
    attribute_breach,
    carried_over,
    is_so_far,
)
from detectors.client_seconds import ChangeId, identity
from detectors.incidents import REJOIN_SECONDS, TOGETHER_SECONDS, Incident, group, is_regression
from detectors.nearby import Nearby, TimedEvent
from soak.core.errors import SoakError
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
from spark.streaming.discoveries import Discoveries

_LOG = logging.getLogger(__name__)
BEFORE_SECONDS = 600  # looked at around an onset
AFTER_SECONDS = JUDGED_SECONDS
SOON_SECONDS = 15  # of the new level before a cause is reported: a reader waits for it
AGAIN_SECONDS = 3  # between two looks for a cause that is not known by then
SETTLE_SECONDS = 22  # before that none is known, beyond what the slowest channel lags
LATER_SECONDS = (30, 60, 120)  # after an onset, for a cause that is still unknown
BREACH_SECONDS = 60  # of patience for the cause of an incident in which a budget was spent
PATIENCE_SECONDS = 10  # for a source that is behind the others
_FAR_WORSE = 2.0  # times the ratio
_ALL_K = 2**62
_PRODUCER = "produce."


@dataclass(frozen=True, slots=True)
class _Moment:
    """What is known as of one interval: the changes found so far, of which some are new."""

    k: int
    known: Sequence[Change] = ()
    new: frozenset[ChangeId] = frozenset()
    is_over: bool = False  # no more records will come to this process

    def is_look(self, incident: Incident) -> bool:
        """True when the cause of an incident that has none is looked for: at times, and when it changes."""
        since = self.k - incident.headline.onset_k - SOON_SECONDS
        is_new = any(identity(change) in self.new for change in incident.changes)
        return since >= 0 and (is_new or since % AGAIN_SECONDS == 0)

    def is_later_look(self, incident: Incident, causes: Sequence[Explanation]) -> bool:
        """True when a cause that stayed unknown is looked for again: a broker may be back by then."""
        since = self.k - incident.headline.onset_k
        return since in LATER_SECONDS and _is_unknown(causes)

    def is_second_look(self, incident: Incident, before: Finding | None) -> bool:
        """True when the cause is looked for anew, once: of what came later and is far worse.

        It may have a cause of its own.
        """
        worst = incident.headline
        since = self.k - worst.onset_k - SETTLE_SECONDS
        is_new = not _is_same_onset(before, worst)
        return (since == 0 or (since > 0 and is_new)) and _is_far_worse(incident)


@dataclass(slots=True)
class Attribution:
    """Keeps the findings up to date with the changes of one run, where its plan has them.

    `record` may be called while `judge` runs in another thread.
    """

    folder: RunFolder
    run: str
    plan: Plan
    clock: Clock
    history: History = field(init=False)
    findings: FindingsPlace = field(init=False)
    _discoveries: Discoveries = field(init=False)
    _host: str = field(init=False)  # the one that this process is on
    _own: tuple[int, int] = (-1, 0)  # the newest second of its sources, and since when it is that
    complete_k: int = field(default=-1, init=False)  # up to which all records are there
    _newest_k: int = -1  # of all records that were taken
    _moment_k: int | None = None  # the last one that was judged; None: this process judged none
    _due_k: int | None = None  # when something is due although nothing is found until then
    _settled: dict[str, tuple[Incident, Finding]] = field(default_factory=dict)  # by key

    def __post_init__(self) -> None:
        self.history = History(self.folder.journal)
        self.findings = findings_place(self.folder, self.plan, self.run, self.clock)
        self._discoveries = Discoveries(self.folder.attribution)
        self._host = read_run(self.folder).host

    def record(self, changes: Sequence[Change], reached: Mapping[str, int]) -> None:
        """Keep the changes of a batch, and how far the query has come by source, for `judge`."""
        if changes:
            self._discoveries.add(changes)
        if reached:
            self._newest_k, self.complete_k = self._extent(reached)

    def judge(self) -> bool:
        """Judge as of the next moment that all records are there for; return False when there is none."""
        if self._moment_k is None:
            self._judge_at(self._not_ahead(self._discoveries.moment_k()))
        self._moment_k = self._not_ahead(self._last_k)
        k = self._next_k()
        if k is None or k > max(self.complete_k, self._last_k):
            return False
        self._judge_at(k)
        return True

    def conclude(self, *, is_hurried: bool = False) -> None:
        """Judge what is still open by what is known: no more records will come to this process.

        In a hurry the moments that are due are left out, and only the final judgement is made.
        """
        self.complete_k = max(self.complete_k, self._newest_k)
        while not is_hurried and self.judge():
            pass
        self._judge_at(max(self.complete_k, self._last_k), is_over=True)

    @property
    def _last_k(self) -> int:
        return -1 if self._moment_k is None else self._moment_k

    def _not_ahead(self, k: int) -> int:
        """Return a moment, or the newest interval where the clock was set back since."""
        return self._newest_k if 0 <= self._newest_k < k - AFTER_SECONDS else k

    def _next_k(self) -> int | None:
        """Return the next moment; what was found late is judged as of the last one."""
        known = [k for k in (self._discoveries.first_k(), self._due_k) if k is not None]
        return max(min(known), self._last_k) if known else None

    def _judge_at(self, k: int, *, is_over: bool = False) -> None:
        """Bring the findings up to date with a moment; what is found after it is not looked at."""
        found = self._discoveries.up_to(_ALL_K if is_over else k)
        if found:
            self._discoveries.settle(
                k, ()
            )  # of a process that is killed meanwhile the next judges it again
        with self.findings.open() as store:
            store.record_changes(self.run, list(found.values()))
            known = store.changes(self.run)
            stored = {finding.key: finding for finding in store.findings(self.run)}
            assigned = store.assigned(self.run)
        grouped = group(known, assigned, step_config(self.plan).minimum_effect)
        incidents = named(self.run, grouped, {*stored, *assigned.values()})
        members = {identity(c): incident.key for incident in incidents for c in incident.changes}
        moment = _Moment(k, known, frozenset(map(identity, found.values())), is_over)
        judged = self._findings_of(incidents, stored, moment)
        news = [finding for finding in judged if finding != stored.get(finding.key)]
        with self.findings.open() as store:
            # before the findings: a crash between leaves keys without a finding, which the next makes
            store.assign(
                self.run, {name: key for name, key in members.items() if name not in assigned}
            )
            for key in stored.keys() - {incident.key for incident in incidents}:
                store.drop_warning(key)
            for finding in news:
                store.save_finding(finding, list(self.plan.sinks), self.clock.wall_ns())
        if found or news:
            self._discoveries.settle(k, found)
        self._moment_k = k

    def _findings_of(
        self, incidents: Sequence[Incident], stored: Mapping[str, Finding], moment: _Moment
    ) -> list[Finding]:
        """Return what is known of each incident by a moment, in the order in which it is stored."""
        judged: list[Finding] = []
        due: list[int] = []
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
            finding = self._with_causes(incident, before, judged, moment)
            judged.append(finding)
            if finding.is_settled:
                self._settled[incident.key] = incident, finding
            due += next_look(finding, moment.k)
        self._due_k = min(due, default=None)
        return judged

    def _with_causes(
        self,
        incident: Incident,
        before: Finding | None,
        others: Sequence[Finding],
        moment: _Moment,
    ) -> Finding:
        """Return the finding of an incident; where looking for its causes fails, with those known before."""
        finding = finding_of(self.run, incident, before)
        try:
            if finding.kind == "objective":
                return self._breach(incident, finding, before, others, moment)
            return self._judged(incident, finding, before, moment)
        except (SoakError, OSError):  # worth another try
            raise
        except Exception:  # noqa: BLE001  # no other incident waits for this one
            _LOG.exception("cause_not_found finding=%s", incident.key)
            known = before.causes if before is not None else ()
            is_settled = moment.k >= incident.headline.onset_k + AFTER_SECONDS
            causes = tuple(known) or (NO_CAUSE if finding.state != "warning" else ())
            about = is_regression(incident, causes)
            return replace(finding, causes=causes, is_about_cluster=about, is_settled=is_settled)

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
        self, incident: Incident, finding: Finding, before: Finding | None, moment: _Moment
    ) -> Finding:
        """Return the finding with its causes: a first judgement soon, the last one when all is seen."""
        causes: Sequence[Explanation] = before.causes if before is not None else ()
        worst = incident.headline
        if _is_other_trouble(before, worst):
            causes = ()
        elif not _is_same_onset(before, worst):
            causes = carried_over(causes, _later_by(before, worst))
        is_settled = before is not None and before.is_settled and before.worst_k == worst.onset_k
        if finding.state != "warning" and not is_settled:
            is_all_seen = moment.k >= worst.onset_k + AFTER_SECONDS
            is_last = is_all_seen or moment.is_over
            is_settled = is_all_seen or (moment.is_over and self._is_run_over())
            is_again = bool(causes) and (
                moment.is_second_look(incident, before) or moment.is_later_look(incident, causes)
            )
            if is_last or is_again or (is_so_far(causes) and moment.is_look(incident)):
                nearby = self._nearby(worst, moment)
                named = causes if is_again or _is_same_onset(before, worst) else ()
                found = attribute(incident, nearby, is_last=is_settled, named=named)
                is_known = found[0].cause != UNKNOWN or self._is_all_there(worst, moment.k)
                if is_last or (not is_so_far(found) if is_again else is_known):
                    causes = found
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
        moment: _Moment,
    ) -> Finding:
        """Return the finding of a missed objective with its causes, which are those of other incidents.

        They are known soon after, and may change as long as causes of a step may.
        """
        causes: Sequence[Explanation] = before.causes if before is not None else ()
        is_settled = before is not None and before.is_settled
        if not is_settled:
            is_settled = moment.k >= finding.raised_k + AFTER_SECONDS or (
                moment.is_over and self._is_run_over()
            )
            found = attribute_breach(incident.headline, others)
            is_known = bool(found) and found[0].cause != UNKNOWN and not is_so_far(found)
            if is_known or moment.is_over or moment.k >= finding.raised_k + BREACH_SECONDS:
                causes = found or NO_CAUSE
        about = is_regression(incident, causes)
        return replace(finding, causes=tuple(causes), is_about_cluster=about, is_settled=is_settled)

    def _is_run_over(self) -> bool:
        """True when it has an end; a pause has none, and a process that resumes the run sees more."""
        return read_phases(self.folder.phases).end_k is not None

    def _is_all_there(self, worst: Change, k: int) -> bool:
        """True when every channel would have shown by `k` what it had to show of the onset."""
        window = self.history.window(worst.onset_k, worst.onset_k + 1)
        late_seconds = max(
            (lag for name, lag in lags(window).items() if not _is_deletion(name)), default=0.0
        )
        return k >= worst.interval[1] + SETTLE_SECONDS + round(late_seconds)

    def _extent(self, reached: Mapping[str, int]) -> tuple[int, int]:
        """Return the newest interval, and that up to which all sources have come that are waited for.

        No source of another host counts for more than those of this one: the run goes by this host's clock,
        and another's may be ahead; unless all of this host are silent. A source that is further behind is
        not waited for: it is silent, late, or was cut off and sends what it has kept. But while the query is
        behind the journals of this host, or the run is over, all records that were written are waited for.
        """
        own = {source for source in reached if host_of(source) == self._host}
        newest = max((reached[source] for source in own), default=-1)
        now_ns = self.clock.mono_ns()
        if newest > self._own[0]:
            self._own = newest, now_ns
        if newest < 0 or now_ns - self._own[1] > PATIENCE_SECONDS * SECOND_NS:
            own, newest = set(reached), max(reached.values())
        unread = {
            one: k - reached[one] for one, k in self.history.latest().items() if one in reached
        }
        is_behind = self._is_run_over() or any(
            unread.get(source, 0) > PATIENCE_SECONDS for source in own
        )
        awaited = [
            min(k, newest)
            for source, k in reached.items()
            if k >= newest - PATIENCE_SECONDS or (is_behind and unread.get(source, 0) > 0)
        ]
        return newest, min(awaited)

    def _nearby(self, worst: Change, moment: _Moment) -> Nearby:
        k0, k1 = seconds_around(worst, moment.k + 1)
        phases = read_phases(self.folder.phases)
        window = self.history.window(k0, k1)
        earlier = self.history.earlier_events(k0)
        of_series = [change for change in moment.known if change.kind != "objective"]
        return nearby_of(window, of_series, phases, earlier, self.plan.topic.names)


def next_look(finding: Finding, k: int) -> list[int]:
    """Return the moments after `k` at which more may be known of a finding, although nothing is found."""
    if finding.is_settled or finding.state == "warning":
        return []
    if finding.kind == "objective":
        wanted = [finding.raised_k + BREACH_SECONDS, finding.raised_k + AFTER_SECONDS]
    else:
        onset_k = finding.onset_k if finding.worst_k is None else finding.worst_k
        soon_k = onset_k + SOON_SECONDS
        looks = max(0, (k - soon_k) // AGAIN_SECONDS + 1)
        again_k = soon_k + looks * AGAIN_SECONDS
        last_k = onset_k + AFTER_SECONDS
        again = [min(again_k, last_k)] if is_so_far(finding.causes) else [onset_k + SETTLE_SECONDS]
        later = LATER_SECONDS if _is_unknown(finding.causes) else ()
        wanted = [*again, *(onset_k + since for since in later), last_k]
    return [one for one in wanted if one > k]


def _is_unknown(causes: Sequence[Explanation]) -> bool:
    return bool(causes) and causes[0].cause == UNKNOWN


def _is_other_trouble(before: Finding | None, worst: Change) -> bool:
    """True when the causes stored of an incident say nothing of the change that is its worst by now.

    A change that came much later may have a cause of its own. One that came soon after may not, unless that
    of the first is unknown or was the client: this would hide what the cluster did.
    """
    if before is None or before.worst_k is None or _is_same_onset(before, worst):
        return False
    is_much_later = abs(before.worst_k - worst.onset_k) > REJOIN_SECONDS
    return is_much_later or before.cause == UNKNOWN or not before.is_about_cluster


def _later_by(before: Finding | None, worst: Change) -> int:
    """Return how many seconds after the worst change that is stored of an incident the one of now began."""
    return 0 if before is None or before.worst_k is None else worst.onset_k - before.worst_k


def _is_far_worse(incident: Incident) -> bool:
    """True when the worst change of an incident is much worse than what began earlier."""
    worst, rises = incident.headline, incident.rises
    levels = {one.series: one.before for one in sorted(rises, key=lambda one: -one.before)}
    earlier = [
        change.after / levels[change.series]
        for change in rises
        if change.state != "warning"
        and change.onset_k < worst.onset_k - TOGETHER_SECONDS
        and levels[change.series] > 0.0
    ]
    if worst.kind != "step" or not earlier or worst.before <= 0.0:
        return False
    return worst.after / worst.before >= _FAR_WORSE * max(earlier)


def _is_same_onset(before: Finding | None, worst: Change) -> bool:
    """True when the causes stored of an incident are about the change that is its worst by now."""
    if before is None or before.worst_k is None:
        return False
    return abs(before.worst_k - worst.onset_k) <= TOGETHER_SECONDS


def step_config(plan: Plan) -> level_shift.Config:
    """Return the settings of the online detector in the plan."""
    found: level_shift.Config = plan.detection.detectors[STREAM_DETECTOR]
    return found


def named(run: str, incidents: Iterable[Incident], taken: Collection[str]) -> list[Incident]:
    """Return the incidents with a key each: new ones get one after their first raise, never a taken one."""
    used: set[str] = set(taken)
    found: list[Incident] = []
    following: dict[int, int] = {}  # by the second of the raise: many incidents may share one
    for incident in incidents:
        if incident.key:
            found.append(incident)
            continue
        for number in count(following.get(incident.raised_k, 1)):
            key = f"{run}-{incident.raised_k}" + (f"-{number}" if number > 1 else "")
            if key not in used:
                break
        following[incident.raised_k] = number + 1
        used.add(key)
        found.append(replace(incident, key=key))
    return found


def finding_of(run: str, incident: Incident, before: Finding | None) -> Finding:
    """Return an incident as a finding, without causes; `before` is its last version."""
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
