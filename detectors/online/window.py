"""The rows that a series keeps, the candidate onsets among them, and the contrast of means at each onset.

A row is a second that counts. The newest `ROWS` to `ROWS + CELL` rows of a series are kept as they are, older
ones as means of `CELL` rows, still older ones as one exponentially forgetting mean. Every `CELL` rows the
oldest rows become a cell. A contrast needs the sum of scores since an onset and before it; both are
differences of running sums, so a row costs one addition and a few subtractions an onset.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from detectors.online.constants import CONSTANTS
from detectors.online.state import CELL, CELLS, ROWS, SLOTS, Floats, SeriesArrays

_ROW_AGES = np.array([4, 5, 6, 8, 10, 12, 15, 18, 22, 27, 33, 40, 48, 57])  # a fifth apart
_CELL_EDGES = np.array([0, 2, 4, 7, 11, 16, 22, 29, 36])  # whole cells since the onset
LEAST_AFTER = int(_ROW_AGES[0])
OLDEST_EDGE = int(_CELL_EDGES[-1])
AGES = np.concatenate([_ROW_AGES, ROWS + CELL // 2 + CELL * _CELL_EDGES]).astype(np.float32)
"""Rows since each candidate onset, ascending; on average, where the onset is the edge of a cell."""
_FEWEST_BEFORE, _LESS_BEFORE = 100.0, 250.0  # a burst is compared with its neighbourhood only
_FAR_ROWS = 1200.0  # that the level before the cells remembers


def reach() -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return how many cells each onset is compared with, and which with the forgetting mean as well."""
    rows = AGES + np.maximum(_FEWEST_BEFORE, CONSTANTS.before_ratio * AGES - _LESS_BEFORE)
    cells = np.ceil((rows - ROWS - CELL / 2) / CELL).astype(np.int64)
    return np.clip(cells, 1, CELLS), cells > CELLS


@dataclass(slots=True)
class Sums:
    """Running sums of scores and their numbers; they follow from the arrays and are no part of the state."""

    rows: Floats  # (SLOTS + 1, n), oldest row first
    row_counts: Floats
    cells: Floats  # (CELLS + 1, n), newest cell first
    cell_counts: Floats
    far: Floats  # (n,)
    oldest_cell: NDArray[np.int64]  # (onsets,), what `reach` returns
    uses_far: NDArray[np.bool_]
    since_edges: Floats  # (edges, n): of the cells since each candidate onset among them
    since_edge_counts: Floats
    compared: (
        Floats  # (onsets, n): of all cells, and the mean before them, that each onset involves
    )
    compared_counts: Floats

    @classmethod
    def empty(cls, n: int) -> Sums:
        rows, row_counts = np.zeros((2, SLOTS + 1, n), np.float32)
        cells, cell_counts = np.zeros((2, CELLS + 1, n), np.float32)
        since, since_counts = np.zeros((2, _CELL_EDGES.size, n), np.float32)
        compared, compared_counts = np.zeros((2, AGES.size, n), np.float32)
        far = np.zeros(n, np.float32)
        return cls(
            rows, row_counts, cells, cell_counts, far, *reach(),
            since, since_counts, compared, compared_counts,
        )  # fmt: skip


def scores(
    y: Floats, center: Floats, unit: Floats, clip: Floats
) -> tuple[Floats, NDArray[np.bool_]]:
    """Return the winsorised scores of values, 0 where there is none, and where there is one."""
    z = (y - center) / unit
    here = np.isfinite(z)
    # as np.clip does, which costs several times as much for so few
    return np.minimum(np.maximum(np.where(here, z, 0), -clip), clip), here


def add_up(
    sums: Sums, arrays: SeriesArrays, unit: Floats, used: int, at: NDArray[np.int64] | slice
) -> None:
    """Add up the series `at` from their arrays, of which `used` slots hold rows."""
    center, clip, scale = arrays.center[at], arrays.clip[at], unit[at]
    z, here = scores(arrays.y[:used, at], center, scale, clip)
    sums.rows[1 : used + 1, at] = np.cumsum(z, axis=0, dtype=np.float32)
    sums.row_counts[1 : used + 1, at] = np.cumsum(here, axis=0, dtype=np.float32)
    count = arrays.cell_count[:, at].astype(np.float32)
    z = np.clip((arrays.cell[:, at] - center) / scale, -clip, clip) * count
    sums.cells[1:, at] = np.cumsum(z, axis=0, dtype=np.float32)
    sums.cell_counts[1:, at] = np.cumsum(count, axis=0, dtype=np.float32)
    rows = arrays.far_rows[at]
    level = arrays.far[at] / np.maximum(rows, 1)
    sums.far[at] = np.clip((level - center) / scale, -clip, clip) * rows
    for whole, far, since, compared in (
        (sums.cells, sums.far, sums.since_edges, sums.compared),
        (sums.cell_counts, arrays.far_rows, sums.since_edge_counts, sums.compared_counts),
    ):
        since[:, at] = whole[_CELL_EDGES][:, at]
        compared[:, at] = (whole[sums.oldest_cell] + sums.uses_far[:, np.newaxis] * far)[:, at]


