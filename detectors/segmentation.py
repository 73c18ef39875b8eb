"""Level shifts of one whole series, looking back at it.

Method:  segmentation under the Gini (CRPS) energy of each segment: 24 soft thresholds turn the values into
         features, and `ruptures.KernelCPD("linear")` finds the segments (PELT in C). A step costs its
         area, rows times height, so a burst counts for what it is and a tiny step on a quiet series too.
         The penalty grows with the root of the median change from row to row.
Assumes: at least 2 x `least_rows` values; a slow drift comes out as stairs. Above 10,000 values it
         works on medians of equal blocks and dates each step at the full rate afterwards.
"""

from __future__ import annotations

from itertools import pairwise
from math import ceil, exp, log, sqrt
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict
from pydantic.dataclasses import dataclass
from ruptures import KernelCPD

from detectors import _spread
from detectors._glr import interval, scan
from detectors._measure import FLOOR_SECONDS, Step, is_step
from detectors._spread import Spread
from soak.core.model import Change, Series

_THRESHOLDS = 24
_SOFTNESS = 0.001  # width of a threshold, log10
_TYPICAL_RANGE = 0.08  # log10, where the weight of a series' range is one
_QUIET = 0.0005  # added to the change from row to row, so that a rounded series has a penalty
_MOST_ROWS = 10_000  # the search is quadratic while nothing changes
_NEAR_ROWS = 300  # on each side of a step, to judge its interval from
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
    penalty: float = 0.11  # price of one step, as an area in rows x log10 on a quiet series

    def __post_init__(self) -> None:
        if self.smallest_step_ratio <= 1.0 or self.penalty <= 0.0:
            raise ValueError("smallest_step_ratio must be above 1, penalty above 0")
        if self.least_rows < 2:  # noqa: PLR2004  # the bound in the message
            raise ValueError("least_rows must be at least 2")


def detect(series: Series, config: Config) -> list[Change]:
    """Return the steps in order of time, all of them confirmed."""
    if series.values.size < 2 * config.least_rows:
        return []
    y = _scaled(series.values, config)
    block = ceil(y.size / _MOST_ROWS)
    starts = [at * block for at in _segment(_medians(y, block), config)]
    if block > 1:
        starts = [_dated(y, at, 2 * block) for at in starts]
    starts = _merged(series.values, starts, config)
    bounds = [0, *starts, y.size]
    return [
        _change(series, y, (low, at, high))
        for low, at, high in zip(bounds, bounds[1:], bounds[2:], strict=False)
    ]


def _scaled(values: NDArray[np.float64], config: Config) -> NDArray[np.float64]:
    if config.scale == "log":
        return np.asarray(np.log10(np.maximum(values, FLOOR_SECONDS)))
    steps = np.abs(np.diff(values))
    typical = float(np.median(steps)) or float(np.mean(steps)) or 1.0
    # centred, because far from zero the C code loses its precision
    return np.asarray((values - np.median(values)) / typical * _LINEAR_SPREAD)


def _medians(y: NDArray[np.float64], block: int) -> NDArray[np.float64]:
    whole = y[: y.size // block * block].reshape(-1, block)
    return np.asarray(np.median(whole, axis=1))


def _segment(y: NDArray[np.float64], config: Config) -> list[int]:
    """Return the first row of each level but the first."""
    if y.size < 2 * config.least_rows:
        return []
    spread = float(np.median(np.abs(np.diff(y))))
    lowest, highest = np.quantile(y, [0.002, 0.99])
    thresholds, width = np.linspace(lowest, highest, _THRESHOLDS), float(highest - lowest)
    if width <= 0.0:  # all values equal, or nearly all
        return []
    weight = width / _THRESHOLDS / sqrt(width / _TYPICAL_RANGE)
    distance = (y[:, np.newaxis] - thresholds[np.newaxis, :]) / _SOFTNESS
    features = sqrt(weight) / (1.0 + np.exp(-np.clip(distance, -50.0, 50.0)))
    features -= features.mean(axis=0)
    penalty = config.penalty * sqrt((spread + _QUIET) / _SOFTNESS)
    model = KernelCPD("linear", min_size=config.least_rows).fit(features)
    return [int(end) for end in model.predict(pen=penalty)[:-1]]


def _merged(values: NDArray[np.float64], starts: list[int], config: Config) -> list[int]:
    """Drop the smallest step again and again until each is worth reporting."""
    step = Step(config.smallest_step_ratio, config.smallest_step_seconds)
    kept = list(starts)
    while kept:
        levels = [float(np.median(values[a:b])) for a, b in pairwise([0, *kept, values.size])]
        small = [
            (abs(after - before), place)
            for place, (before, after) in enumerate(pairwise(levels))
            if not is_step(
                before,
                after,
                logarithmic=config.scale == "log",
                least_change=step.seconds,
                step=step,
            )
        ]
        if not small:
            break
        del kept[min(small)[1]]
    return kept


def _ratio(y: NDArray[np.float64], at: int) -> NDArray[np.float64]:
    """Return the likelihood ratio of a step at each row, with the spread of both sides about theirs."""
    rest = np.concatenate([y[:at] - np.median(y[:at]), y[at:] - np.median(y[at:])])
    middle = float(np.median(np.concatenate([[np.median(y[:at])], [np.median(y[at:])]])))
    _, down, up, _ = _spread.levels(rest[:, np.newaxis].astype(np.float32))
    sd = max(float(down[0]), float(up[0]), _QUIET)
    reach = _spread.CLIP + abs(float(np.median(y[at:]) - np.median(y[:at]))) / (2.0 * sd)
    noise = np.clip(rest / sd, -_spread.CLIP, _spread.CLIP)[:, np.newaxis]
    variance, neighbour, _ = _spread.moments(noise)
    found = Spread.empty(1)
    found.neighbour[:] = neighbour
    scores = np.clip((y - middle) / sd, -reach, reach)
    return scan(scores, float(variance[0]), found.memory(), 1, 1)


def _dated(y: NDArray[np.float64], at: int, margin: int) -> int:
    low, high = max(0, at - _NEAR_ROWS), min(y.size, at + _NEAR_ROWS)
    ratio = _ratio(y[low:high], at - low)
    near = slice(max(1, at - low - margin), at - low + margin + 1)
    return low + near.start + int(np.argmax(ratio[near]))


def _change(series: Series, y: NDArray[np.float64], bounds: tuple[int, int, int]) -> Change:
    low, at, high = bounds
    near_low, near_high = max(low, at - _NEAR_ROWS), min(high, at + _NEAR_ROWS)
    ratio = _ratio(y[near_low:near_high], at - near_low)
    first, last = interval(ratio) if ratio.max() > 0.0 else (at - near_low, at - near_low)
    surprise = float(ratio.max()) - log(series.values.size)
    onset = int(series.k[at])
    return Change(
        series=series.name,
        raised_k=onset,
        onset_k=onset,
        interval=(
            int(series.k[min(at, near_low + first)]),
            int(series.k[max(at, near_low + last)]),
        ),
        before=float(np.median(series.values[low:at])),
        after=float(np.median(series.values[at:high])),
        state="confirmed",
        confidence=min(0.9999, 1.0 / (1.0 + exp(-max(-50.0, min(50.0, surprise))))),
    )
