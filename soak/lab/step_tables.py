"""Tables of how large a step is: of drills that differ in two things, both of which it must grow with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from soak.lab.drill_result import Result


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
