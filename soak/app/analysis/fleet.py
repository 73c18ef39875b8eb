"""Many runs side by side: how each ended, what caused incidents, and how latencies went from run to run.

Trends are those of `soak compare --trend`, by plan and from the reports alone: changes of level, and the
drift from the first run to the last.
Assumes: runs of one plan under one name differ by their time alone.
"""

from __future__ import annotations

import json
import math
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from markupsafe import Markup

from detectors import comparison
from soak.core import wording
from soak.core.errors import RunFolderError
from soak.core.model import Finding
from soak.core.plan.text import load_fleet
from soak.core.ports import Clock
from soak.service.files import read_json
from soak.store.findings.topic import findings_by_run
from soak.store.findings.topic_log import KafkaFindingsLog
from soak.store.run_folder import (
    RunFolder,
    counting_incidents,
    counting_verdict,
    read_acknowledged,
)
from spark.batch.comparison.comparison import Settings, runs_in
from spark.report.comparison import drift_text, page_html
from spark.report.comparison_charts import course_svg
from spark.report.page import table, tag

FIGURES = {
    "publish_p99_seconds": ("latency_seconds", "publish", "p99"),
    "end_to_end_p99_seconds": ("latency_seconds", "end_to_end", "p99"),
    "end_to_end_p99.9_seconds": ("latency_seconds", "end_to_end", "p99.9"),
    "sent_messages_per_second": ("sent_per_second",),
    "availability_ratio": ("availability",),
}
"""What is followed from run to run, and where the section `soak` of a summary has it."""
_NO_REPORT = "no report"
_WIDTH = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetRun:
    """One run: `verdict` as its report has it; `figures` those of `FIGURES` that are known."""

    run: str
    plan: str
    place: str  # folder, or "topic"
    start: str = ""  # ISO 8601; empty where only the topic knows the run
    verdict: str = _NO_REPORT
    figures: Mapping[str, float] = field(default_factory=dict)
    incidents: tuple[Mapping[str, Any], ...] = ()  # what, cause, suspect, state


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend:
    """How a figure went over the runs of a plan; `ratio` is that of the last run to the first."""

    plan: str
    figure: str
    values: tuple[float, ...]  # by start
    ratio: float
    chance: float  # that values without an order look so
    is_clear: bool
    changes: tuple[Mapping[str, Any], ...] = ()  # run from which on, level before and after
    runs: tuple[str, ...] = ()  # that the values are of


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """What a report of many runs says; `unread` names what could not be read, and why."""

    runs: tuple[FleetRun, ...]
    trends: tuple[Trend, ...]
    verdicts: Mapping[str, int]
    causes: tuple[Mapping[str, Any], ...]  # cause, suspects, incidents, runs; most frequent first
    unread: tuple[str, ...]

    def to_json(self) -> str:
        return json.dumps(asdict(self))


def overview(folders: Sequence[Path], plan: Path | None, clock: Clock) -> Fleet:
    """Return what the reports below these folders, and the findings topic of a fleet's plan, say together.

    A folder is that of a run, or has those of runs in it. Of a run that is in both the report counts.

    Raises:
        PlanError: the plan has a fault.
        FindingsError: the cluster of its store does not answer.
    """
    unread: list[str] = []
    found = {one.run: one for one in _in_folders(folders, unread)}
    if plan is not None:
        for one in _in_topic(plan, clock, unread):
            found.setdefault(one.run, one)
    return of_runs(found.values(), unread)


def of_runs(runs: Iterable[FleetRun], unread: Sequence[str] = ()) -> Fleet:
    """Return the overview of runs, which are put in the order of their start."""
    ordered = sorted(runs, key=lambda one: (one.plan, one.start, one.run))
    return Fleet(
        runs=tuple(ordered),
        trends=tuple(_trends(ordered)),
        verdicts=dict(Counter(one.verdict for one in ordered).most_common()),
        causes=tuple(_causes(ordered)),
        unread=tuple(unread),
    )


# --- Where runs are read.


