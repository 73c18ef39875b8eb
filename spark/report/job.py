"""Makes a run's report: reads its journals with Spark, analyses them, writes index.html and summary.json."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import logging
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader
from markupsafe import Markup

from detectors.minimum_effect import Config as MinimumEffect
from soak.core import json_text, wording
from soak.core.clock import SystemClock
from soak.core.errors import FindingsBusyError, FindingsError, RunFolderError
from soak.core.model import Change, Finding
from soak.core.plan import plugins
from soak.core.ports import Clock, Each, Note, each_here, no_note
from soak.core.retry import Backoff
from soak.core.units import SECOND_NS
from soak.runtime.incident_size import IncidentSize, incident_size
from soak.service.files import read_json, read_small_text, write_atomically
from soak.store.findings.topic import findings_place
from soak.store.journal.history import History
from soak.store.run_folder import (
    Run,
    RunFolder,
    counting_incidents,
    read_acknowledged,
    read_plan,
    reporting_damage,
)
from spark.batch.coverage import Gap, coverage
from spark.batch.offline_analysis import improvements_of, judge_incidents
from spark.batch.outcomes import drives, forecast_of, judge, objective_json, retention
from spark.batch.peaks import peaks_outside
from spark.batch.tasks import in_tasks
from spark.batch.timeline import Timeline, read_timeline
from spark.cluster.executors import check_executors, shared_file
from spark.cluster.master import Cluster
from spark.cluster.session import build_context
from spark.report.interactive import first_kind, page_data
from spark.report.page import Page, broker_names, headline, in_microseconds, shown_name
from spark.report.summary import EXIT_CODE, overview, summary, verdict
from spark.streaming.attribution import step_config

ASSETS = Path(__file__).parent / "assets"
QUEUE_TRIES = 5
_QUEUE_BACKOFF = Backoff()  # 15 s in all
NEWS_NS = 86_400 * SECOND_NS
"""The end of a run that lies further back is not news."""

_OF_END = ("verdict", "headline", "objectives", "audit", "coverage", "soak")
_OF_FINDING = ("is_about_cluster", "found", "state", "at", "cause", "suspect", "what")
MODULES = ("ruptures", "spark.report.job", "spark.report.sections.coverage")
"""Of the functions that tasks call."""
_LOG = logging.getLogger(__name__)


def run(run_dir: Path, cluster: Cluster | None = None, note: Note = no_note) -> int:
    """Write the report of a run, also of one cut short or still running; return the verdict's exit code.

    With a `cluster` its executors read the journals, which they see at the same path. `note` takes each phase
    when it begins.

    Raises:
        SoakError: this is no run folder, or it cannot be written.
    """
    folder = RunFolder(run_dir.resolve())  # where `current` leads now, whatever begins meanwhile
    # what a cluster did is asked later
    log = folder.logs / "spark-report.log" if cluster is not None else None
    note("starting Spark")
    with tempfile.TemporaryDirectory(prefix="soak-report-") as name:
        context = build_context(
            "soak-report", temporary=Path(name), log=log, cluster=cluster, modules=MODULES
        )
        try:
            if cluster is not None:
                with shared_file(folder.path) as shared:
                    check_executors(context, shared, SystemClock())
            each = in_tasks(context)
            timeline = read_timeline(each, folder, note)
            online, changes, unread = seen_online(folder, timeline.run.id)
            code = write(timeline, online, drill_of, changes, unread, each, note)
        finally:
            context.stop()
    queue_end(folder, timeline.run, SystemClock())
    return code


def queue_end(folder: RunFolder, run: Run, clock: Clock) -> None:
    """Queue the message about the end of a run, once, with what it says of the report.

    `run` is what the report was made of: one that was begun while the run went on knows a part of it.

    An interrupted run was ended by its user. A store that others use, or a cluster that does not answer, is
    tried again for some seconds.
    """
    plan, now_ns = read_plan(folder), clock.wall_ns()
    has_ended = run.state == "ended" and now_ns - folder.run_json.stat().st_mtime_ns < NEWS_NS
    if not (has_ended and plan.sinks):
        return
    summary = _end_summary(folder)
    findings = findings_place(folder, plan, run.id, clock)
    try:
        for failures in range(1, QUEUE_TRIES + 1):
            try:
                with findings.open() as store:
                    store.queue_end(run.id, summary, list(plan.sinks), now_ns)
            except (FindingsError, OSError) as error:
                _LOG.warning("notification_not_queued kind=ended error=%s", error)
                if plan.store is None and not isinstance(error, FindingsBusyError):
                    return  # a file that is damaged stays so
                if failures < QUEUE_TRIES:
                    clock.sleep_until(clock.mono_ns() + _QUEUE_BACKOFF.wait_ns(failures))
            else:
                return
    finally:
        findings.close()


def _end_summary(folder: RunFolder) -> str:
    """Return the part of `summary.json` that the message about the end needs."""
    summary = read_json(folder.summary)
    kept = {name: summary[name] for name in _OF_END if name in summary}
    findings = counting_incidents(summary, read_acknowledged(folder))
    kept["findings"] = [{name: one.get(name) for name in _OF_FINDING} for one in findings]
    with contextlib.suppress(
        OSError, ValueError
    ):  # of a report by a program of before there is none
        kept["overview"] = read_json(folder.overview)
    return json.dumps(kept)


def write(
    timeline: Timeline,
    online: Sequence[Finding],
    declared: Callable[[RunFolder], Mapping[str, Any] | None] | None = None,
    changes: Sequence[Change] = (),
    unread: Sequence[Gap] = (),
    each: Each = each_here,
    note: Note = no_note,
) -> int:
    """Judge a timeline and write its files; return the exit code. What takes long is done by `each`.

    What was `declared` to have been injected is asked for when all is judged, and goes on the page alone.

    Raises:
        RunFolderError: the folder cannot be written, or its notes on known changes are damaged.
    """
    note("looking for changes of latency")
    objectives = judge(timeline)
    found_offline = judge_incidents(timeline, online, changes, objectives.breaches, each)
    effect = step_config(timeline.plan).minimum_effect
    journal = timeline.folder.journal
    sizes = each(_size, [(journal, one.finding, timeline.end_k, effect) for one in found_offline])
    notes = read_acknowledged(timeline.folder)
    judged = [
        replace(one, size=size, acknowledged=notes.get(one.finding.key))
        for one, size in zip(found_offline, sizes, strict=True)
    ]
    covered = coverage(timeline, unread)
    durability, forecast = durability_of(timeline.folder), forecast_of(timeline.folder)
    found = verdict(timeline, judged, covered)
    standings = objectives.standings
    page = Page(
        timeline,
        judged,
        covered,
        found,
        None,
        durability,
        forecast,
        improvements_of(timeline, changes),
        standings=standings,
        each=each,
    )
    page = replace(page, peaks=peaks_outside(timeline, page.spans, effect))
    note("writing the page")
    body = summary(timeline, judged, covered, durability)
    body |= {
        "headline": headline(page),
        "objectives": [objective_json(timeline, one) for one in standings],
        "retention": retention(timeline, forecast),
        "drives": drives(timeline),
        "peaks": page.peaks.to_json(timeline),
    }
    text = json.dumps(body, indent=2, allow_nan=False) + "\n"  # from here on nothing is judged
    if declared is not None:
        page = replace(page, drill=declared(timeline.folder))
    try:
        write_atomically(timeline.folder.report, html(page))
        write_atomically(timeline.folder.overview, json.dumps(overview(timeline, judged)) + "\n")
        write_atomically(timeline.folder.summary, text)
    except OSError as error:
        raise RunFolderError(f"cannot write {error.filename}: {error.strerror}") from error
    return EXIT_CODE[page.verdict]


def _size(wanted: tuple[Path, Finding, int, MinimumEffect]) -> IncidentSize | None:
    journal, finding, end_k, effect = wanted
    return incident_size(History(journal), finding, end_k, effect)


LONGEST_NAME = 80
_MAIN, _VENDOR = ("data", "format", "charts", "incidents", "app"), ASSETS / "vendor"
_HAS_SCRIPTS = Markup('document.documentElement.className = "js"')
_PROGRAM = Markup('(() => {{\n"use strict";\n{}\n}})();')
_LABELS = {"verdict": "The verdict and the numbers of the soak"}


def html(page: Page) -> str:
    """Return the whole page, self-contained; everything that came from outside is escaped.

    Its program and style are allowed by their hashes, and nothing may be fetched.
    """
    names = plugins.names("spark.report.sections")
    modules = {name: plugins.load("spark.report.sections", name) for name in names}
    sections = [
        {
            "id": name,
            "title": module.TITLE,
            "label": _LABELS.get(name, name),
            "body": Markup(in_microseconds(module.render(page))),  # noqa: S704  # rendered markup
        }
        for name, module in sorted(modules.items(), key=lambda item: int(item[1].ORDER))
    ]
    data, blocks = page_data(page)
    uplot = _own("vendor/uPlot.iife.min.js")
    scripts = [_HAS_SCRIPTS, uplot, _PROGRAM.format(_own(*(f"{name}.js" for name in _MAIN)))]
    font = base64.b64encode((_VENDOR / "inter-latin.woff2").read_bytes()).decode()
    style = _own("vendor/uPlot.min.css", "page.css").replace(
        "INTER", f"data:font/woff2;base64,{font}"
    )
    environment = Environment(
        loader=FileSystemLoader(ASSETS), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    timeline = page.timeline
    axes = [("utc", "UTC"), ("local", "Local time"), ("elapsed", "Run time")]
    return environment.get_template("page.html").render(
        name=shown_name(timeline.plan.name, LONGEST_NAME),
        began=wording.iso(timeline.run.start_wall_ns),
        facts=_page_facts(page),
        footer=f"soakd {timeline.run.versions.get('soakd', '')}, run {timeline.run.id}.",
        verdict=page.verdict,
        badge=page.verdict.capitalize(),
        policy=_policy(scripts, style),
        style=style,
        scripts=scripts,
        sections=sections,
        kinds=[(name, name) for name in data["main"]],
        kind=first_kind(page, data["main"]),
        axes=[*axes, *([("written", "Bytes sent")] if data["written"] else [])],
        data=_script_json(data),
        blocks=blocks,
    )


def _page_facts(page: Page) -> list[str]:
    timeline = page.timeline
    state = "still running" if timeline.is_running else timeline.run.state
    return [
        broker_names(timeline),
        f"began {wording.iso(timeline.run.start_wall_ns)}",
        f"{wording.span(timeline.end_k)} with all phases, {state}",
    ]


def _own(*paths: str) -> Markup:
    """Return files of our own as the text of one script or style."""
    text = "\n".join((ASSETS / path).read_text(encoding="utf-8") for path in paths)
    return Markup(text)  # noqa: S704  # our own files


def _script_json(value: object) -> Markup:
    """Return JSON that cannot end its script element, nor start a comment in it."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)  # ASCII, no line separators
    for sign in "<>&":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return Markup(text)  # noqa: S704  # without a sign of markup


