"""What counts as a change: the scale of a series, its smallest step, the threshold and the confidence.

Latencies are judged on log10, everything else on a linear scale. All kinds of change share this module, so
that a change is as large, and as sure, online as it is offline.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import exp, inf, log, log10
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict
from pydantic.dataclasses import dataclass

from soak.core.model import Change, Column

FLOOR_SECONDS = 1e-6
"""Resolution of the latency histograms: two latencies below it do not differ."""
MAX_CONFIDENCE = 0.9999
MAD_TO_SD = 1.4826  # normal
_FLOOR = log10(FLOOR_SECONDS) + 1e-6  # with the rounding of float32
_FLOAT32_RATIO = 1e-6  # of a value: a few times the rounding of float32
_SMALLEST_VALUE = 1e-3  # below it the rounding counts as that of this value, so that zero has one
_LEAST_BY_UNIT = {"ratio": 0.05, "messages": 1.0}  # smallest change of units other than seconds
_OFFSET = 1.14  # measured with the statistic of steps: docs/evidence/detection-bench.md
_INTERVAL_PROBABILITY = 0.95  # that an interval holds the onset, as `Change.interval` says


def threshold_of(rows: float, panel_size: int) -> float:
    """Return the log likelihood ratio that noise in `panel_size` series exceeds once in `rows` rows.

    All kinds use it, online and offline, so that neither reports what the other takes for noise.
    """
    return log(rows) + log(panel_size) + _OFFSET


def confidence_of(log_odds: float) -> float:
    """Return the probability that there is a change."""
    return min(MAX_CONFIDENCE, 1.0 / (1.0 + exp(-max(-50.0, min(50.0, log_odds)))))


def most_probable(weights: NDArray[np.floating]) -> tuple[int, int]:
    """Return the first and last of the heaviest places that hold an onset with 95 %.

    `weights`, shape (n,), are in proportion to the probability of each place and not all 0. Every place is as
    probable beforehand, so the odds of two are the ratio of their likelihoods.
    """
    order = np.argsort(-weights, kind="stable")
    held = np.cumsum(weights[order]) / weights.sum()
    kept = order[: int(np.searchsorted(held, _INTERVAL_PROBABILITY)) + 1]
    return int(kept.min()), int(kept.max())


def is_log(columns: Sequence[Column]) -> NDArray[np.bool_]:
    """Return which columns are latencies, shape (n,)."""
    return np.array([column.unit == "seconds" for column in columns], dtype=np.bool_)


def least_changes(
    columns: Sequence[Column], seconds: float | NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the smallest absolute change of each column in its own unit, shape (n,).

    `seconds`: that of a latency, one for all or shape (n,).
    """
    of_unit = np.array([_LEAST_BY_UNIT.get(column.unit, 0.0) for column in columns])
    return np.where(is_log(columns), seconds, of_unit)


def unscaled(value: float, *, logarithmic: bool) -> float:
    """Return a value on the scale of its series in the unit of the series; the floor stands for zero."""
    if not logarithmic:
        return float(value)
    return 0.0 if value <= _FLOOR else float(10.0**value)  # NaN stays NaN


def smallest_rises(
    level: NDArray[np.float32],
    logarithmic: NDArray[np.bool_],
    least_change: NDArray[np.float64],
    ratio: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Return how far above each level, on the scale of its series, the smallest step up ends, shape (n,).

    At least a few times the rounding of float32, so that a series that never changes has a scale too.
    """
    seconds = 10.0 ** np.where(logarithmic, level, 0.0).astype(np.float64)
    on_log = np.maximum(np.log10(ratio), np.log10(1.0 + least_change / seconds))
    linear = np.maximum(least_change, (ratio - 1.0).astype(np.float32) * np.abs(level))
    rounding = _FLOAT32_RATIO * np.maximum(np.abs(level), _SMALLEST_VALUE)
    return np.maximum(np.where(logarithmic, on_log, linear), rounding)


def smallest_steps(
    before: float, after: float, ratio: float, least_change: float, floor: float = 0.0
) -> float:
    """Return how many smallest steps lie between two levels, in the unit of the series.

    The smallest step is the larger of a change by `ratio` and one by `least_change`; levels below `floor` do
    not differ.
    """
    change, lower = abs(after - before), max(min(abs(before), abs(after)), floor)
    size = max(least_change, (ratio - 1.0) * lower)
    if size <= 0.0:
        return inf if change > 0.0 else 0.0
    return change / size


def is_back(change: Change, level: float, is_worth: Callable[[float, float], bool]) -> bool:
    """True when a level is back where a change began, within the minimum effect, or beyond."""
    if (level - change.before) * (change.after - change.before) <= 0.0:
        return True
    is_nearer = abs(level - change.before) < abs(level - change.after)
    return is_nearer and not is_worth(change.before, level)


def ended(change: Change, k: int) -> Change:
    """Return a change as resolved since second `k`, but after its onset even if the clock was set back."""
    return replace(change, state="gone", resolved_k=max(k, change.onset_k + 1))


@dataclass(frozen=True, kw_only=True, config=ConfigDict(extra="forbid"))
class Config:
    """The same for drift, spikes and tail."""

    scale: Literal["log", "linear"] = "log"
    # ln of the rows between two false alarms; by default one in 30 days of 1 Hz, as `level_shift`
    threshold: float = threshold_of(30 * 86_400, 100)
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
        # NumPy's logarithm, which differs from that of `math` in the last bit
        return value if self.scale == "linear" else float(np.log10(max(value, FLOOR_SECONDS)))

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
        return confidence_of(surprise - self.threshold + log(30))

    def is_worth(self, before: float, after: float) -> bool:
        """True when two levels, in the series' own unit, differ by the smallest step or more."""
        floor = FLOOR_SECONDS if self.scale == "log" else 0.0
        least = self.smallest_step_seconds
        return smallest_steps(before, after, self.smallest_step_ratio, least, floor) >= 1.0