def _in_folders(folders: Sequence[Path], unread: list[str]) -> Iterable[FleetRun]:
    for given in folders:
        if not given.is_dir():
            raise RunFolderError(f"{given} is not a folder")
        several = [given] if RunFolder(given).run_json.is_file() else runs_in(given)
        if not several:
            unread.append(f"{given}: no run in it")
        for path in several:
            folder = RunFolder(path)
            try:
                notes = read_acknowledged(folder)
                yield _of_summary(read_json(folder.summary), notes, path)
            except FileNotFoundError:
                unread.append(
                    f"{path}: no report yet; make it with `soak report {shlex.quote(str(path))}`"
                )
            except RunFolderError as error:
                unread.append(str(error))
            except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
                unread.append(f"{folder.summary}: {error!r}")


def _of_summary(summary: Mapping[str, Any], notes: Mapping[str, str], path: Path) -> FleetRun:
    known = {name: _at(summary.get("soak", {}), keys) for name, keys in FIGURES.items()}
    return FleetRun(
        run=str(summary["run"]),
        plan=str(summary["name"]),
        place=str(path),
        start=str(summary["start"]),
        verdict=counting_verdict(summary, notes),
        figures={name: value for name, value in known.items() if value is not None},
        incidents=tuple(
            {name: str(one[name]) for name in ("what", "cause", "suspect", "state")}
            for one in counting_incidents(summary, notes)
        ),
    )


def _at(body: Any, keys: Sequence[str]) -> float | None:  # noqa: ANN401  # JSON
    for key in keys:
        body = body.get(key) if isinstance(body, dict) else None
    return float(body) if isinstance(body, int | float) else None


def _in_topic(path: Path, clock: Clock, unread: list[str]) -> Iterable[FleetRun]:
    plan = load_fleet(path.read_text(), str(path))
    log = KafkaFindingsLog(plan.store, "fleet-report", clock)
    try:
        by_run = findings_by_run(log, clock)
    finally:
        log.close()
    for run, findings in by_run.items():
        if isinstance(findings, str):
            unread.append(f"topic, run {run}: {findings}")
            continue
        yield FleetRun(
            run=run,
            plan=plan.name,
            place="topic",
            verdict="regressed" if any(map(_counts, findings)) else _NO_REPORT,
            incidents=tuple(
                {
                    "what": wording.what_text(one),
                    "cause": one.cause,
                    "suspect": one.suspect,
                    "state": wording.state_word(one.state),
                }
                for one in findings
                if _counts(one)
            ),
        )


def _counts(one: Finding) -> bool:
    return one.is_about_cluster and one.state != "warning"


# --- What they say together.


def _trends(runs: Sequence[FleetRun]) -> Iterable[Trend]:
    for plan in dict.fromkeys(one.plan for one in runs):
        timed = [one for one in runs if one.plan == plan and one.start]
        for figure in FIGURES:
            values = {
                one.run: one.figures[figure] for one in timed if one.figures.get(figure, 0.0) > 0.0
            }
            if len(values) >= comparison.LEAST_DRIFT_VALUES:
                yield trend(plan, figure, values)


def trend(plan: str, figure: str, values: Mapping[str, float]) -> Trend:
    """Return how positive values went, by run in the order of time."""
    runs, numbers = tuple(values), tuple(values.values())
    drift = comparison.drift(numbers)
    least = math.log1p(Settings().margin)
    changes = comparison.level_changes([math.log(value) for value in numbers], least)
    return Trend(
        plan=plan,
        figure=figure,
        values=numbers,
        ratio=drift.ratio,
        chance=drift.chance,
        is_clear=drift.is_clear,
        changes=tuple(
            {"run": runs[place], "before": math.exp(before), "after": math.exp(after)}
            for place, before, after in changes
        ),
        runs=runs,
    )


def _causes(runs: Sequence[FleetRun]) -> list[dict[str, Any]]:
    every = [(one.run, incident) for one in runs for incident in one.incidents]
    counted = Counter(incident["cause"] for _, incident in every)
    return [
        {
            "cause": cause,
            "incidents": count,
            "runs": len({run for run, incident in every if incident["cause"] == cause}),
            "suspects": [
                f"{suspect} ({times})"
                for suspect, times in Counter(
                    incident["suspect"]
                    for _, incident in every
                    if incident["cause"] == cause and incident["suspect"]
                ).most_common(3)
            ],
        }
        for cause, count in counted.most_common()
    ]


