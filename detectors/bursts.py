"""Bursts: a few values far above the level of those around them, and back.

Method:  distance on log10 from the median of the 9 values before or of the 9 after, whichever is lower. Those
         next to the farthest that are half as far belong to its burst; the values around it are near that
         level on both sides, which a step's are on one. It must be several times as far as all but a tenth of
         the other values are, so what comes often is noise.
Assumes: latencies or other positive values. What lasts longer than `most_rows` is a level.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict
from pydantic.dataclasses import dataclass

from detectors.minimum_effect import FLOOR_SECONDS, MAX_CONFIDENCE
from soak.core.model import Change, Series

_AROUND = 9  # values on either side
_PART = 0.5  # of the distance of the farthest, which the others of its burst have
_USUAL = 0.9  # quantile of the other distances


@dataclass(frozen=True, kw_only=True, config=ConfigDict(extra="forbid"))
class Config:
    """How far, and for how long."""

    smallest_ratio: float = 4.0
    times: float = 3.0  # 2 and 4 find the same in recorded runs
    most_rows: int = 6

    def __post_init__(self) -> None:
        if not (1.0 < self.smallest_ratio < inf and 0.0 < self.times < inf):
            raise ValueError("smallest_ratio must be above 1, times above 0, both finite")
        if not 1 <= self.most_rows <= _AROUND:
            raise ValueError(f"most_rows: 1 to {_AROUND}")


def detect(series: Series, config: Config) -> list[Change]:
    """Return both edges of each burst in order of time: up at its first row, down at the first after it."""
    if series.values.size < 2 * _AROUND:
        return []
    y = np.log10(np.maximum(series.values, FLOOR_SECONDS))
    level = np.minimum(*_levels(y))
    far = y - level
    edges = []
    for top in map(int, np.flatnonzero(far >= np.log10(config.smallest_ratio))):
        first, stop = _around(top, far >= _PART * far[top])
        usual = np.quantile(np.delete(far, slice(first, stop)), _USUAL)
        is_far = far[first:stop].argmax() == top - first and far[top] >= config.times * usual
        is_short = stop - first <= config.most_rows and first > 0 and stop < series.k.size
        if is_far and is_short and max(y[first - 1], y[stop]) < level[top] + _PART * far[top]:
            around, within = 10.0 ** level[top], np.median(series.values[first:stop])
            levels = float(around), float(within)
            for row, (before, after) in ((first, levels), (stop, levels[::-1])):
                k = int(series.k[row])
                edges.append(
                    Change(series.name, k, k, (k, k), before, after, "confirmed", MAX_CONFIDENCE)
                )
    return edges


def without(series: Series, edges: Sequence[Change]) -> Series:
    """Return a series without the rows of bursts with these edges."""
    keep = np.ones(series.k.size, dtype=np.bool_)
    for up, down in zip(edges[::2], edges[1::2], strict=True):
        keep &= (series.k < up.onset_k) | (series.k >= down.onset_k)
    return Series(series.name, series.k[keep], series.values[keep])


def _around(row: int, is_part: NDArray[np.bool_]) -> tuple[int, int]:
    """Return the first row of those together with `row` that are part of it, and the first after them."""
    outside = np.concatenate([[-1], np.flatnonzero(~is_part), [is_part.size]])
    after = int(np.searchsorted(outside, row))
    return int(outside[after - 1]) + 1, int(outside[after])


def _levels(y: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the medians before and after each value; at the ends the last value stands in."""
    wide = np.pad(y, _AROUND, mode="edge")
    medians = np.median(np.lib.stride_tricks.sliding_window_view(wide, _AROUND), axis=1)
    return medians[: y.size], medians[-y.size :]
