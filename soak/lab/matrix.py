"""What many runs of drills came to: their state file, what is left to run, and the tables of the page."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from soak.core.errors import LabError
from soak.lab import drill_result
from soak.lab.drill import NOTHING, UNKNOWN
from soak.lab.drill_result import Result
from soak.lab.matrix_limits import is_right, is_wrong, limits
from soak.lab.step_tables import middle, step_tables

_HEADINGS = (
    *("drill", "broker", "fault", "expected", "runs", "passed", "detected", "named as"),
    *("others", "onset, s", "told, s", "gone, s", "step"),
)
_TIMES = ("onset", "told", "gone")
"""Subjects of the checks that have a limit of time."""

BEGIN, END = "<!-- matrix: written by `soak lab matrix` -->", "<!-- end of matrix -->"


def read(path: Path) -> list[Result]:
    """Return the runs of a state file, one a line; none where there is no file.

    A last line that a kill has cut is left out.

    Raises:
        LabError: a line is none of ours.
    """
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)
    except FileNotFoundError:
        return []
    found = []
    for number, line in enumerate(lines, 1):
        try:
            found.append(drill_result.parse(line))
        except ValueError as error:
            if not line.endswith("\n"):
                break
            raise LabError(f"{path}:{number}: no result of a drill") from error
    return found


def append(path: Path, result: Result) -> None:
    """Add a run to a state file, in the place of a last line that a kill has cut."""
    with path.open("ab+") as file:
        file.seek(0)
        whole, mark, rest = file.read().rpartition(b"\n")
        if rest:
            try:
                drill_result.parse(rest.decode(errors="replace"))
            except ValueError:
                file.truncate(len(whole + mark))
            else:
                file.write(b"\n")
        file.write(drill_result.line(result).encode())


def left(wanted: Mapping[str, int], done: Sequence[Result]) -> list[tuple[str, int]]:
    """Return drill and seed of the runs that are missing, seed by seed, so that each drill has some early.

    One that proved nothing is missing.
    """
    have = {(one.drill, one.seed) for one in done if one.is_judged}
    most = max(wanted.values(), default=0)
    every = [(name, seed) for seed in range(1, most + 1) for name in wanted if seed <= wanted[name]]
    return [one for one in every if one not in have]


def tables(results: Sequence[Result]) -> str:
    """Return the confusion matrix and the times as Markdown, and whether each limit holds."""
    judged = [one for one in results if one.is_judged]
    lines = [
        _sentence([one for one in judged if one.expected != NOTHING]),
        *_unproven(results),
        "",
        *(f"- {limit}" for limit in limits(results)),
        "",
        f"| {' | '.join(_HEADINGS)} |",
        f"|{'---|' * len(_HEADINGS)}",
    ]
    for name in sorted({one.drill for one in judged}):
        runs = [one for one in judged if one.drill == name]
        causes = Counter(one.cause for one in runs).most_common()
        lines.append(
            f"| {name} | {runs[0].broker or '-'} | {runs[0].fault} | {runs[0].expected} | {len(runs)} "
            f"| {sum(one.is_passed for one in runs)} "
            f"| {sum(one.is_detected for one in runs)} "
            f"| {', '.join(f'{cause} {count}' for cause, count in causes)} "
            f"| {sum(one.extra for one in runs)} "
            f"| {_span([one.onset_seconds for one in runs])} "
            f"| {_span([one.told_seconds for one in runs])} "
            f"| {_span([one.gone_seconds for one in runs])} "
            f"| {_middle_step(runs) or '-'} |"
        )
    return "\n".join([*lines, *_grids(judged)]) + "\n"


def with_tables(page: str, text: str) -> str:
    """Return a page with the text between its marks, which are added where they are missing."""
    if BEGIN not in page or END not in page:
        page = f"{page.rstrip()}\n\n{BEGIN}\n{END}\n"
    head, _, rest = page.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}\n{text}{END}{tail}"


def _grids(results: Sequence[Result]) -> list[str]:
    lines = []
    for table in step_tables(results):
        lines += ["", f"{table.name}:", "", f"| | {' | '.join(table.columns)} |"]
        lines.append(f"|---|{'---|' * len(table.columns)}")
        for row in table.rows:
            runs = [table.middle.get((row, column)) for column in table.columns]
            steps = [drill_result.step(one) if one else "-" for one in runs]
            lines.append(f"| {row} | {' | '.join(steps)} |")
    return lines


def _middle_step(runs: Sequence[Result]) -> str:
    found = middle(runs)
    return drill_result.step(found) if found else ""


def _sentence(faults: Sequence[Result]) -> str:
    named = [one for one in faults if one.is_detected]
    watched = [one for one in faults if one.false_alarms is not None]
    false = _share(watched, lambda one: bool(one.false_alarms))
    after = [one for one in faults if one.late_alarms is not None]
    late = _share(after, lambda one: bool(one.late_alarms))
    wrong = _share(faults, is_wrong)
    unknown = _share(named, lambda one: one.cause == UNKNOWN and not is_right(one))
    return (
        f"Detected: {_share(faults, lambda one: one.is_detected)}. "
        f"Cause right: {_share(named, is_right)}; wrong: {wrong}; "
        f"`unknown` instead: {unknown}. In time: "
        + "; ".join(f"{subject} {_in_time(faults, subject)}" for subject in _TIMES)
        + f". With a finding about the cluster before the fault: {false}; "
        f"with one of another cause that begins after the lifting: {late}. "
        f"Others about the cluster, wherever they begin: {sum(one.extra for one in faults)}."
    )


def _unproven(results: Sequence[Result]) -> list[str]:
    """Return a line about the runs that count for nothing; none where there are none."""
    names = Counter(one.drill for one in results if not one.is_judged)
    told = ", ".join(f"{name} {count}" for name, count in sorted(names.items()))
    return [f"Runs that failed or were not judged, and count for nothing: {told}."] if told else []


def _in_time(faults: Sequence[Result], subject: str) -> str:
    """Return how often something came in time, of the runs in which it came or was waited for."""
    asked = [
        one
        for one in faults
        if subject in one.missed or getattr(one, f"{subject}_seconds") is not None
    ]
    return _share(asked, lambda one: subject not in one.missed)


def _share(results: Sequence[Result], holds: Callable[[Result], bool]) -> str:
    count = sum(holds(one) for one in results)
    return f"{count} of {len(results)}"


def _span(values: Sequence[float | None]) -> str:
    there = sorted(value for value in values if value is not None)
    if not there:
        return "-"
    middle = statistics.median(there)
    shown, least, most = (round(value) for value in (middle, there[0], there[-1]))
    return f"{shown} ({least} to {most})"
