"""The minimum effect: the threshold of the shared false-alarm rate, and the smallest change reported."""

from __future__ import annotations

from math import exp, inf, log, log10
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict
from pydantic.dataclasses import dataclass

from detectors.scale import FLOOR_SECONDS, Step, is_step, unscaled

_OFFSET = 1.14  # measured with the statistic of steps: docs/evidence/detection-bench.md


def threshold_of(rows: float, panel_size: int) -> float:
    """Return the log likelihood ratio that noise in `panel_size` series exceeds once in `rows` rows.

    All kinds use it, online and offline, so that neither reports what the other takes for noise.
    """
    return log(rows) + log(panel_size) + _OFFSET


_DEFAULT_THRESHOLD = threshold_of(30 * 86_400, 100)  # one false alarm in 30 days of 1 Hz


@dataclass(frozen=True, kw_only=True, config=ConfigDict(extra="forbid"))
class Config:
    """The same for drift, spikes and tail."""

    scale: Literal["log", "linear"] = "log"
    threshold: float = (
        _DEFAULT_THRESHOLD  # ln of the rows between two false alarms, as `level_shift`
    )
    smallest_step_ratio: float = 1.5
    smallest_step_seconds: float = 0.001  # in the series' own unit when that is not seconds

    def __post_init__(self) -> None:
        if not (0.0 < self.threshold < inf and 1.0 < self.smallest_step_ratio < inf):
            raise ValueError("threshold must be above 0, smallest_step_ratio above 1, both finite")
        if not 0.0 <= self.smallest_step_seconds < inf:
            raise ValueError("smallest_step_seconds must be finite and not negative")

    def scaled(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return values on the scale that they are judged on; NaN stays NaN."""
        if self.scale == "linear":
            return np.asarray(values, dtype=np.float64)
        return np.asarray(np.log10(np.maximum(values, FLOOR_SECONDS)))

    def scaled_one(self, value: float) -> float:
        """Return one value on that scale."""
        return float(self.scaled(np.array([value]))[0])

    def unscaled(self, y: float) -> float:
        return unscaled(y, logarithmic=self.scale == "log")

    def reach(self, y: float) -> float:
        """Return how far above `y`, on the scale, the smallest step up ends."""
        least = self.smallest_step_seconds
        if self.scale == "linear":
            return max(least, (self.smallest_step_ratio - 1.0) * abs(y), 1e-9)
        return max(log10(self.smallest_step_ratio), log10(1.0 + least / 10.0**y))

    def confidence(self, surprise: float) -> float:
        """Return how sure a change is whose -ln of chance is `surprise`, one a day being expected."""
        odds = surprise - self.threshold + log(30)
        return min(0.9999, 1.0 / (1.0 + exp(-max(-50.0, min(50.0, odds)))))

    def is_worth(self, before: float, after: float) -> bool:
        """True when two levels, in the series' own unit, differ by the smallest step or more."""
        return is_step(
            before,
            after,
            logarithmic=self.scale == "log",
            least_change=self.smallest_step_seconds,
            step=Step(self.smallest_step_ratio, self.smallest_step_seconds),
        )
