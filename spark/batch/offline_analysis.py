"""Offline analysis of a whole run: confirms online findings and adds those that only hindsight shows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np

from detectors import kinds, level_shift, outage
from detectors.attribution import NO_CAUSE, attribute, attribute_breach
from detectors.client_seconds import LEAST_WAIT, Second, is_headline, waiting_of
from detectors.incidents import Incident, group, improvements, is_regression
from detectors.offline.steps import Config, detect_together
from soak.core.model import Change, Column, Finding, Series
from soak.core.plan.phases import Phases
from soak.core.plan.plan import OUTAGE_DETECTOR
from soak.core.ports import Each, each_here
from soak.core.series import parse_series, series_name, source_of
from soak.core.units import SECOND_NS
from soak.runtime.incident_size import IncidentSize
from soak.store.journal.history import History
from soak.store.journal.reader import sources
from spark.batch.digest import RoughSeconds
from spark.batch.timeline import Floats, Ints, Timeline
from spark.streaming.attribution import (
    finding_of,
    nearby_of,
    seconds_around,
    step_config,
)

# --- What changed in the latencies of a run, all of them analysed together.


def changes_together(
    many: Sequence[Series], plan: level_shift.Config, each: Each = each_here
) -> list[tuple[Change, ...]]:
    """Return steps, drifts, spikes and tails of series that count seconds, in order of onset.

    What several series did at one time is one step: a change of each, clearest first. The smallest step is
    that of the plan, as online.
    """
    config = Config(
        smallest_step_ratio=plan.smallest_step_ratio,
        smallest_step_seconds=plan.smallest_step_seconds,
    )
    steps = detect_together(many, config, each)
    return kinds.changes_of_many([(series, plan.minimum_effect) for series in many], steps, each)


# --- Analyses a whole run: which online findings the offline detector sees too, and what it sees alone.

NEAR_SECONDS = 15
"""An offline step this close to an online one is the same step."""
HOLD_SECONDS = 30
"""A step that only the offline detector sees must hold this long on both sides."""
ALONE_RATIO = 2.0
"""And be this large, in publish and end-to-end latency both: a verdict must not hang on noise."""


Found = Literal["online", "offline", "both"]


@dataclass(frozen=True, slots=True)
class Judged:
    """A finding, which of the two detectors saw it, and the step that it is in the offline analysis.

    That is a change of each latency which took it, clearest first, all of one onset; empty where that
    shows no step.
    """

    finding: Finding
    found: Found
    step: tuple[Change, ...] = ()
    size: IncidentSize | None = None  # of a latency incident
    acknowledged: str | None = None  # the note by which it is a known change

    @property
    def is_against_cluster(self) -> bool:
        """Return whether it is about the cluster, and no known change."""
        return self.finding.is_about_cluster and self.acknowledged is None


def judge_incidents(
    timeline: Timeline,
    online: Sequence[Finding],
    changes: Sequence[Change] = (),
    breaches: Sequence[Change] = (),
    each: Each = each_here,
) -> list[Judged]:
    """Return all incidents, each with which detector saw it; `changes` are those of all series, seen online.

    `breaches` are those of the objectives, over the whole run.

    What the offline analysis shows while an incident was open is a part of it. A warning that it confirms
    keeps the key that it was given online. Falls of latency are no incidents, though earlier versions stored
    them as findings.
    """
    of_objectives = [finding for finding in online if finding.kind == "objective"]
    online = [finding for finding in online if finding.kind != "objective"]
    changes = [change for change in changes if change.kind != "objective"]
    seen, stopped = offline_changes(timeline, each), outages(timeline)
    steps = [one for event in seen for one in event if one.kind == "step"]
    courses = [one for event in seen for one in event if one.kind != "step"]
    rises = [one for one in (*steps, *courses, *stopped) if one.direction == "up"]
    worse = [finding for finding in online if finding.after > finding.before]
    confirmed = [finding for finding in worse if finding.state != "warning"]
    warnings = [finding for finding in worse if finding.state == "warning"]
    judged = []
    for finding in confirmed:
        course = _drift_of(finding, steps, courses)
        known = finding if course is None else _as_drift(finding, course)
        is_seen = course is not None or any(_is_part(finding, rise) for rise in rises)
        judged.append(Judged(known, "both" if is_seen else "online", _step_of(known, seen)))
    alone = [step for step in steps if not any(_is_part(finding, step) for finding in confirmed)]
    unseen = [one for one in stopped if not any(_is_part(finding, one) for finding in confirmed)]
    for finding in _findings(timeline, [*_lasting(alone, timeline), *unseen], changes, each):
        warned = next((one for one in warnings if _is_same(one, finding)), None)
        step = _step_of(finding, seen)
        if warned is None:
            judged.append(Judged(finding, "offline", step))
        else:
            warnings.remove(warned)
            judged.append(Judged(replace(finding, key=warned.key), "both", step))
    judged += [Judged(finding, "online") for finding in warnings]
    return [*judged, *_missed_objectives(timeline, breaches, of_objectives, judged)]


def _missed_objectives(
    timeline: Timeline,
    breaches: Sequence[Change],
    online: Sequence[Finding],
    judged: Sequence[Judged],
) -> list[Judged]:
    """Return the breaches of objectives; what was seen online has the figures of the whole run."""
    known = {finding.series: finding for finding in online}
    others = [one.finding for one in judged]
    found = []
    for incident in group(breaches):
        breach = incident.headline
        before = known.pop(breach.series, None)
        causes = tuple(attribute_breach(breach, others)) or NO_CAUSE
        about = is_regression(incident, causes)
        if before is None:
            finding = finding_of(timeline.run.id, incident, None)
            key = f"{finding.key}-offline"
            finding = replace(finding, key=key, causes=causes, is_about_cluster=about)
            found.append(Judged(finding, "offline"))
        else:
            found.append(Judged(replace(before, before=breach.before, after=breach.after), "both"))
    return [*found, *(Judged(finding, "online") for finding in known.values())]


def improvements_of(timeline: Timeline, changes: Sequence[Change]) -> list[Change]:
    """Return the falls of latency seen online that were the end of no incident, in order of onset."""
    return improvements(changes, group(changes, effect=step_config(timeline.plan).minimum_effect))


def headlines(timeline: Timeline) -> list[str]:
    """Return the latencies that are analysed."""
    return [name for name, column in timeline.columns.items() if is_headline(column)]


def offline_changes(timeline: Timeline, each: Each = each_here) -> list[tuple[Change, ...]]:
    """Return what changed in the headline latencies within the soak, invalid seconds left out.

    What is one event in several is one step.
    """
    many = []
    for name in headlines(timeline):
        k, values = _with_waiting(timeline, name)
        invalid = np.array(list(timeline.invalid.get(source_of(name), {})), dtype=np.int64)
        invalid = invalid // timeline.step * timeline.step
        keep = timeline.is_soak(k) & ~np.isin(k, invalid) & (values > 0)
        many.append(Series(name, k[keep], values[keep]))
    return [
        tuple(_within_buckets(change, timeline.step) for change in changes)
        for changes in changes_together(many, step_config(timeline.plan), each)
    ]


def _with_waiting(timeline: Timeline, name: str) -> tuple[Ints, Floats]:
    """Return seconds and values of a latency, with what is known of seconds without one: see `Waiting`."""
    k, values = timeline.series[name]
    bound = waiting_of(name)
    if bound is None or bound[0] not in timeline.series:
        return k, values
    waited_k, waited = timeline.series[bound[0]]
    due = [timeline.series[one] for one in bound[1] if one in timeline.series]
    is_silent = (waited >= LEAST_WAIT) & ~np.isin(waited_k, k[~np.isnan(values)])
    if due:
        is_silent &= np.isin(waited_k, np.concatenate([at[count > 0] for at, count in due]))
    waited_k, waited = waited_k[is_silent], waited[is_silent]
    before = np.searchsorted(k, waited_k) - 1
    newest = np.where(before >= 0, values[np.maximum(before, 0)], np.nan) if k.size else waited
    k, values = np.append(k, waited_k), np.append(values, np.fmax(newest, waited))
    order = np.argsort(k)
    return k[order], values[order]


def _within_buckets(change: Change, step: int) -> Change:
    """Return a change with all seconds in its interval in which buckets of so many would show it there."""
    low, high = change.interval
    return replace(change, interval=(max(0, low - step // 2), high + (step - 1) // 2))


def _step_of(finding: Finding, seen: Sequence[tuple[Change, ...]]) -> tuple[Change, ...]:
    """Return the offline step that a finding is: the nearest, if may be one that its series took."""
    near = [
        event
        for event in seen
        if finding.kind == event[0].kind == "step" and any(_is_same(finding, one) for one in event)
    ]
    own = [event for event in near if any(one.series == finding.series for one in event)]
    return min(own or near, key=lambda event: abs(event[0].onset_k - finding.onset_k), default=())


def _drift_of(
    finding: Finding, steps: Sequence[Change], courses: Sequence[Change]
) -> Change | None:
    """Return the drift that describes a step found online better: offline there is no such step."""
    if finding.kind != "step" or any(_is_same(finding, step) for step in steps):
        return None
    return next(
        (
            course
            for course in courses
            if course.kind == "drift"
            and course.series == finding.series
            and _is_within(finding, course)
        ),
        None,
    )


def _as_drift(finding: Finding, course: Change) -> Finding:
    """Return a finding as the drift that it was: its causes were those of an instant."""
    return replace(
        finding,
        kind="drift",
        onset_k=course.onset_k,
        interval=course.interval,
        before=course.before,
        after=course.after,
        causes=(),
    )


def _is_within(finding: Finding, course: Change) -> bool:
    """True when a finding of the same direction began while a drift, spikes or a tail lasted."""
    is_up = finding.after > finding.before
    last = max(course.raised_k, course.interval[1])
    begins = course.interval[0] <= finding.interval[1] and finding.interval[0] <= last
    return begins and is_up == (course.direction == "up")


def _own_onset(step: Change) -> int:
    """Return where the series itself shows a step: the onset is that of all series that took it."""
    return step.raised_k


def _is_same(finding: Finding, step: Change | Finding) -> bool:
    is_up = finding.after > finding.before
    low, high = finding.interval
    onsets = (step.onset_k, _own_onset(step)) if isinstance(step, Change) else (step.onset_k,)
    is_near = any(low - NEAR_SECONDS <= onset <= high + NEAR_SECONDS for onset in onsets)
    return is_near and is_up == (step.after > step.before)


def _is_part(finding: Finding, change: Change) -> bool:
    """True when a change began while an incident lasted, or may have."""
    first, last = change.interval
    if change.kind != "step":  # it begins slowly
        last = max(last, change.raised_k)
    end_k = finding.resolved_k
    is_before_end = end_k is None or first <= end_k + NEAR_SECONDS
    return is_before_end and finding.interval[0] - NEAR_SECONDS <= last


def _lasting(steps: Sequence[Change], timeline: Timeline) -> list[Change]:
    """Return the large steps that hold, and that both latencies show."""
    bounds = [edge for span in timeline.soak_spans for edge in span]
    kept = []
    for step in steps:
        own = [_own_onset(other) for other in steps if other.series == step.series]
        edges = [*bounds, *(onset for onset in own if onset != _own_onset(step))]
        holds = all(abs(_own_onset(step) - edge) >= HOLD_SECONDS for edge in edges)
        low, high = sorted((step.before, step.after))
        if holds and low > 0 and high / low >= ALONE_RATIO:
            kept.append(step)
    metrics = {step.series: parse_series(step.series).metric for step in kept}
    return [
        step
        for step in kept
        if any(
            metrics[other.series] != metrics[step.series]
            and other.direction == step.direction
            and abs(_own_onset(other) - _own_onset(step)) <= NEAR_SECONDS
            for other in kept
        )
    ]


@dataclass(frozen=True, slots=True)
class _Wanted:
    """An incident that only the offline analysis shows, and what its causes are looked for in."""

    incident: Incident
    earlier: dict[str, int]  # events by kind before the seconds that are looked at
    changes: tuple[Change, ...]  # of all series
    run: str
    journal: Path
    phases: Phases
    topics: tuple[str, ...]
    end_k: int
    is_running: bool


def _findings(
    timeline: Timeline, steps: Sequence[Change], changes: Sequence[Change], each: Each
) -> list[Finding]:
    effect = step_config(timeline.plan).minimum_effect
    incidents = group(steps, effect=effect, context=changes)
    earlier = _earlier_events(timeline, incidents, each)
    wanted = [
        _Wanted(
            incident,
            before,
            (*steps, *changes),
            timeline.run.id,
            timeline.folder.journal,
            timeline.phases,
            tuple(timeline.plan.topic.names),
            timeline.end_k,
            timeline.is_running,
        )
        for incident, before in zip(incidents, earlier, strict=True)
    ]
    return each(_attributed, wanted)


def _earlier_events(
    timeline: Timeline, incidents: Sequence[Incident], each: Each
) -> list[dict[str, int]]:
    """Return the numbers of events by kind before each incident's window; a journal is read once for all."""
    journal = timeline.folder.journal
    first_k = [seconds_around(one.headline, timeline.end_k)[0] for one in incidents]
    if not first_k:
        return []
    of_sources = each(_earlier_of, [(journal, source, first_k) for source in sources(journal)])
    found: list[Counter[str]] = [Counter() for _ in first_k]
    for several in of_sources:
        for total, counted in zip(found, several, strict=True):
            total.update(counted)
    return [dict(total) for total in found]


