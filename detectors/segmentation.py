"""Level shifts of whole series, looking back at them; several series are cut together.

Method:  segmentation under the Gini (CRPS) energy of each segment (`_energy`), the best cut of all rows
         (`_partition`). A step costs its area, rows times height, so a burst counts for what it is and a tiny
         step on a quiet series too; the price grows with the root of the median change from row to row.
         Then each cut is dated, row by row, from its two sides (`_dating`), and the weakest is dropped until
         every one left is worth reporting and clear of the series' own wandering.
Assumes: at least 2 x `least_rows` values; a slow drift comes out as stairs. Rows of one series follow each
         other: what is missing is left out, and its place counts for nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, log
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict
from pydantic.dataclasses import dataclass

from detectors import _energy, _partition
from detectors._cuts import Cut, Track, settled
from detectors._dating import wandering
from detectors._measure import FLOOR_SECONDS
from soak.core.model import Change, Series

_LINEAR_SPREAD = (
    0.01  # a series that is not logarithmic is scaled to change by that from row to row
)


@dataclass(frozen=True, kw_only=True, config=ConfigDict(extra="forbid"))
class Config:
    """What counts as a step worth reporting."""

    scale: Literal["log", "linear"] = "log"
    smallest_step_ratio: float = 1.5
    smallest_step_seconds: float = 0.001  # in the series' own unit when that is not seconds
    least_rows: int = 3  # of a level
    penalty: float = 0.12  # price of one step, as an area in rows x log10 on a quiet series

    def __post_init__(self) -> None:
        if self.smallest_step_ratio <= 1.0 or self.penalty <= 0.0:
            raise ValueError("smallest_step_ratio must be above 1, penalty above 0")
        if self.least_rows < 2:  # noqa: PLR2004  # the bound in the message
            raise ValueError("least_rows must be at least 2")


def detect(series: Series, config: Config) -> list[Change]:
    """Return the steps in order of time, all of them confirmed."""
    return [change for changes in detect_together([series], config) for change in changes]


def detect_together(many: Sequence[Series], config: Config) -> list[tuple[Change, ...]]:
    """Return the steps in order of time, each as the changes of the series that took it, clearest first.

    All changes of a step have the onset and the interval of the clearest.
    """
    used = [series for series in many if series.k.size >= 2 * config.least_rows]
    if not used:
        return []
    k = _common(used)
    tracks = [_track(series, k, config) for series in used]
    features = np.hstack([_spread_out(track, config) for track in tracks])
    starts = _partition.best(features, config.least_rows)
    return [_changes(cut, used, k) for cut in settled(starts, tracks, config.least_rows)]


def _common(many: Sequence[Series]) -> NDArray[np.int64]:
    """Return the seconds in which any series has a row."""
    if len(many) == 1:
        return many[0].k
    return np.unique(np.concatenate([series.k for series in many]))


def _track(series: Series, k: NDArray[np.int64], config: Config) -> Track:
    y = _scaled(series.values, config)
    return Track(
        y=y,
        values=series.values,
        rows=np.searchsorted(series.k, k),
        places=np.searchsorted(k, series.k),
        least_step=config.smallest_step_seconds,
        least_ratio=config.smallest_step_ratio,
        wandering=wandering(y),
    )


def _spread_out(track: Track, config: Config) -> NDArray[np.float32]:
    """Return the features of a series at all common rows; where it has none, those of its last row before."""
    found = _energy.features(track.y, config.penalty)
    if track.rows.size == track.y.size:
        return found
    last = np.searchsorted(track.places, np.arange(track.rows.size), side="right") - 1
    return found[np.maximum(last, 0)]


def _scaled(values: NDArray[np.float64], config: Config) -> NDArray[np.float64]:
    if config.scale == "log":
        return np.asarray(np.log10(np.maximum(values, FLOOR_SECONDS)))
    steps = np.abs(np.diff(values))
    typical = float(np.median(steps)) or float(np.mean(steps)) or 1.0
    return np.asarray((values - np.median(values)) / typical * _LINEAR_SPREAD)


def _changes(cut: Cut, many: Sequence[Series], k: NDArray[np.int64]) -> tuple[Change, ...]:
    first, onset, last = (int(k[row]) for row in (cut.first, cut.at, cut.last))
    return tuple(
        Change(
            series=many[one.track].name,
            raised_k=onset,
            onset_k=onset,
            interval=(first, last),
            before=one.before,
            after=one.after,
            state="confirmed",
            confidence=_confidence(one.onset.ratio - log(k.size)),
        )
        for one in cut.sides
    )


def _confidence(odds: float) -> float:
    return min(0.9999, 1.0 / (1.0 + exp(-max(-50.0, min(50.0, odds)))))
