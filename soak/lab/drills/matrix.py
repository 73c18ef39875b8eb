"""A matrix of drills: its state file, the runs that remain, the limits it must keep, and its tables."""

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
from soak.lab.drills.drill import CLIENT, NOTHING, UNKNOWN
from soak.lab.drills.result import NO_FINDING, Result, format_result, parse_result, step_text

BEGIN, END = "<!-- matrix: written by `soak lab matrix` -->", "<!-- end of matrix -->"
_HEADINGS = (
    *("drill", "broker", "fault", "expected", "runs", "passed", "detected", "named as"),
    *("others", "onset, s", "notified, s", "resolved, s", "step"),
)
DETECTED_RATIO, RIGHT_RATIO, WRONG_RATIO = 0.95, 0.90, 0.05
IN_TIME_RATIOS = {"onset": 0.95, "notified": 0.95, "resolved": 0.90}
"""Limits by the subject of a check, as a share of the runs with the right cause."""

Condition = Callable[[Result], bool]


def read_results(path: Path) -> list[Result]:
    """Return the runs of a state file, one a line; none if there is no file.

    A last line that a kill has cut off is ignored.

    Raises:
        LabError: another line is not a result.
    """
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)
    except FileNotFoundError:
        return []
    found = []
    for number, line in enumerate(lines, 1):
        try:
            found.append(parse_result(line))
        except ValueError as error:
            if not line.endswith("\n"):
                break
            raise LabError(f"{path}:{number}: not a result of a drill") from error
    return found


def append_result(path: Path, result: Result) -> None:
    """Append a run to a state file, replacing a last line that a kill has cut off."""
    with path.open("ab+") as file:
        file.seek(0)
        whole, newline, last = file.read().rpartition(b"\n")
        if last:
            try:
                parse_result(last.decode(errors="replace"))
            except ValueError:
                file.truncate(len(whole + newline))
            else:
                file.write(b"\n")
        file.write(format_result(result).encode())


