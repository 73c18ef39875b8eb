"""Many runs side by side: how each ended, what caused incidents, and how latencies went from run to run.

Method:  per plan and figure the median of the ratios of all pairs of runs, in order of their start (Theil
         1950, Sen 1968 on the logarithm), and Kendall's tau as a test that there is an order at all; a trend
         is named when chance would show it in one of twenty, and it is a tenth from the first run to the
         last.
Assumes: runs of one plan under one name differ by their time alone.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
from scipy.stats import kendalltau, theilslopes

from soak.core import json_text, wording
from soak.core.errors import RunFolderError
from soak.core.model import Finding
from soak.core.plan.text import load_fleet
from soak.core.ports import Clock
from soak.store.findings.topic import findings_by_run
from soak.store.findings.topic_log import KafkaFindingsLog
from soak.store.run_folder import RunFolder

FIGURES = {
    "publish_p99_seconds": ("latency_seconds", "publish", "p99"),
    "end_to_end_p99_seconds": ("latency_seconds", "end_to_end", "p99"),
    "end_to_end_p99.9_seconds": ("latency_seconds", "end_to_end", "p99.9"),
    "sent_messages_per_second": ("sent_per_second",),
    "availability_ratio": ("availability",),
}
"""What is followed from run to run, and where the section `soak` of a summary has it."""
LEAST_RUNS = 5
"""Of four, chance puts one of twelve in order."""
_MOST_CHANCE = 0.05
_LEAST_CHANGE = 0.1
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
        several = [given] if _is_run(given) else sorted(filter(_is_run, given.iterdir()))
        if not several:
            unread.append(f"{given}: no run in it")
        for path in several:
            folder = RunFolder(path)
            try:
                yield _of_summary(json_text.loads(folder.summary.read_text()), path)
            except FileNotFoundError:
                unread.append(f"{path}: no report yet; make it with `soak report {path}`")
            except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
                unread.append(f"{folder.summary}: {error!r}")


def _is_run(path: Path) -> bool:
    return (
        not path.is_symlink() and RunFolder(path).run_json.is_file()
    )  # `current` leads to one of the others


def _of_summary(summary: Mapping[str, Any], path: Path) -> FleetRun:
    known = {name: _at(summary.get("soak", {}), keys) for name, keys in FIGURES.items()}
    return FleetRun(
        run=str(summary["run"]),
        plan=str(summary["name"]),
        place=str(path),
        start=str(summary["start"]),
        verdict=str(summary["verdict"]),
        figures={name: value for name, value in known.items() if value is not None},
        incidents=tuple(
            {name: str(one[name]) for name in ("what", "cause", "suspect", "state")}
            for one in summary["findings"]
            if one["is_about_cluster"]
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
            values = [one.figures[figure] for one in timed if one.figures.get(figure, 0.0) > 0.0]
            if len(values) >= LEAST_RUNS:
                yield trend(plan, figure, values)


def trend(plan: str, figure: str, values: Sequence[float]) -> Trend:
    """Return how positive values went, which are in the order of time."""
    places = np.arange(len(values))
    slope = float(theilslopes(np.log(values), places).slope)
    chance = float(kendalltau(places, values).pvalue)  # NaN where all values are equal
    ratio = float(np.exp(slope * (len(values) - 1)))
    is_clear = (
        chance < _MOST_CHANCE and not 1.0 / (1.0 + _LEAST_CHANGE) < ratio < 1.0 + _LEAST_CHANGE
    )
    return Trend(
        plan=plan,
        figure=figure,
        values=tuple(values),
        ratio=ratio,
        chance=1.0 if np.isnan(chance) else chance,
        is_clear=is_clear,
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
    if not one.is_clear:
        return f"{head}: no clear trend"
    return f"{head}: x{one.ratio:.2f} from the first to the last (by chance in {one.chance:.2g})"


_PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Fleet</title>
<meta name="viewport" content="width=device-width">
<style>
body { font: 15px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 70em; padding: 0 1em; color: #222 }
table { border-collapse: collapse; margin: 1em 0; width: 100% } th, td { text-align: left; padding: .3em .7em;
border-bottom: 1px solid #ddd } .regressed { color: #b00 } .clean { color: #070 }
svg { vertical-align: middle }
</style>
<h1>{{ fleet.runs|length }} runs</h1>
<p>{% for name, count in fleet.verdicts.items() %}
<b class="{{ name }}">{{ count }} {{ name }}</b> {% endfor %}</p>
<h2>Causes</h2>
<table><tr><th>cause<th>incidents<th>runs<th>suspects</tr>
{% for one in fleet.causes %}<tr><td>{{ cause_text(one.cause) }}<td>{{ one.incidents }}<td>{{ one.runs }}
<td>{{ one.suspects|join(", ") }}</tr>{% else %}<tr><td colspan="4">no incident</tr>{% endfor %}</table>
<h2>Trends</h2>
<table>{% for one in fleet.trends %}<tr><td>{{ trend_text(one) }}<td>
<svg width="160" height="32" role="img" aria-label="{{ one.figure }} by run">
<polyline fill="none" stroke="#06c" stroke-width="1.5" points="{{ points(one.values) }}"/></svg></tr>
{% else %}<tr><td>too few runs of one plan</tr>{% endfor %}</table>
<h2>Runs</h2>
<table><tr><th>start<th>plan<th>run<th>verdict<th>incidents
{% for name in figures %}<th>{{ name }}{% endfor %}</tr>
{% for one in fleet.runs %}<tr><td>{{ one.start or "-" }}<td>{{ one.plan }}<td>{{ one.run }}
<td class="{{ one.verdict }}">{{ one.verdict }}
<td>{% for incident in one.incidents %}{{ incident.what }}: {{ cause_text(incident.cause) }}
{%- if incident.suspect %} ({{ incident.suspect }}){% endif %}<br>{% endfor %}
{% for name in figures %}
<td>{{ "%.6g"|format(one.figures[name]) if name in one.figures else "-" }}{% endfor %}</tr>
{% endfor %}</table>
{% if fleet.unread %}<h2>Not read</h2>
<ul>{% for one in fleet.unread %}<li>{{ one }}</li>{% endfor %}</ul>{% endif %}
</html>
"""


def page(fleet: Fleet) -> str:
    """Return the overview as one self-contained page."""
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    return environment.from_string(_PAGE).render(
        fleet=fleet,
        figures=list(FIGURES),
        cause_text=wording.cause_text,
        trend_text=trend_text,
        points=_points,
    )


def _points(values: Sequence[float]) -> str:
    y = np.log(values)
    scaled = (y - y.min()) / (float(np.ptp(y)) or 1.0)
    x = np.linspace(2.0, 158.0, len(values))
    return " ".join(
        f"{at:.1f},{30.0 - 28.0 * high:.1f}" for at, high in zip(x, scaled, strict=True)
    )
