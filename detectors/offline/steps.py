"""Steps of complete series, at a set rate of false ones; what is one event in several series is one step.

Method:  Rows become blocks of ten seconds. Cuts are proposed and tested in each series (`segmentation`)
         against its own noise (`noise`), then dated to a row (`dating`). Cuts of several series at
         one time are one step (`events`), to which a series without a cut belongs if it changed then.
Assumes: a slow drift comes out as stairs. Rows follow each other: a missing one is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Literal

from pydantic import ConfigDict
from pydantic.dataclasses import dataclass

from detectors.offline.events import Searched, joined
from detectors.offline.segmentation import SmallestStep, track_of
from soak.core.model import Change, Series


@dataclass(frozen=True, kw_only=True, config=ConfigDict(extra="forbid"))
class Config:
    """Which steps of a series are reported."""

    scale: Literal["log", "linear"] = "log"  # log: linear where a value is not above zero
    smallest_step_ratio: float = 1.5
    smallest_step_seconds: float = 0.001  # in the series' own unit when that is not seconds
    false_step_rate: float = 0.05  # probability of any step in series without one, all together
    unit_seconds: float = 1.0  # of `Series.k`

    def __post_init__(self) -> None:
        if not 1.0 < self.smallest_step_ratio < inf:
            raise ValueError("smallest_step_ratio must be above 1 and finite")
        if not 0.0 <= self.smallest_step_seconds < inf:
            raise ValueError("smallest_step_seconds must be finite and not negative")
        if not 0.0 < self.false_step_rate < 1.0:
            raise ValueError("false_step_rate must be between 0 and 1")
        if not 0.0 < self.unit_seconds < inf:
            raise ValueError("unit_seconds must be above 0 and finite")


def detect(series: Series, config: Config) -> list[Change]:
    """Return the steps of one series in order of time, all of them confirmed."""
    return [change for changes in detect_together([series], config) for change in changes]


def detect_together(many: Sequence[Series], config: Config) -> list[tuple[Change, ...]]:
    """Return the steps in order of time, each as the changes of the series that took it, clearest first.

    All changes of a step have one onset and one interval; `raised_k` is where each series shows it.
    The order of `many` does not matter.
    """
    return detect_mixed([(series, config) for series in many])


def detect_mixed(many: Sequence[tuple[Series, Config]]) -> list[tuple[Change, ...]]:
    """Return the same for series that are each judged by a config of their own."""
    rate = max((config.false_step_rate for _, config in many), default=0.0)
    found = []
    for series, config in sorted(many, key=lambda one: one[0].name):
        track = track_of(
            series,
            is_log=config.scale == "log",
            unit_seconds=config.unit_seconds,
            smallest=SmallestStep(config.smallest_step_ratio, config.smallest_step_seconds),
        )
        if track is not None:
            found.append(Searched(track, track.cuts(config.false_step_rate / len(many))))
    return joined(found, rate)