def add_rows(sums: Sums, z: Floats, here: NDArray[np.bool_], used: int) -> None:
    """Add the scores of rows, shape (rows, n), the first of which stands in slot `used`."""
    for known, added in ((sums.rows, z), (sums.row_counts, here)):
        part = known[used : used + len(added) + 1]
        part[1:] = added
        np.add.accumulate(part, axis=0, out=part)


def contrasts(sums: Sums, used: NDArray[np.int64]) -> tuple[Floats, NDArray[np.bool_]]:
    """Return squared contrasts at each candidate onset over 1/m + 1/n, and which are known.

    m rows since the onset are compared with n rows before it; for independent scores of unit variance the
    expectation is 1 whatever m and n are. `used` are the numbers of slots, one each for results of shape
    (onsets, n): together (used, onsets, n), each as it would be alone.
    """
    starts, ages = used[:, np.newaxis] - _ROW_AGES, _ROW_AGES.size
    whole, number = sums.rows[used][:, np.newaxis], sums.row_counts[used][:, np.newaxis]
    after, m = np.empty((2, used.size, *sums.compared.shape), np.float32)
    np.subtract(whole, sums.rows[starts], out=after[:, :ages])
    np.add(whole, sums.since_edges, out=after[:, ages:])
    np.subtract(number, sums.row_counts[starts], out=m[:, :ages])
    np.add(number, sums.since_edge_counts, out=m[:, ages:])
    before, n = whole + sums.compared, number + sums.compared_counts
    before -= after
    n -= m
    return _squared(after, m, before, n)


def contrasts_of_one(
    sums: Sums, far_rows: float, used: int, i: int
) -> tuple[NDArray[np.int64], Floats, Floats, NDArray[np.bool_]]:
    """Return for every onset of one series its age, m, and what `contrasts` returns; (onsets,).

    Onsets are every row and every edge of a cell, the newest first.
    """
    rows, edges = np.arange(LEAST_AFTER, used + 1), np.arange(1, OLDEST_EDGE + LEAST_AFTER + 1)
    age = np.concatenate([rows, used + CELL * edges])
    whole, number = sums.rows[used, i], sums.row_counts[used, i]
    after = np.concatenate([whole - sums.rows[used - rows, i], whole + sums.cells[edges, i]])
    m = np.concatenate(
        [number - sums.row_counts[used - rows, i], number + sums.cell_counts[edges, i]]
    )
    group = np.minimum(np.searchsorted(AGES, age), AGES.size - 1)
    before = whole + sums.cells[sums.oldest_cell[group], i] - after
    n = number + sums.cell_counts[sums.oldest_cell[group], i] - m
    before += sums.uses_far[group] * sums.far[i]
    n += sums.uses_far[group] * np.float32(far_rows)
    return age, m, *_squared(after, m, before, n)


def _squared(
    after: Floats, m: Floats, before: Floats, n: Floats
) -> tuple[Floats, NDArray[np.bool_]]:
    known = (m >= LEAST_AFTER) & (n >= CONSTANTS.least_before)
    m, n = np.maximum(m, 1), np.maximum(n, 1)
    apart: Floats = after / m
    apart -= before / n
    apart *= apart
    apart /= 1 / m + 1 / n
    return apart, known


def shift(arrays: SeriesArrays, unit: Floats) -> None:
    """Make the oldest `CELL` rows the newest cell; the oldest cell goes into the forgetting mean."""
    z, here = scores(arrays.y[:CELL], arrays.center, unit, arrays.clip)
    count = here.sum(axis=0)
    mean = arrays.center + unit * z.sum(axis=0) / np.maximum(count, 1)
    keep = np.float32(1 - CELL / _FAR_ROWS)
    arrays.far[:] = keep * arrays.far + arrays.cell[-1] * arrays.cell_count[-1]
    arrays.far_rows[:] = keep * arrays.far_rows + arrays.cell_count[-1]
    arrays.cell[1:] = arrays.cell[:-1].copy()
    arrays.cell_count[1:] = arrays.cell_count[:-1].copy()
    arrays.cell[0], arrays.cell_count[0] = mean, count
    arrays.y[:ROWS] = arrays.y[CELL:].copy()
    arrays.y[ROWS:] = np.nan


def forget_before(arrays: SeriesArrays, i: int, age: int, used: int) -> None:
    """Forget all rows of series `i` but the newest `age`."""
    arrays.y[: max(used - age, 0), i] = np.nan
    arrays.cell_count[max(0, (age - used) // CELL) :, i] = 0
    arrays.far[i] = arrays.far_rows[i] = 0