def remaining_runs(wanted: Mapping[str, int], done: Sequence[Result]) -> list[tuple[str, int]]:
    """Return drill and seed of the runs that are missing, seed by seed, so that each drill has some early.

    A run that proved nothing counts as missing.
    """
    have = {(one.drill, one.seed) for one in done if one.counts}
    seeds = range(1, max(wanted.values(), default=0) + 1)
    every = [(name, seed) for seed in seeds for name in wanted if seed <= wanted[name]]
    return [one for one in every if one not in have]


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit and the value it was compared with; `holds` is None if no run has a value."""

    text: str
    found: str
    holds: bool | None

    def __str__(self) -> str:
        outcome = {None: "no run", True: "holds", False: "DOES NOT HOLD"}[self.holds]
        return f"{self.text}: {self.found}, {outcome}"


def limits(results: Sequence[Result]) -> list[Limit]:
    """Return the limits that a good detector keeps; runs that prove nothing do not count."""
    counted = [one for one in results if one.counts]
    faults = [one for one in counted if one.expected != NOTHING]
    detected = [one for one in faults if one.is_detected]
    right = [one for one in detected if is_right(one)]
    with_cause = [one for one in detected if one.expected != UNKNOWN]
    with_alarms = [one for one in faults if one.false_alarms is not None]
    quiet = [one for one in counted if one.expected == NOTHING]
    return [
        _at_least("detected", DETECTED_RATIO, faults, lambda one: one.is_detected),
        _at_least("cause right, where it is known", RIGHT_RATIO, with_cause, is_right),
        _at_most("cause wrong", WRONG_RATIO, faults, is_wrong),
        *(
            _at_least(
                f"{subject} in time", ratio, _with_check(right, subject), partial(_is_met, subject)
            )
            for subject, ratio in IN_TIME_RATIOS.items()
        ),
        _at_most("an alarm before the fault", 0.0, with_alarms, lambda one: bool(one.false_alarms)),
        _at_least("passed where nothing may be found", 1.0, quiet, lambda one: one.is_passed),
        *map(_growth, step_tables(counted)),
    ]


def is_kept(results: Sequence[Result]) -> bool:
    """Return whether no limit is broken, and at least one has a value."""
    held = [one.holds for one in limits(results)]
    return False not in held and True in held


def is_right(one: Result) -> bool:
    return one.cause == one.expected


def is_wrong(one: Result) -> bool:
    """Return whether another cause is named; `unknown` is wrong only if the client is to blame."""
    harmless = {one.expected, NO_FINDING} | ({UNKNOWN} if one.expected != CLIENT else set())
    return one.cause not in harmless


def _with_check(runs: Sequence[Result], subject: str) -> list[Result]:
    """Return the runs that had something to come in time, whether or not it came."""
    return [
        one
        for one in runs
        if subject in one.missed or getattr(one, f"{subject}_seconds") is not None
    ]


def _is_met(subject: str, one: Result) -> bool:
    return subject not in one.missed


def _at_least(subject: str, ratio: float, runs: Sequence[Result], condition: Condition) -> Limit:
    count = sum(map(condition, runs))
    holds = count / len(runs) >= ratio if runs else None
    return Limit(f"{subject}, at least {ratio:.0%}", f"{count} of {len(runs)}", holds)


def _at_most(subject: str, ratio: float, runs: Sequence[Result], condition: Condition) -> Limit:
    count = sum(map(condition, runs))
    holds = count / len(runs) <= ratio if runs else None
    return Limit(f"{subject}, at most {ratio:.0%}", f"{count} of {len(runs)}", holds)


@dataclass(frozen=True, slots=True)
class StepTable:
    """How large the step of drills is that differ in two settings, and must grow with both.

    Rows and columns are in the order of their names; `median` has the run with the median step of each cell.
    """

    name: str
    rows: Sequence[str]
    columns: Sequence[str]
    median: Mapping[tuple[str, str], Result]

    @property
    def grows(self) -> bool | None:
        """Return whether each step is larger than those to its left and above it; None if one is missing."""
        if len(self.median) < len(self.rows) * len(self.columns):
            return None
        lines = [[(row, column) for column in self.columns] for row in self.rows]
        lines += [[(row, column) for row in self.rows] for column in self.columns]
        return all(
            step_size(self.median[less]) < step_size(self.median[more])
            for line in lines
            for less, more in pairwise(line)
        )


def step_tables(results: Sequence[Result]) -> list[StepTable]:
    """Return the tables that drills name a cell of; only runs with the right cause count."""
    return [
        _table(name, results) for name in sorted({one.cell.table for one in results if one.cell})
    ]


def step_size(one: Result) -> float:
    """Return by how much the level rose; only for a run that has both levels."""
    assert one.before is not None
    assert one.after is not None
    return one.after - one.before


def median_step(runs: Sequence[Result]) -> Result | None:
    """Return the run with the median step, the lower one of two; None if no run has a step."""
    stepped = [one for one in runs if one.before is not None and one.after is not None]
    return sorted(stepped, key=step_size)[(len(stepped) - 1) // 2] if stepped else None


def _table(name: str, results: Sequence[Result]) -> StepTable:
    cells: dict[tuple[str, str], list[Result]] = {}
    for one in results:
        if one.cell and one.cell.table == name:
            cells.setdefault((one.cell.row, one.cell.column), []).append(one)
    medians = {
        place: median_step([one for one in runs if is_right(one)]) for place, runs in cells.items()
    }
    return StepTable(
        name,
        sorted({row for row, _ in cells}),
        sorted({column for _, column in cells}),
        {place: one for place, one in medians.items() if one},
    )


def _growth(table: StepTable) -> Limit:
    return Limit(
        f"{table.name}, the step grows along each row and column",
        f"{len(table.median)} of {len(table.rows) * len(table.columns)} cells",
        table.grows,
    )


def tables(results: Sequence[Result], forms: Mapping[str, str]) -> str:
    """Return the limits, the confusion matrix and the times as Markdown.

    `forms` are the current fingerprints of the drills; see `drill.fingerprint`.
    """
    counted = [one for one in results if one.counts]
    outdated = [one for one in counted if one.form and one.form != forms.get(one.drill, one.form)]
    lines = [
        _summary([one for one in counted if one.expected != NOTHING]),
        *_list(
            "Runs that failed or were not read as a whole, and do not count",
            [one for one in results if not one.is_judged],
        ),
        *_list("Left out by hand", [one for one in results if one.left_out]),
        *_list("Made before the drill or its plan was changed", outdated),
        "",
        *(f"- {limit}" for limit in limits(results)),
        "",
        f"| {' | '.join(_HEADINGS)} |",
        f"|{'---|' * len(_HEADINGS)}",
    ]
    names = sorted({one.drill for one in counted})
    lines += [_drill_row([one for one in counted if one.drill == name]) for name in names]
    for table in step_tables(counted):
        lines += _step_table_lines(table)
    return "\n".join(lines) + "\n"


def with_tables(page: str, text: str) -> str:
    """Return a page with the text between its marks, which are added if they are missing."""
    if BEGIN not in page or END not in page:
        page = f"{page.rstrip()}\n\n{BEGIN}\n{END}\n"
    head, _, rest = page.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}\n{text}{END}{tail}"


def _drill_row(runs: Sequence[Result]) -> str:
    right = [one for one in runs if is_right(one)]
    causes = Counter(one.cause for one in runs).most_common()
    step = median_step(right)
    cells = (
        *(runs[0].drill, runs[0].broker or "-", runs[0].fault, runs[0].expected),
        len(runs),
        sum(one.is_passed for one in runs),
        sum(one.is_detected for one in runs),
        ", ".join(f"{cause} {count}" for cause, count in causes),
        sum(one.extra for one in runs),
        _range_text([one.onset_seconds for one in right]),
        _range_text([one.notified_seconds for one in right]),
        _range_text([one.resolved_seconds for one in right]),
        step_text(step) if step else "-",
    )
    return f"| {' | '.join(map(str, cells))} |"


def _step_table_lines(table: StepTable) -> list[str]:
    lines = ["", f"{table.name}:", "", f"| | {' | '.join(table.columns)} |"]
    lines.append(f"|---|{'---|' * len(table.columns)}")
    for row in table.rows:
        runs = [table.median.get((row, column)) for column in table.columns]
        steps = [f"{step_text(one)}, {_rise_text(one)}" if one else "-" for one in runs]
        lines.append(f"| {row} | {' | '.join(steps)} |")
    return lines


def _rise_text(one: Result) -> str:
    """Return by how much a level rose, which decides whether the steps of a table grow."""
    return f"+{wording.amount(step_size(one), 'seconds')}"


def _summary(faults: Sequence[Result]) -> str:
    detected = [one for one in faults if one.is_detected]
    with_alarms = [one for one in faults if one.late_alarms is not None]
    without_cause = [one for one in detected if one.expected == UNKNOWN]
    with_cause = [one for one in detected if one.expected != UNKNOWN]
    notified = [one for one in with_cause if one.notified_cause]
    return (
        f"Detected: {_share(faults, lambda one: one.is_detected)}. "
        f"Of these, cause right: {_share(with_cause, is_right)}, "
        f"`unknown` instead: {_share(with_cause, lambda one: one.cause == UNKNOWN)}; "
        f"`unknown` where no cause is known: {_share(without_cause, is_right)}. "
        f"Same cause in the first message as in the report: "
        f"{_share(notified, lambda one: one.notified_cause == one.cause)} (not recorded for the others). "
        f"Runs with a finding of another cause after the lifting: "
        f"{_share(with_alarms, lambda one: bool(one.late_alarms))}. "
        f"Other findings about the cluster at any time: {sum(one.extra for one in faults)}."
    )


def _list(subject: str, results: Sequence[Result]) -> list[str]:
    """Return a paragraph that counts runs by their drills; none without runs."""
    names = Counter(one.drill for one in results)
    text = ", ".join(f"{name} {count}" for name, count in sorted(names.items()))
    return ["", f"{subject}: {text}."] if text else []


def _share(results: Sequence[Result], condition: Condition) -> str:
    return f"{sum(map(condition, results))} of {len(results)}"


def _range_text(values: Sequence[float | None]) -> str:
    known = sorted(value for value in values if value is not None)
    if not known:
        return "-"
    middle, least, most = (
        round(value) for value in (statistics.median(known), known[0], known[-1])
    )
    return f"{middle} ({least} to {most})"
