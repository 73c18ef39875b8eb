"""Series from a CSV file, compressed or not: a header, the time in the first column, then value columns.

The csv module reads it: pandas and pyarrow do not say in which line a wrong cell is.
"""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from soak.core import wording
from soak.core.errors import PlanError
from soak.core.plan.plugins import nearest
from soak.omb import result_file

_LATENCY = re.compile(r"latency|duration|(^|_)(seconds|ms|us|ns|s|rtt)$", re.IGNORECASE)
_UNIT = re.compile(r"(?:^|_)(seconds|ms|us|ns|s)$", re.IGNORECASE)
_UNITS_PER_SECOND = {"seconds": 1, "s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_WHOLE = re.compile(r"\d{1,30}")
_SEPARATORS = {";": "semicolons", "\t": "tabs"}
_MAX_SECONDS = 2.5e11  # since 1970, the year 9892: a later time is in another unit
_MIN_SPACING_SECONDS = 0.5e-9  # less rounds to zero nanoseconds
_UNIT_HINT = "end the name of the column with its unit: _ms, _us or _ns"
_SHOWN_CHARACTERS = 40  # of a wrong cell

Line = tuple[int, list[str]]
"""The line number in the file, and the cells."""


@dataclass(frozen=True, slots=True)
class CsvSeries:
    """One column: rows in the order of the file, values in its unit, NaN for an empty cell."""

    name: str
    seconds: NDArray[np.float64]
    values: NDArray[np.float64]

    @property
    def spacing_seconds(self) -> float:
        return float(np.median(np.diff(self.seconds))) if self.seconds.size > 1 else 1.0

    @property
    def is_latency(self) -> bool:
        """Return whether the column is named like a duration."""
        return _is_latency(self.name)

    @property
    def is_unit_named(self) -> bool:
        return _UNIT.search(self.name) is not None

    @property
    def unit_seconds(self) -> float:
        """Return the factor from the unit of a latency to seconds; 1 if its name ends in no unit."""
        return 1.0 / _units_per_second(self.name)


def read_series(path: Path, value: str | None) -> CsvSeries:
    """Return the column named `value`, by default the second.

    Raises:
        PlanError: with file, line and column; the file cannot be read, or a cell is wrong.
    """
    header, lines = _open(path)
    at = 1 if value is None else _column_index(path, header, value)
    (series,) = _read_columns(path, header, lines, [at])
    return series


def read_together(path: Path, names: Sequence[str]) -> list[CsvSeries]:
    """Return the columns of these names; by default the second, and if it is a latency every latency.

    Raises:
        PlanError: as in `read_series`.
    """
    header, lines = _open(path)
    places = dict.fromkeys(_column_index(path, header, name) for name in names)
    return _read_columns(path, header, lines, list(places) or _default_columns(header))


def _open(path: Path) -> tuple[list[str], Iterator[Line]]:
    """Return the header of a file and its lines that are not empty."""
    lines = _lines(path, result_file.read_text(path))
    _, cells = next(lines, (1, []))
    header = [cell.strip() for cell in cells]
    if len(header) < 2:  # noqa: PLR2004  # time and value
        found = [name for one, name in _SEPARATORS.items() if one in "".join(header)]
        hint = f"; this one has {' and '.join(found)} as separators, use commas" if found else ""
        raise PlanError(f"{path}:1: a header with a time column and a value column is needed{hint}")
    if _is_number(header[0]):
        raise PlanError(
            f"{path}:1: a header is needed: {header[0]!r} is a time, not the name of a column"
        )
    return header, ((line, row) for line, row in lines if row)


def _lines(path: Path, text: str) -> Iterator[Line]:
    """Give the rows of a text with the number of the line in which each begins."""
    rows = csv.reader(io.StringIO(text, newline=""), strict=True, skipinitialspace=True)
    line = 1
    try:
        for row in rows:
            yield line, row
            line = rows.line_num + 1
    except csv.Error as error:
        raise PlanError(f"{path}:{line}: not CSV; is a quote not closed? {error}") from error


def _read_columns(
    path: Path, header: list[str], lines: Iterator[Line], places: Sequence[int]
) -> list[CsvSeries]:
    _check_names(path, header, [0, *places])
    units_per_second = _units_per_second(header[0])
    seconds: list[float] = []
    values: list[list[float]] = [[] for _ in places]
    for line, row in lines:
        if len(row) != len(header):
            raise PlanError(f"{path}:{line}: {len(row)} columns, the header has {len(header)}")
        seconds.append(_seconds(path, line, header[0], row[0], units_per_second))
        if len(seconds) > 1 and seconds[-1] <= seconds[-2]:
            raise _cell_error(path, line, header[0], "the time must increase from row to row")
        for column, at in zip(values, places, strict=True):
            cell = row[at]
            column.append(_number(path, line, header[at], cell) if cell.strip() else float("nan"))
    times = np.array(seconds)
    many = [
        CsvSeries(header[at], times, np.array(column))
        for column, at in zip(values, places, strict=True)
    ]
    if many[0].spacing_seconds < _MIN_SPACING_SECONDS:
        raise PlanError(
            f"{path}: rows {many[0].spacing_seconds:g} s apart; a nanosecond is the minimum"
        )
    return many


def _check_names(path: Path, header: list[str], places: Sequence[int]) -> None:
    counts = Counter(header)
    for name in (header[at] for at in places):
        if name and counts[name] > 1:
            raise PlanError(f"{path}:1: {counts[name]} columns are named {name!r}")
    for at in places[1:]:  # the time may have none, as an index that pandas wrote
        if not header[at]:
            raise PlanError(f"{path}:1: column {at + 1} has no name")


def _default_columns(header: Sequence[str]) -> list[int]:
    if not _is_latency(header[1]):
        return [1]
    places: dict[str, int] = {}
    for at, name in enumerate(header[1:], 1):
        if _is_latency(name):
            places.setdefault(name, at)
    return list(places.values())


def _is_latency(name: str) -> bool:
    return _LATENCY.search(name) is not None


def _units_per_second(name: str) -> int:
    """Return how many units, by the suffix of a name, make a second; 1 without a suffix."""
    unit = _UNIT.search(name)
    return 1 if unit is None else _UNITS_PER_SECOND[unit[1].lower()]


def _column_index(path: Path, header: list[str], value: str) -> int:
    name = value.strip()
    if name not in header[1:]:
        known = [wording.printable(one) for one in header[1:]]
        raise PlanError(f"{path}:1: no column {name!r}{nearest(name, known)}")
    return header.index(name, 1)


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _seconds(path: Path, line: int, column: str, cell: str, units_per_second: int) -> float:
    number = _number(path, line, column, cell)
    # Divide an integer as such: a float of nanoseconds since 1970 is off by hundreds.
    seconds = (int(cell) if _WHOLE.fullmatch(cell) else number) / units_per_second
    if abs(seconds) > _MAX_SECONDS:
        problem = f"{cell[:_SHOWN_CHARACTERS]!r} is beyond the year 9999; {_UNIT_HINT}"
        raise _cell_error(path, line, column, problem)
    return seconds


def _number(path: Path, line: int, column: str, cell: str) -> float:
    try:
        number = float(cell)
    except ValueError as error:
        raise _cell_error(
            path, line, column, f"{cell[:_SHOWN_CHARACTERS]!r} is not a number"
        ) from error
    if not np.isfinite(number):
        problem = f"{cell[:_SHOWN_CHARACTERS]!r} is not finite; leave it empty if missing"
        raise _cell_error(path, line, column, problem)
    return number


def _cell_error(path: Path, line: int, column: str, problem: str) -> PlanError:
    return PlanError(f"{path}:{line}:{wording.printable(column)}: {problem}")