def _policy(scripts: Sequence[str], style: str) -> str:
    """Return the Content-Security-Policy: nothing from outside, and of programs only our own by hash."""
    *ours, looks = (
        f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
        for text in (*scripts, style)
    )
    return (
        f"default-src 'none'; script-src {' '.join(ours)}; style-src {looks}; font-src data:; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


def drill_of(folder: RunFolder) -> Mapping[str, Any] | None:
    """Return what a drill declared to have injected: for the reader, never for detection."""
    if not folder.faults.exists():
        return None
    with reporting_damage(folder.faults):
        return dict(json_text.loads(read_small_text(folder.faults).partition("\n")[0]))


def durability_of(folder: RunFolder) -> Mapping[str, Any]:
    """Return what the target guaranteed when the load began; a level of null where that was not read.

    Raises:
        RunFolderError: the file is damaged.
    """
    if not folder.durability.exists():
        return {"level": None, "notes": ["not looked at"]}
    with reporting_damage(folder.durability):
        return dict(read_json(folder.durability))


def seen_online(
    folder: RunFolder, run_id: str
) -> tuple[Sequence[Finding], Sequence[Change], Sequence[Gap]]:
    """Return findings and changes of the detector; a store that cannot be read is a gap."""
    findings = findings_place(folder, read_plan(folder), run_id, SystemClock())
    if not findings.exists():
        return (), (), ()
    try:
        with findings.open() as store:
            return store.findings(run_id), store.changes(run_id), ()
    except FindingsError as error:
        return (), (), (Gap("detector", 0, 0, str(error)),)
    finally:
        findings.close()
