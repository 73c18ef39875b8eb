"""Reads series from a CSV file: a header, a time column first (seconds), value columns."""

from __future__ import annotations

import csv
import gzip
import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from soak.core.errors import PlanError
from soak.core.plugins import nearest

_LATENCY = re.compile(r"latency|duration|(^|_)(seconds|ms|us|ns|s|rtt)$", re.IGNORECASE)
_UNIT = re.compile(r"(?:^|_)(seconds|ms|us|ns|s)$", re.IGNORECASE)
_UNIT_SECONDS = {"seconds": 1.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}

Line = tuple[int, list[str]]
"""Where it stands in the file, and its cells."""


@dataclass(frozen=True, slots=True)
class CsvSeries:
    """Rows in the order of the file, values in its unit; NaN where the cell is empty."""

    name: str
    seconds: NDArray[np.float64]
    values: NDArray[np.float64]

    @property
    def spacing_seconds(self) -> float:
        return float(np.median(np.diff(self.seconds))) if self.seconds.size > 1 else 1.0

    @property
    def is_latency(self) -> bool:
        """True for a column that is named as a time."""
        return _is_latency(self.name)

    @property
    def is_unit_named(self) -> bool:
        return _UNIT.search(self.name) is not None

    @property
    def unit_seconds(self) -> float:
        """Return what a latency is multiplied by to be in seconds: 1 where its name ends in no unit."""
        unit = _UNIT.search(self.name)
        return 1.0 if unit is None else _UNIT_SECONDS[unit[1].lower()]


def read(path: Path, value: str | None) -> CsvSeries:
    """Return the column named `value`, by default the second.

    Raises:
        PlanError: the file cannot be read, or a cell is not what it must be; names file, line and column.
    """
    header, lines = _opened(path)
    at = 1 if value is None else _place(path, header, value)
    (series,) = _read(path, header, lines, [at])
    return series


def read_together(path: Path, names: Sequence[str]) -> list[CsvSeries]:
    """Return the columns of these names; by default the second, and if it is a latency all others that are.

    Raises:
        PlanError: as `read`.
    """
    header, lines = _opened(path)
    places = [_place(path, header, name) for name in dict.fromkeys(names)]
    return _read(path, header, lines, places or _by_default(header))


def _opened(path: Path) -> tuple[list[str], Iterator[Line]]:
    """Return the header of a file and the lines below it that are not empty."""
    try:
        raw = path.read_bytes()
        text = (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode("utf-8-sig")
    except OSError as error:
        raise PlanError(f"cannot read {path}: {error.strerror or error}") from error
    except (EOFError, ValueError) as error:
        raise PlanError(f"{path} is not UTF-8 text: {error}") from error
    rows = csv.reader(io.StringIO(text, newline=""))
    header = next(rows, None)
    if not header or len(header) < 2:  # noqa: PLR2004  # time and value
        raise PlanError(f"{path}:1: a header with a time column and a value column is needed")
    return header, ((rows.line_num, row) for row in rows if row)


def _read(
    path: Path, header: list[str], lines: Iterator[Line], places: Sequence[int]
) -> list[CsvSeries]:
    seconds: list[float] = []
    values: list[list[float]] = [[] for _ in places]
    for line, row in lines:
        if len(row) != len(header):
            raise PlanError(f"{path}:{line}: {len(row)} columns, the header has {len(header)}")
        seconds.append(_number(path, line, header[0], row[0]))
        if len(seconds) > 1 and seconds[-1] <= seconds[-2]:
            raise PlanError(f"{path}:{line}:{header[0]}: time must grow from row to row")
        for column, at in zip(values, places, strict=True):
            cell = row[at]
            column.append(_number(path, line, header[at], cell) if cell.strip() else float("nan"))
    times = np.array(seconds)
    return [
        CsvSeries(header[at], times, np.array(column))
        for column, at in zip(values, places, strict=True)
    ]


def _by_default(header: Sequence[str]) -> list[int]:
    if not _is_latency(header[1]):
        return [1]
    names = dict.fromkeys(name for name in header[1:] if _is_latency(name))
    return [header.index(name, 1) for name in names]


def _is_latency(name: str) -> bool:
    return _LATENCY.search(name) is not None


def _place(path: Path, header: list[str], value: str) -> int:
    if value not in header[1:]:
        raise PlanError(f"{path}:1: no column {value!r}{nearest(value, header[1:])}")
    return header.index(value, 1)


def _number(path: Path, line: int, column: str, cell: str) -> float:
    try:
        number = float(cell)
    except ValueError as error:
        raise PlanError(f"{path}:{line}:{column}: {cell!r} is not a number") from error
    if not np.isfinite(number):
        raise PlanError(
            f"{path}:{line}:{column}: {cell!r} is not finite; leave it empty if missing"
        )
    return number
