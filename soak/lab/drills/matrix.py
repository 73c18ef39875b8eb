"""A matrix of drills: its state file, the runs that remain, the limits it must keep, and the tables of its page."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path

from soak.core import wording
from soak.core.errors import LabError
from soak.lab.drills import result as drill_result
from soak.lab.drills.drill import CLIENT, NOTHING, UNKNOWN
from soak.lab.drills.result import NONE, Result


@dataclass(frozen=True, slots=True)
class StepTable:
    """Rows and columns stand in the order of their names; `middle` is by cell the run of the middle step."""

    name: str
    rows: Sequence[str]
    columns: Sequence[str]
    middle: Mapping[tuple[str, str], Result]

    @property
    def grows(self) -> bool | None:
        """True when each step is larger than those to its left and above it; None where one is missing."""
        if len(self.middle) < len(self.rows) * len(self.columns):
            return None
        lines = [[(row, column) for column in self.columns] for row in self.rows]
        lines += [[(row, column) for row in self.rows] for column in self.columns]
        return all(
            size(self.middle[less]) < size(self.middle[more])
            for line in lines
            for less, more in pairwise(line)
        )


def step_tables(results: Sequence[Result]) -> list[StepTable]:
    """Return the tables that drills name a cell of; a run counts that found its fault and named it."""
    names = sorted({one.cell.table for one in results if one.cell})
    return [
        _table(name, [one for one in results if one.cell and one.cell.table == name])
        for name in names
    ]


def size(one: Result) -> float:
    """Return by how much the level rose; only of a run that has both levels."""
    assert one.before is not None
    assert one.after is not None
    return one.after - one.before


def middle(runs: Sequence[Result]) -> Result | None:
    """Return the run whose step is in the middle, by size, of two the smaller; None where none has one."""
    stepped = [one for one in runs if one.before is not None and one.after is not None]
    return sorted(stepped, key=size)[(len(stepped) - 1) // 2] if stepped else None


def _table(name: str, results: Sequence[Result]) -> StepTable:
    rows = sorted({one.cell.row for one in results if one.cell})
    columns = sorted({one.cell.column for one in results if one.cell})
    found = {
        (row, column): middle(
            [
                one
                for one in results
                if one.cell
                and (one.cell.row, one.cell.column) == (row, column)
                and one.cause == one.expected
            ]
        )
        for row in rows
        for column in columns
    }
    return StepTable(name, rows, columns, {place: one for place, one in found.items() if one})


# --- What a matrix of drills must come to, or the detector is not good enough: a gate, not a picture.

DETECTED_RATIO, RIGHT_RATIO, WRONG_RATIO = 0.95, 0.90, 0.05
IN_TIME_RATIOS = {"onset": 0.95, "told": 0.95, "gone": 0.90}
"""By the checks that have a limit of time: of the runs named right in which it came or had to."""


@dataclass(frozen=True, slots=True)
class Limit:
    """One of them, and what it was held against; `holds` is None where no run says anything of it."""

    text: str
    found: str
    holds: bool | None

    def __str__(self) -> str:
        says = {None: "no run", True: "holds", False: "DOES NOT HOLD"}[self.holds]
        return f"{self.text}: {self.found}, {says}"


def limits(results: Sequence[Result]) -> list[Limit]:
    """Return each limit; runs that prove nothing count for none of them."""
    counted = [one for one in results if one.counts]
    faults = [one for one in counted if one.expected != NOTHING]
    found = [one for one in faults if one.is_detected]
    named = [one for one in found if is_right(one)]
    with_name = [one for one in found if one.expected != UNKNOWN]
    watched = [one for one in faults if one.false_alarms is not None]
    none = [one for one in counted if one.expected == NOTHING]
    return [
        _at_least("detected", DETECTED_RATIO, faults, lambda one: one.is_detected),
        _at_least("cause right, of what has a name", RIGHT_RATIO, with_name, is_right),
        _at_most("cause wrong", WRONG_RATIO, faults, is_wrong),
        *(
            _at_least(
                f"{subject} in time", ratio, _asked(named, subject), partial(_is_met, subject)
            )
            for subject, ratio in IN_TIME_RATIOS.items()
        ),
        _at_most("an alarm before the fault", 0.0, watched, lambda one: bool(one.false_alarms)),
        _at_least(
            "as it should be where nothing may be found", 1.0, none, lambda one: one.is_passed
        ),
        *map(_growing, step_tables(counted)),
    ]


def is_kept(results: Sequence[Result]) -> bool:
    """Return whether no limit is broken, and at least one run says something."""
    held = [one.holds for one in limits(results)]
    return False not in held and True in held


def is_right(one: Result) -> bool:
    return one.cause == one.expected


def is_wrong(one: Result) -> bool:
    """True where something else is blamed; `unknown` holds the client's doing against the cluster."""
    harmless = {one.expected, NONE} if one.expected == CLIENT else {one.expected, UNKNOWN, NONE}
    return one.cause not in harmless


def _asked(runs: Sequence[Result], subject: str) -> list[Result]:
    """Return the runs in which something came that must come in time, or was waited for."""
    return [
        one
        for one in runs
        if subject in one.missed or getattr(one, f"{subject}_seconds") is not None
    ]


def _is_met(subject: str, one: Result) -> bool:
    return subject not in one.missed


def _growing(table: StepTable) -> Limit:
    text = f"{table.name}, the step grows along each row and column"
    return Limit(
        text, f"{len(table.middle)} of {len(table.rows) * len(table.columns)} cells", table.grows
    )


def _at_least(
    subject: str, ratio: float, runs: Sequence[Result], does: Callable[[Result], bool]
) -> Limit:
    count = sum(map(does, runs))
    holds = count / len(runs) >= ratio if runs else None
    return Limit(f"{subject}, at least {ratio:.0%}", f"{count} of {len(runs)}", holds)


def _at_most(
    subject: str, ratio: float, runs: Sequence[Result], does: Callable[[Result], bool]
) -> Limit:
    count = sum(map(does, runs))
    holds = count / len(runs) <= ratio if runs else None
    return Limit(f"{subject}, at most {ratio:.0%}", f"{count} of {len(runs)}", holds)


# --- What many runs of drills came to: their state file, what is left to run, and the tables of the page.

_HEADINGS = (
    *("drill", "broker", "fault", "expected", "runs", "passed", "detected", "named as"),
    *("others", "onset, s", "told, s", "gone, s", "step"),
)
BEGIN, END = "<!-- matrix: written by `soak lab matrix` -->", "<!-- end of matrix -->"


def read_results(path: Path) -> list[Result]:
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
            found.append(drill_result.parse_result(line))
        except ValueError as error:
            if not line.endswith("\n"):
                break
            raise LabError(f"{path}:{number}: no result of a drill") from error
    return found


def append_result(path: Path, result: Result) -> None:
    """Add a run to a state file, in the place of a last line that a kill has cut."""
    with path.open("ab+") as file:
        file.seek(0)
        whole, mark, rest = file.read().rpartition(b"\n")
        if rest:
            try:
                drill_result.parse_result(rest.decode(errors="replace"))
            except ValueError:
                file.truncate(len(whole + mark))
            else:
                file.write(b"\n")
        file.write(drill_result.format_result(result).encode())


def remaining_runs(wanted: Mapping[str, int], done: Sequence[Result]) -> list[tuple[str, int]]:
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
