"""Series from a CSV file, compressed or not: a header, the time in the first column, then value columns.

The csv module reads it: pandas and pyarrow do not say in which line a wrong cell is. Nothing is guessed from
the size of numbers: a unit stands in the name of a column or in the cell, a date is one of ISO 8601.
"""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from soak.core import wording
from soak.core.errors import PlanError
from soak.core.plan.plugins import nearest
from soak.omb import result_file

_UNITS_PER_SECOND = {
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1),
    **dict.fromkeys(("ms", "msec", "msecs", "millis", "millisecond", "milliseconds"), 10**3),
    **dict.fromkeys(("us", "usec", "usecs", "micros", "microsecond", "microseconds"), 10**6),
    **dict.fromkeys(("\u00b5s", "\u03bcs"), 10**6),  # the micro sign, and the Greek letter
    **dict.fromkeys(("ns", "nsec", "nsecs", "nanos", "nanosecond", "nanoseconds"), 10**9),
}
_UNITS = "|".join(_UNITS_PER_SECOND)
_LATENCY = re.compile(r"latency|duration|(^|_)rtt$", re.IGNORECASE)
# The last word of a name: `p99_ms`, `p99 (ms)`, `latencyMs`; after `per` it belongs to a rate.
_UNIT = re.compile(
    rf"(?:^|(?<![_\W]per)[ _.(\[-]|(?-i:(?<=[a-z\d])(?<![Pp]er)(?=[A-Z])))({_UNITS})[)\]]?$",
    re.ASCII | re.IGNORECASE,
)
_QUANTITY = re.compile(rf"([-+]?[\d.,]+(?:e[-+]?\d+)?)\s*({_UNITS})", re.ASCII | re.IGNORECASE)
_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_WHOLE = re.compile(r"\d{1,30}")
_JSON = re.compile(r"\s*[{\[]")
_QUOTED = re.compile(r'"[^"]*"')
_SEPARATORS = ",;\t"
_EXCEL_HINT = ("sep=", "")  # a first line that names the separator, split at it
_MISSING = frozenset({"", "na", "n/a", "nan", "null"})
_MAX_SECONDS = 2.5e11  # since 1970, the year 9892: a later time is in another unit
_MIN_SPACING_SECONDS = 0.5e-9  # less rounds to zero nanoseconds
_DATE_HINT = ", nor an ISO date"
_UNIT_HINT = "end the name of the column with its unit: _ms, _us or _ns"
_SHOWN_CHARACTERS = 40  # of a wrong cell

Line = tuple[int, list[str]]
"""The line number in the file, and the cells."""


@dataclass(frozen=True, slots=True)
class CsvSeries:
    """One column: rows in the order of the file, values in the unit of its name, NaN for a missing cell."""

    name: str
    seconds: NDArray[np.float64]
    values: NDArray[np.float64]
    are_durations: bool = False  # cells hold a unit of time
    are_dated: bool = False  # times are dates, so seconds are counted from 1970

    @property
    def spacing_seconds(self) -> float:
        return float(np.median(np.diff(self.seconds))) if self.seconds.size > 1 else 1.0

    @property
    def is_latency(self) -> bool:
        """Return whether the column is named like a duration, or its cells hold a unit of time."""
        return self.are_durations or _is_latency(self.name)

    @property
    def is_unit_named(self) -> bool:
        return self.are_durations or _UNIT.search(self.name) is not None

    @property
    def unit_seconds(self) -> float:
        """Return the factor from the unit of a latency to seconds; 1 if its name ends in no unit."""
        return 1.0 / _units_per_second(self.name)


@dataclass(frozen=True, slots=True)
class _Table:
    """A file, its header and the line of that, and the rows below that hold any text."""

    path: Path
    line: int
    header: list[str]
    rows: Iterator[Line]
    decimal: str  # the decimal sign of its numbers

    def error(self, line: int, column: str, problem: str) -> PlanError:
        return PlanError(f"{self.path}:{line}:{wording.printable(column)}: {problem}")


def read_series(path: Path, value: str | None) -> CsvSeries:
    """Return the column named `value`, by default the second.

    Raises:
        PlanError: with file, line and column; the file cannot be read, or a cell is wrong.
    """
    table = _open(path)
    (series,) = _read_columns(table, [1 if value is None else _column_index(table, value)])
    return series


def read_together(path: Path, names: Sequence[str]) -> list[CsvSeries]:
    """Return the columns of these names; by default the second, and if it is a latency every latency.

    Raises:
        PlanError: as in `read_series`.
    """
    table = _open(path)
    places = dict.fromkeys(_column_index(table, name) for name in names)
    return _read_columns(table, list(places) or _default_columns(table.header))


def _open(path: Path) -> _Table:
    """Return a file with its header; rows without any text are no rows, as spreadsheets add them."""
    text = result_file.read_text(path)
    if _JSON.match(text):
        raise PlanError(
            f"{path}:1: JSON, not CSV; `soak omb analyse` reads results of the benchmark"
        )
    file = io.StringIO(text, newline="")
    separator = _separator(next((line for line in file if line.strip()), ""))
    file.seek(0)
    rows = ((line, row) for line, row in _lines(path, file, separator) if any(map(str.strip, row)))
    line, cells = next(rows, (1, []))
    if tuple(cells) == _EXCEL_HINT:
        line, cells = next(rows, (line, []))
    header = [cell.strip() for cell in cells]
    if len(header) < 2:  # noqa: PLR2004  # time and value
        raise PlanError(
            f"{path}:{line}: a header with a time column and a value column is needed, separated by "
            "commas, semicolons or tabs"
        )
    if _is_number(header[0]) or _moment(header[0]) is not None:
        raise PlanError(
            f"{path}:{line}: a header is needed: {header[0]!r} is a time, not the name of a column"
        )
    return _Table(path, line, header, rows, decimal="," if separator == ";" else ".")