def _earlier_of(wanted: tuple[Path, str, Sequence[int]]) -> list[dict[str, int]]:
    journal, source, first_k = wanted
    history = History(journal)
    return [history.earlier_events(k, of=[source]) for k in first_k]


def _attributed(wanted: _Wanted) -> Finding:
    """Return an incident as a finding with its causes."""
    incident, history = wanted.incident, History(wanted.journal)
    finding = finding_of(wanted.run, incident, None)
    k0, k1 = seconds_around(incident.headline, wanted.end_k)
    window = history.window(k0, k1)
    nearby = nearby_of(window, wanted.changes, wanted.phases, wanted.earlier, wanted.topics)
    causes = tuple(attribute(incident, nearby, is_last=not wanted.is_running))
    about = is_regression(incident, causes)
    return replace(finding, key=f"{finding.key}-offline", causes=causes, is_about_cluster=about)


_WELL = {"sent_messages": 1.0, "acked_messages": 1.0, "received_messages": 1.0}
_DUE = ("sent_messages", "missed_messages", "received_messages")


def outages(timeline: Timeline) -> list[Change]:
    """Return the outages of all clients in order of their raises, with what was due to each in all."""
    config: outage.Config = timeline.plan.detection.detectors[OUTAGE_DETECTOR]
    found = [
        replace(change, due_messages=_due(timeline, source))
        for source in timeline.rough
        for change in outage.detect(source, _rows(timeline, source, config), config)
    ]
    return sorted(found, key=lambda change: (change.raised_k, change.series))


