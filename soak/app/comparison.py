"""What `soak compare`, `soak list` and `soak acknowledge` print, and the exit code of a comparison."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from xml.etree import ElementTree as ET

from detectors.comparison import Verdict
from soak.app.live.folder import as_it_is, list_run
from soak.core import wording
from soak.core.clock import SystemClock
from soak.core.errors import PlanError, RunFolderError, SoakError
from soak.service.files import write_atomically
from soak.store.run_folder import RunFolder
from spark.batch.comparison.comparison import (
    MOST_DETECTABLE,
    Comparison,
    Quantity,
    Settings,
    compare,
    read_side,
    runs_in,
)
from spark.batch.comparison.run import acknowledge, read_compared, started
from spark.batch.comparison.trend import Trend, trend
from spark.report.comparison import comparison_html, drift_text, trend_html

EXIT_CODE: Mapping[Verdict, int] = {"same": 0, "better": 0, "worse": 3, "cannot tell": 4}
_LEAST_SIDES = 2
_MAX_CELL = 200  # characters of a cell; a longer one would move the others out of sight


def compare_runs(
    paths: Sequence[Path], settings: Settings, *, is_cached: bool = True
) -> list[Comparison]:
    """Return the comparison of each further side with the first; see `read_compared`.

    Raises:
        PlanError: fewer than two sides are named.
        RunFolderError: a side is no run, benchmark result or folder of runs, or is damaged; or a run cannot
            be aligned.
    """
    if len(paths) < _LEAST_SIDES:
        raise PlanError("name at least two runs to compare, or a folder of runs with --trend")
    before, *others = [read_side(path, is_cached=is_cached) for path in paths]
    return [compare(before, after, settings) for after in others]


def compare_trend(
    folder: Path, settings: Settings, *, is_cached: bool = True
) -> tuple[Trend, list[str]]:
    """Return the trend over the runs of a folder, and a line for each run that cannot be read.

    Raises:
        RunFolderError: the folder has no run that can be read.
    """
    runs, skipped = [], []
    for path in runs_in(folder):
        try:
            runs.append(read_compared(path, is_cached=is_cached))
        except SoakError as error:
            skipped.append(f"left out: {error}")
    if not runs:
        reasons = "".join(f"\n  {line}" for line in skipped)
        raise RunFolderError(f"{folder} has no run that can be compared{reasons}")
    return trend(runs, settings), skipped


def worst(comparisons: Sequence[Comparison]) -> Verdict:
    """Return the verdict that the exit code is of."""
    verdicts = [one.verdict for one in comparisons]
    return next((one for one in ("worse", "cannot tell", "better") if one in verdicts), "same")


# --- Text.


def comparison_lines(found: Comparison) -> Iterator[str]:
    """Give a comparison as lines for the terminal: warnings first, then the table."""
    sides = (f"{side.label} ({_runs(side.runs)})" for side in (found.before, found.after))
    yield wording.printable(" -> ".join(sides))
    yield from (f"WARNING: {wording.printable(line)}" for line in found.warnings)
    if found.settings.align != "soak":
        yield f"Compared: {found.aligned_text}"
    yield f"Verdict: {found.verdict} (margin {100 * found.settings.margin:g} %)"
    yield from _table(
        ("", "before", "after", "", "verdict", "found from"),
        [
            (one.name, *_values(one), change_text(one), one.verdict, detectable_text(one))
            for one in found.quantities
        ],
    )
    if not found.quantities:
        yield "  no quantity was measured on both sides"
    yield from (f"  {wording.printable(one.name)}: {one.why}" for one in found.quantities)
    yield from _table(
        ("", "before", "after"),
        [
            (name, *(cost_text(value, unit) for value in both))
            for name, *both, unit in _costs(found)
        ],
    )
    for title, several in (("before", found.only_before), ("after", found.only_after)):
        for one in several:
            what = wording.printable(f"{one.at} {one.what}, cause {one.cause} [{one.key}]")
            yield f"  only {title}: {what}"
    yield from (f"  note: {wording.printable(line)}" for line in found.notes)


def _costs(found: Comparison) -> Iterator[tuple[str, float | None, float | None, str]]:
    yield from (one for one in found.costs if one[1] is not None or one[2] is not None)


def _runs(runs: Sequence[object]) -> str:
    return wording.counted(len(runs), "run")


def _values(one: Quantity) -> tuple[str, str]:
    return wording.amount(one.before, one.unit), wording.amount(one.after, one.unit)


def change_text(one: Quantity) -> str:
    """Return by how much a quantity changed: percent of a latency, points of a share."""
    if one.unit == "ratio":
        return f"{100.0 * (one.after - one.before):+.2f} points"
    if not (one.before > 0 and math.isfinite(one.after)):
        return "-"
    return f"{100.0 * (one.after / one.before - 1.0):+.1f} %"


def detectable_text(one: Quantity) -> str:
    """Return the least change that is found four times in five."""
    if one.detectable is None or one.detectable > MOST_DETECTABLE:
        return "-"
    return f"+{100.0 * (one.detectable - 1.0):.1f} %"


def cost_text(value: float | None, unit: str) -> str:
    """Return a cost for display."""
    if value is None:
        return "-"
    return wording.amount(value, unit)


def trend_lines(found: Trend, skipped: Sequence[str]) -> Iterator[str]:
    """Give a trend as lines for the terminal: the changes first."""
    yield f"{_runs(found.runs)}; verdict: {found.verdict}"
    if len(found.runs) < found.least_runs:
        yield f"  fewer than {found.least_runs} runs: a change of level cannot be distinguished from noise"
    yield from (f"WARNING: {line}" for line in found.warnings)
    for one in found.changes:
        unit = found.unit(one.name)
        levels = " -> ".join(wording.amount(value, unit) for value in (one.before, one.after))
        since = wording.printable(f"{one.run.path} ({started(one.run)})")
        yield f"  {wording.printable(one.name)} is {one.verdict} from {since} on: {levels}"
    for name, drift in found.drifts.items():
        if drift.is_clear:
            yield f"  {name}: {drift_text(drift)}"
    rows = []
    for at, run in enumerate(found.runs):
        values = [
            wording.amount(several[at], found.unit(name)) for name, several in found.values.items()
        ]
        rows.append((run.path.name, started(run), run.verdict, str(len(run.counting)), *values))
    yield from _table(("run", "start, UTC", "verdict", "incidents", *found.values), rows)
    yield from (f"  {wording.printable(line)}" for line in skipped)


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    if not rows:
        return
    printable = [
        [wording.shortened(wording.printable(cell), _MAX_CELL) for cell in row]
        for row in (headings, *rows)
    ]
    widths = [max(len(row[at]) for row in printable) for at in range(len(headings))]
    for row in printable:
        cells = (
            cell.ljust(width) if at == 0 else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        yield "  " + "  ".join(cells).rstrip()


# --- Files for pipelines.


def write_json(path: Path, body: object) -> None:
    """Write a JSON file.

    Raises:
        RunFolderError: it cannot be written.
    """
    _write(path, json.dumps(body, indent=2, allow_nan=False) + "\n")


def write_junit(path: Path, comparisons: Sequence[Comparison]) -> None:
    """Write a JUnit file: a case a quantity; "worse" is a failure, "cannot tell" a skipped case.

    Raises:
        RunFolderError: it cannot be written.
    """
    root = ET.Element("testsuites", name="soak compare")
    for found in comparisons:
        suite = ET.SubElement(root, "testsuite", name=wording.printable(found.after.label))
        verdicts = [one.verdict for one in found.quantities]
        suite.set("tests", str(max(1, len(verdicts))))
        suite.set("failures", str(verdicts.count("worse")))
        suite.set("errors", "0")
        suite.set("skipped", str(verdicts.count("cannot tell") if verdicts else 1))
        if not verdicts:
            _skip(suite, "soak.compare", "comparison", "no quantity was measured on both sides")
        for one in found.quantities:
            name = wording.printable(one.name)
            case = ET.SubElement(suite, "testcase", classname="soak.compare", name=name)
            values = " -> ".join(_values(one))
            text = f"{values} ({change_text(one)}): {one.why}"
            if one.verdict == "worse":
                ET.SubElement(case, "failure", message=f"{name} is worse: {values}").text = text
            elif one.verdict == "cannot tell":
                ET.SubElement(case, "skipped", message=text)
        if found.warnings:
            lines = "\n".join(wording.printable(line) for line in found.warnings)
            ET.SubElement(suite, "system-out").text = lines
    text = ET.tostring(root, encoding="unicode", xml_declaration=True)
    _write(path, text + "\n")


def _skip(suite: ET.Element, classname: str, name: str, why: str) -> None:
    case = ET.SubElement(suite, "testcase", classname=classname, name=name)
    ET.SubElement(case, "skipped", message=why)


def write_trend_junit(path: Path, found: Trend) -> None:
    """Write a JUnit file of a trend: a case a quantity, which fails where its last change is for the worse.

    Raises:
        RunFolderError: it cannot be written.
    """
    root = ET.Element("testsuites", name="soak compare --trend")
    suite = ET.SubElement(root, "testsuite", name="trend", tests=str(len(found.values)), errors="0")
    last = {one.name: one for one in found.changes}
    worse = [one for one in last.values() if one.verdict == "worse"]
    suite.set("failures", str(len(worse)))
    if found.verdict == "cannot tell":
        suite.set("tests", str(len(found.values) + 1))
        suite.set("skipped", "1")
        why = f"fewer than {found.least_runs} runs"
        _skip(suite, "soak.compare.trend", "changes of level", why)
    for name in found.values:
        case = ET.SubElement(
            suite, "testcase", classname="soak.compare.trend", name=wording.printable(name)
        )
        if name in last and last[name].verdict == "worse":
            message = f"worse from {wording.printable(str(last[name].run.path))} on"
            ET.SubElement(case, "failure", message=message)
    _write(path, ET.tostring(root, encoding="unicode", xml_declaration=True) + "\n")


def write_page(path: Path, found: Sequence[Comparison] | Trend) -> None:
    """Write the HTML page of comparisons or of a trend.

    Raises:
        RunFolderError: it cannot be written.
    """
    _write(path, trend_html(found) if isinstance(found, Trend) else comparison_html(found))


def _write(path: Path, text: str) -> None:
    try:
        write_atomically(path, text)
    except OSError as error:
        raise RunFolderError(f"cannot write {path}: {error.strerror}") from error


# --- The other two commands.


def list_lines(folder: Path) -> Iterator[str]:
    """Give a line a run of a folder, oldest first: state, verdict, p99, incidents.

    Raises:
        RunFolderError: there is no such folder.
    """
    now_ns = SystemClock().wall_ns()
    rows = [
        (one.name, one.plan, one.start, one.state, one.verdict, one.p99, one.incidents)
        for one in (as_it_is(list_run(path), RunFolder(path), now_ns) for path in runs_in(folder))
    ]
    if not rows:
        yield f"{folder} has no runs"
        return
    yield from _table(("run", "name", "start, UTC", "state", "verdict", "p99", "incidents"), rows)


def acknowledge_line(run: Path, incident: str, note: str) -> str:
    """Note an incident as known, and return the line that says so.

    Raises:
        RunFolderError: the run has no such incident, or its folder cannot be written.
    """
    found = acknowledge(run, incident, note)
    key, what, why = map(wording.printable, (found.key, found.what, found.note or ""))
    return (
        f"{key} is acknowledged: {what}. It counts neither in comparisons nor in trends, nor in the report "
        f"once `soak report {shlex.quote(str(run))}` makes it again; its note: {why}"
    )
