"""Where a step of one series began: every row and every edge of a cell is a possible onset.

All onsets are equally probable beforehand, so the odds of two are the ratio of their likelihoods. The
interval holds the most probable ones that together have 95 %.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from detectors.minimum_effect import most_probable, unscaled
from detectors.online import noise, window
from detectors.online.noise import Noise
from detectors.online.state import CELL, CELLS, ROWS, Floats, SourceState
from detectors.online.window import AGES, Sums

_LEVEL_ROWS = 2 * ROWS  # rows and cells before an onset whose median is the level


@dataclass(frozen=True, slots=True)
class Onset:
    """The most probable onset, and the levels on both sides of it in the unit of the series."""

    k: int
    interval: tuple[int, int]  # seconds that hold it with 95 %
    age: int  # slots since
    rows: int  # values since
    ratio: float  # log likelihood
    before: float
    after: float
    y_before: float  # the same levels on the scale of judgement
    y_after: float
    since: Floats  # values since, oldest first, cells as one each


def interval(ratio: NDArray[np.float64]) -> tuple[int, int]:
    """Return the first and last place of the most probable onsets, which hold 95 % together.

    `ratio` is the log likelihood ratio of each onset, 0 where there can be none.
    """
    return most_probable(np.where(ratio > 0.0, np.exp(ratio - ratio.max()), 0.0))


def locate(
    state: SourceState, i: int, sums: Sums, judged: Noise, *, logarithmic: bool
) -> Onset | None:
    """Return the most probable onset of series `i`; None when too few rows are known."""
    arrays, used = state.arrays, state.used
    age, m, squared, known = window.contrasts_of_one(sums, float(arrays.far_rows[i]), used, i)
    ages = np.log(AGES)
    variance, freedom = (
        np.interp(np.log(age), ages, one[:, i]) for one in (judged.variance, judged.freedom)
    )
    ratio = np.where(known, noise.log_ratio(squared, variance * freedom, freedom), 0.0)
    best = int(np.argmax(ratio))
    if ratio[best] <= 0.0:
        return None
    start = int(age[best])
    old, new = _values(state, i, start)
    y_before = (
        float(np.median(old)) if old.size else float(arrays.far[i] / max(arrays.far_rows[i], 1.0))
    )
    y_after = float(np.median(new))
    newest, oldest = interval(ratio + np.where(age > used, np.log(CELL), 0.0) * (ratio > 0.0))
    return Onset(
        k=_k_of(state, start),
        interval=(_k_of(state, int(age[oldest])), _k_of(state, int(age[newest]))),
        age=start,
        rows=int(m[best]),
        ratio=float(ratio[best]),
        before=unscaled(y_before, logarithmic=logarithmic),
        after=unscaled(y_after, logarithmic=logarithmic),
        y_before=y_before,
        y_after=y_after,
        since=new,
    )


def _values(state: SourceState, i: int, age: int) -> tuple[Floats, Floats]:
    """Return what is known of series `i` before and since an onset, oldest first, cells as one value each."""
    arrays, used = state.arrays, state.used
    items = np.concatenate([arrays.cell[::-1, i], arrays.y[:used, i]])
    here = np.concatenate([arrays.cell_count[::-1, i] > 0, np.isfinite(arrays.y[:used, i])])
    edge = CELLS + used - age if age <= used else CELLS - (age - used) // CELL
    old, new = items[:edge][here[:edge]], items[edge:][here[edge:]]
    return old[-_LEVEL_ROWS:], new


def _k_of(state: SourceState, age: int) -> int:
    """Return the second of an onset so many rows ago, of a cell its first."""
    if age <= state.used:
        return int(state.k[state.used - age])
    return int(state.cell_k[(age - state.used) // CELL - 1])