def _separator(header: str) -> str:
    """Return the separator that a header has most often outside of quotes; a comma if it has none."""
    return max(_SEPARATORS, key=_QUOTED.sub("", header).count)


def _lines(path: Path, file: io.StringIO, separator: str) -> Iterator[Line]:
    """Give the rows of a file with the number of the line in which each begins."""
    rows = csv.reader(file, delimiter=separator, strict=True, skipinitialspace=True)
    line = 1
    try:
        for row in rows:
            yield line, row
            line = rows.line_num + 1
    except csv.Error as error:
        raise PlanError(f"{path}:{line}: not CSV; is a quote not closed? {error}") from error


def _read_columns(table: _Table, places: Sequence[int]) -> list[CsvSeries]:
    path, header = table.path, table.header
    _check_names(table, [0, *places])
    units_per_second = _units_per_second(header[0])
    seconds: list[float] = []
    values: list[list[float]] = [[] for _ in places]
    are_durations = [False for _ in places]
    are_dated = False
    for line, row in table.rows:
        if len(row) != len(header):
            raise PlanError(f"{path}:{line}: {len(row)} columns, the header has {len(header)}")
        at_time = row[0].strip()
        moment = _moment(at_time)
        are_dated = moment is not None
        seconds.append(_seconds(table, line, at_time, moment, units_per_second))
        if len(seconds) > 1 and seconds[-1] <= seconds[-2]:
            raise table.error(line, header[0], "the time must increase from row to row")
        for place, at in enumerate(places):
            value, has_unit = _value(table, line, header[at], row[at].strip())
            values[place].append(value)
            are_durations[place] |= has_unit
    times = np.array(seconds)
    many = [
        CsvSeries(header[at], times, np.array(column), has_units, are_dated)
        for at, column, has_units in zip(places, values, are_durations, strict=True)
    ]
    if many[0].spacing_seconds < _MIN_SPACING_SECONDS:
        raise PlanError(
            f"{path}: rows {many[0].spacing_seconds:g} s apart; a nanosecond is the minimum"
        )
    return many


def _check_names(table: _Table, places: Sequence[int]) -> None:
    where, header = f"{table.path}:{table.line}", table.header
    counts = Counter(header)
    for name in (header[at] for at in places):
        if name and counts[name] > 1:
            raise PlanError(f"{where}: {counts[name]} columns are named {name!r}")
    for at in places[1:]:  # the time may have none, as an index that pandas wrote
        if not header[at]:
            raise PlanError(f"{where}: column {at + 1} has no name")


def _default_columns(header: Sequence[str]) -> list[int]:
    if not _is_latency(header[1]):
        return [1]
    places: dict[str, int] = {}
    for at, name in enumerate(header[1:], 1):
        if _is_latency(name):
            places.setdefault(name, at)
    return list(places.values())


def _is_latency(name: str) -> bool:
    return _LATENCY.search(name) is not None or _UNIT.search(name) is not None


def _units_per_second(name: str) -> int:
    """Return how many units, by the last word of a name, make a second; 1 if that is no unit."""
    unit = _UNIT.search(name)
    return 1 if unit is None else _UNITS_PER_SECOND[unit[1].lower()]


def _column_index(table: _Table, value: str) -> int:
    name = value.strip()
    if name not in table.header[1:]:
        known = [wording.printable(one) for one in table.header[1:]]
        raise PlanError(f"{table.path}:{table.line}: no column {name!r}{nearest(name, known)}")
    return table.header.index(name, 1)


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _moment(cell: str) -> datetime | None:
    """Return the instant of a date in ISO 8601, in UTC where it names no zone; None if it is none."""
    if not _DATE.match(cell):
        return None
    try:
        found = datetime.fromisoformat(cell.removesuffix(" UTC"))
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def _seconds(
    table: _Table, line: int, cell: str, moment: datetime | None, units_per_second: int
) -> float:
    """Return a time in seconds: of a date since 1970, of a number in the unit of its column."""
    column = table.header[0]
    if moment is not None:
        seconds = moment.timestamp()
    else:
        number = _number(table, line, column, cell, _DATE_HINT)
        # Divide an integer as such: a float of nanoseconds since 1970 is off by hundreds.
        seconds = (int(cell) if _WHOLE.fullmatch(cell) else number) / units_per_second
    if abs(seconds) > _MAX_SECONDS:
        problem = f"{cell[:_SHOWN_CHARACTERS]!r} is beyond the year 9999; {_UNIT_HINT}"
        raise table.error(line, column, problem)
    return seconds


def _value(table: _Table, line: int, column: str, cell: str) -> tuple[float, bool]:
    """Return a value in the unit of its column, NaN if it is missing, and whether the cell has a unit."""
    if cell.lower() in _MISSING:
        return float("nan"), False
    quantity = _QUANTITY.fullmatch(cell) if cell[-1].isalpha() else None
    if quantity is None:
        return _number(table, line, column, cell), False
    factor = _units_per_second(column) / _UNITS_PER_SECOND[quantity[2].lower()]
    return factor * _number(table, line, column, quantity[1]), True


def _number(table: _Table, line: int, column: str, cell: str, hint: str = "") -> float:
    try:
        number = float(cell.replace(table.decimal, "."))
    except ValueError as error:
        problem = f"{cell[:_SHOWN_CHARACTERS]!r} is not a number{hint}"
        raise table.error(line, column, problem) from error
    if not np.isfinite(number):
        problem = f"{cell[:_SHOWN_CHARACTERS]!r} is not finite; leave it empty if missing"
        raise table.error(line, column, problem)
    return number