def _rows(
    timeline: Timeline, source: str, config: outage.Config
) -> Iterator[tuple[Sequence[Column], Second]]:
    """Give the rough seconds of a source, each with the good ones behind it that may end an outage."""
    rough = {
        int(k): (part.columns, part.values[row])
        for part in timeline.rough[source]
        for row, k in enumerate(part.k)
    }
    recorded, behind = timeline.seconds[source], config.after // SECOND_NS
    at = np.searchsorted(recorded, sorted(rough))
    near = np.unique(np.add.outer(at, np.arange(behind + 1)))
    invalid = timeline.invalid.get(source, {})
    columns, good = _good(timeline.rough[source][0])
    for k in recorded[near[near < recorded.size]].tolist():
        known, values = rough.get(k, (columns, good))
        yield (
            known,
            Second(k, values, is_valid=k not in invalid, phase=timeline.phases.at(k)),
        )


def _good(
    part: RoughSeconds,
) -> tuple[Sequence[Column], np.ndarray[tuple[int], np.dtype[np.float64]]]:
    """Return a second in which all that was sent was acknowledged at once, by every leader."""
    values = [
        _WELL.get(column.metric, 0.0) if not column.labels else 0.0 for column in part.columns
    ]
    return part.columns, np.array(values)


def _due(timeline: Timeline, source: str) -> int:
    total = 0.0
    for metric in _DUE:
        _, counts = timeline.series.get(series_name(source, metric), (None, np.zeros(0)))
        total += float(counts.sum())
    return round(total)
