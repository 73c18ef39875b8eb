"""Reads a series from a CSV file: a header, a time column first (seconds), one value column."""

from __future__ import annotations

import csv
import gzip
import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from soak.core.errors import PlanError
from soak.core.plugins import nearest


@dataclass(frozen=True, slots=True)
class CsvSeries:
    """Rows in the order of the file; NaN where the cell is empty."""

    name: str
    seconds: NDArray[np.float64]
    values: NDArray[np.float64]

    @property
    def spacing_seconds(self) -> float:
        return float(np.median(np.diff(self.seconds))) if self.seconds.size > 1 else 1.0


def read(path: Path, value: str | None) -> CsvSeries:
    """Return the column named `value`, by default the second.

    Raises:
        PlanError: the file cannot be read, or a cell is not what it must be; names file, line and column.
    """
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
    at = _place(path, header, value)
    seconds: list[float] = []
    values: list[float] = []
    for row in rows:
        if not row:
            continue
        line = rows.line_num
        if len(row) != len(header):
            raise PlanError(f"{path}:{line}: {len(row)} columns, the header has {len(header)}")
        seconds.append(_number(path, line, header[0], row[0]))
        if len(seconds) > 1 and seconds[-1] <= seconds[-2]:
            raise PlanError(f"{path}:{line}:{header[0]}: time must grow from row to row")
        values.append(_number(path, line, header[at], row[at]) if row[at].strip() else float("nan"))
    return CsvSeries(header[at], np.array(seconds), np.array(values))


def _place(path: Path, header: list[str], value: str | None) -> int:
    if value is None:
        return 1
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
