"""What many runs of drills came to: their state file, what is left to run, and the tables of the page."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from soak.core import wording
from soak.core.errors import LabError
from soak.lab import drill_result
from soak.lab.drill import NOTHING, UNKNOWN
from soak.lab.drill_result import Result
from soak.lab.matrix_limits import is_right, limits
from soak.lab.step_tables import middle, size, step_tables

_HEADINGS = (
    *("drill", "broker", "fault", "expected", "runs", "passed", "detected", "named as"),
    *("others", "onset, s", "told, s", "gone, s", "step"),
)
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
    have = {(one.drill, one.seed) for one in done if one.counts}
    most = max(wanted.values(), default=0)
    every = [(name, seed) for seed in range(1, most + 1) for name in wanted if seed <= wanted[name]]
    return [one for one in every if one not in have]


def tables(results: Sequence[Result], forms: Mapping[str, str]) -> str:
    """Return the confusion matrix and the times as Markdown, and whether each limit holds.

    `forms` are those that the drills have by now, see `drill.form`.
    """
    counted = [one for one in results if one.counts]
    lines = [
        _sentence([one for one in counted if one.expected != NOTHING]),
        *_list(
            "Runs that failed or were not judged, and count for nothing",
            [one for one in results if not one.is_judged],
        ),
        *_list("Left out by hand", [one for one in results if one.left_out]),
        *_list("Of an earlier form of the drill or its plan", _outdated(counted, forms)),
        "",
        *(f"- {limit}" for limit in limits(results)),
        "",
        f"| {' | '.join(_HEADINGS)} |",
        f"|{'---|' * len(_HEADINGS)}",
    ]
    for name in sorted({one.drill for one in counted}):
        runs = [one for one in counted if one.drill == name]
        named = [one for one in runs if is_right(one)]
        causes = Counter(one.cause for one in runs).most_common()
        lines.append(
            f"| {name} | {runs[0].broker or '-'} | {runs[0].fault} | {runs[0].expected} | {len(runs)} "
            f"| {sum(one.is_passed for one in runs)} "
            f"| {sum(one.is_detected for one in runs)} "
            f"| {', '.join(f'{cause} {count}' for cause, count in causes)} "
            f"| {sum(one.extra for one in runs)} "
            f"| {_span([one.onset_seconds for one in named])} "
            f"| {_span([one.told_seconds for one in named])} "
            f"| {_span([one.gone_seconds for one in named])} "
            f"| {_middle_step(named) or '-'} |"
        )
    return "\n".join([*lines, *_grids(counted)]) + "\n"


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
            steps = [f"{drill_result.step(one)}, {_rise(one)}" if one else "-" for one in runs]
            lines.append(f"| {row} | {' | '.join(steps)} |")
    return lines


def _rise(one: Result) -> str:
    """Return by how much a level rose, which is what the steps of a table are compared by."""
    return f"+{wording.amount(size(one), 'seconds')}"


def _middle_step(runs: Sequence[Result]) -> str:
    found = middle(runs)
    return drill_result.step(found) if found else ""


def _sentence(faults: Sequence[Result]) -> str:
    named = [one for one in faults if one.is_detected]
    after = [one for one in faults if one.late_alarms is not None]
    late = _share(after, lambda one: bool(one.late_alarms))
    nameless = [one for one in named if one.expected == UNKNOWN]
    nameable = [one for one in named if one.expected != UNKNOWN]
    first = [one for one in nameable if one.told_cause]
    return (
        f"Detected: {_share(faults, lambda one: one.is_detected)}. "
        f"Of these cause right: {_share(nameable, is_right)}, "
        f"`unknown` instead: {_share(nameable, lambda one: one.cause == UNKNOWN)}; "
        f"of what has no name left `unknown`: {_share(nameless, is_right)}. "
        f"Named by the first message as by the last word: "
        f"{_share(first, lambda one: one.told_cause == one.cause)} (of the others nobody noted it). "
        f"With a finding of another cause that begins after the lifting: {late}. "
        f"Others about the cluster, wherever they begin: {sum(one.extra for one in faults)}."
    )


def _outdated(counted: Sequence[Result], forms: Mapping[str, str]) -> list[Result]:
    """Return the runs of drills that say something else by now, where it is known."""
    return [one for one in counted if one.form and one.form != forms.get(one.drill, one.form)]


def _list(subject: str, results: Sequence[Result]) -> list[str]:
    """Return a paragraph that counts runs by their drills; none where there are none."""
    names = Counter(one.drill for one in results)
    told = ", ".join(f"{name} {count}" for name, count in sorted(names.items()))
    return ["", f"{subject}: {told}."] if told else []


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