# --- How it is shown.


def lines(fleet: Fleet) -> Iterable[str]:
    """Give the overview as text: verdicts, causes, trends, then a line a run."""
    verdicts = ", ".join(f"{count} {name}" for name, count in fleet.verdicts.items())
    yield f"{wording.counted(len(fleet.runs), 'run')}: {verdicts or 'none'}"
    for cause in fleet.causes:
        where = f"; mostly {', '.join(cause['suspects'])}" if cause["suspects"] else ""
        incidents, runs = (
            wording.counted(cause[name], name[:-1]) for name in ("incidents", "runs")
        )
        yield f"  {wording.cause_text(cause['cause'])}: {incidents} in {runs}{where}"
    for one in fleet.trends:
        yield f"  {trend_text(one)}  {wording.sparkline(one.values, _WIDTH)}"
    for run in fleet.runs:
        shown = ", ".join(f"{name} {value:.6g}" for name, value in run.figures.items())
        incidents = wording.counted(len(run.incidents), "incident")
        yield f"{run.start or '-':20}  {run.plan}  {run.run}  {run.verdict}  {incidents}  {shown}".rstrip()
    for reason in fleet.unread:
        yield f"not read: {reason}"


def trend_text(one: Trend) -> str:
    """Return a trend as a sentence."""
    head = f"{one.plan}, {one.figure}, {wording.counted(len(one.values), 'run')}"
    drift = drift_text(comparison.Drift(one.ratio, one.chance))
    unit = _unit(one.figure)
    steps = [
        f"from {change['run']} on {wording.amount(change['after'], unit)} instead of "
        f"{wording.amount(change['before'], unit)}"
        for change in one.changes
    ]
    return f"{head}: {'; '.join([drift, *steps])}"


def _unit(figure: str) -> str:
    return "seconds" if figure.endswith("_seconds") else ""


def page(fleet: Fleet) -> str:
    """Return the overview as one self-contained page."""
    verdicts = [f"{count} {name}" for name, count in fleet.verdicts.items()]
    causes = [
        (
            wording.cause_text(one["cause"]),
            one["incidents"],
            one["runs"],
            ", ".join(one["suspects"]),
        )
        for one in fleet.causes
    ]
    parts: list[object] = [tag("p", ", ".join(verdicts) or "none", class_="verdict")]
    parts.append(tag("h2", "Causes"))
    parts.append(
        table(("cause", "incidents", "runs", "suspects"), causes)
        if causes
        else tag("p", "No incident.")
    )
    parts.append(tag("h2", "Trends"))
    for one in fleet.trends:
        values = dict(zip(one.runs, one.values, strict=True))
        changed = [str(change["run"]) for change in one.changes]
        parts.append(tag("p", trend_text(one)))
        parts.append(course_svg(one.figure, _unit(one.figure), values, changed))
    if not fleet.trends:
        parts.append(tag("p", "Too few runs of one plan."))
    parts += [tag("h2", "Runs"), _runs_table(fleet)]
    if fleet.unread:
        parts.append(tag("h2", "Not read"))
        parts.append(tag("ul", Markup("").join(tag("li", one) for one in fleet.unread)))
    return page_html(wording.counted(len(fleet.runs), "run"), parts)


def _runs_table(fleet: Fleet) -> Markup:
    rows = []
    for one in fleet.runs:
        incidents = [
            f"{incident['what']}: {wording.cause_text(incident['cause'])}"
            + (f" ({incident['suspect']})" if incident["suspect"] else "")
            for incident in one.incidents
        ]
        figures = [
            wording.amount(one.figures[name], _unit(name)) if name in one.figures else "-"
            for name in FIGURES
        ]
        rows.append(
            (one.start or "-", one.plan, one.run, one.verdict, "; ".join(incidents), *figures)
        )
    return table(("start", "plan", "run", "verdict", "incidents", *FIGURES), rows)
