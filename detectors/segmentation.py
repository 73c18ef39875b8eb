"""Level shifts of whole series, looking back at them; what is one event in several series is one step.

Method:  segmentation under the Gini (CRPS) energy of each segment (`_energy`), the best cut of all rows
         (`_partition`). A step costs its area, rows times height, so a burst counts for what it is and a tiny
         step on a quiet series too; the price grows with the root of the median change from row to row.
         Then each cut is dated, row by row, from its two sides (`_dating`), and the weakest is dropped until
         every one left is worth reporting and clear of the series' own wandering (`_cuts`). Several series
         are searched side by side too (`_shared`), and those cuts are one step whose onsets cannot be told
         apart (`_events`).
Assumes: at least 2 x `least_rows` values; a slow drift comes out as stairs. Rows of one series follow each
         other: what is missing is left out, and its place counts for nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, inf, log
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict
from pydantic.dataclasses import dataclass

from detectors import _cuts, _partition
from detectors._cuts import Track, settled
from detectors._dating import wandering
from detectors._events import Event, Member, events, with_shared
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
        if not (1.0 < self.smallest_step_ratio < inf and 0.0 < self.penalty < inf):
            raise ValueError("smallest_step_ratio must be above 1, penalty above 0, both finite")
        if not 0.0 <= self.smallest_step_seconds < inf:
            raise ValueError("smallest_step_seconds must be finite and not negative")
        if self.least_rows < 2:  # noqa: PLR2004  # the bound in the message
            raise ValueError("least_rows must be at least 2")


def detect(series: Series, config: Config) -> list[Change]:
    """Return the steps in order of time, all of them confirmed."""
    return [change for changes in detect_together([series], config) for change in changes]


def detect_together(many: Sequence[Series], config: Config) -> list[tuple[Change, ...]]:
    """Return the steps in order of time, each as the changes of the series that took it, clearest first.

    All changes of a step have one onset and one interval; `raised_k` is where each series has its own.
    The order of `many` says nothing.
    """
    return detect_mixed([(series, config) for series in many])


def detect_mixed(many: Sequence[tuple[Series, Config]]) -> list[tuple[Change, ...]]:
    """Return the same of series that are each judged by a config of their own."""
    used = [(series, config) for series, config in many if series.k.size >= 2 * config.least_rows]
    used.sort(key=lambda one: one[0].name)
    if not used:
        return []
    k = _common([series for series, _ in used])
    members = [_member(series, k, config) for series, config in used]
    least_rows = max(config.least_rows for _, config in used)
    found = events(with_shared(members, least_rows), k)
    spacing = int(np.median(np.diff(k)))
    return [_changes(event, k, spacing) for event in found]


def _common(many: Sequence[Series]) -> NDArray[np.int64]:
    """Return the seconds in which any series has a row."""
    if len(many) == 1:
        return many[0].k
    return np.unique(np.concatenate([series.k for series in many]))


def _member(series: Series, k: NDArray[np.int64], config: Config) -> Member:
    y = _scaled(series.values, config)
    track = Track(
        y=y,
        values=series.values,
        least_step=config.smallest_step_seconds,
        least_ratio=config.smallest_step_ratio,
        wandering=wandering(y),
        least_rows=config.least_rows,
        penalty=config.penalty,
    )
    features = _cuts.features(y, config.penalty)[:, np.newaxis]
    starts = _partition.best(features, config.least_rows)
    return Member(series.name, track, np.searchsorted(k, series.k), settled(starts, track))


def _scaled(values: NDArray[np.float64], config: Config) -> NDArray[np.float64]:
    if config.scale == "log":
        return np.asarray(np.log10(np.maximum(values, FLOOR_SECONDS)))
    steps = np.abs(np.diff(values))
    typical = float(np.median(steps)) or float(np.mean(steps)) or 1.0
    return np.asarray((values - np.median(values)) / typical * _LINEAR_SPREAD)


def _changes(event: Event, k: NDArray[np.int64], spacing: int) -> tuple[Change, ...]:
    dated = event.dated
    onset, last = int(k[dated.at]), int(k[dated.last])
    # behind a gap of all series the onset may lie in it
    first = int(min(k[dated.first], k[dated.first - 1] + spacing))
    return tuple(
        Change(
            series=one.member.name,
            raised_k=int(k[one.at]),
            onset_k=onset,
            interval=(first, last),
            before=one.cut.before,
            after=one.cut.after,
            state="confirmed",
            confidence=_confidence(one.cut.ratio - log(one.member.places.size)),
        )
        for one in event.shown
    )


def _confidence(odds: float) -> float:
    return min(0.9999, 1.0 / (1.0 + exp(-max(-50.0, min(50.0, odds)))))
