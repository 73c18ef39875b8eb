"""The scale on which a series is judged, and the smallest change worth reporting on it.

Latencies are judged on log10, everything else on a linear scale. All kinds of change share this module, so
that a change is as large online as it is offline.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log10

import numpy as np
from numpy.typing import NDArray

from soak.core.model import Column

FLOOR_SECONDS = 1e-6
"""Resolution of the latency histograms: two latencies below it do not differ."""
_FLOOR = log10(FLOOR_SECONDS) + 1e-6  # with the rounding of float32
_FLOAT32_RATIO = 1e-6  # of a value: a few times the rounding of float32
_SMALLEST_VALUE = 1e-3  # below it the rounding counts as that of this value, so that zero has one
_LEAST_BY_UNIT = {"ratio": 0.05, "messages": 1.0}  # smallest change of units other than seconds


@dataclass(frozen=True, slots=True)
class Step:
    """The smallest step worth reporting: whichever of the two asks for the larger change."""

    ratio: float
    seconds: float


def is_log(columns: Sequence[Column]) -> NDArray[np.bool_]:
    """Return which columns are latencies, shape (n,)."""
    return np.array([column.unit == "seconds" for column in columns], dtype=np.bool_)


def least(columns: Sequence[Column], step: Step) -> NDArray[np.float64]:
    """Return the smallest absolute change of each column in its own unit, shape (n,)."""
    return np.array(
        [
            step.seconds if column.unit == "seconds" else _LEAST_BY_UNIT.get(column.unit, 0.0)
            for column in columns
        ]
    )


def unscaled(value: float, *, logarithmic: bool) -> float:
    """Return a value on the scale of its series in the unit of the series; the floor stands for zero."""
    if not logarithmic:
        return float(value)
    return float(10.0**value) if value > _FLOOR else 0.0


def minimum_effect(
    level: NDArray[np.float32],
    logarithmic: NDArray[np.bool_],
    least_change: NDArray[np.float64],
    step: Step,
) -> NDArray[np.float64]:
    """Return how far above each level, on the scale of its series, the smallest step up ends, shape (n,).

    At least a few times the rounding of float32, so that a series that never changes has a scale too.
    """
    seconds = 10.0 ** np.where(logarithmic, level, 0.0).astype(np.float64)
    on_log = np.maximum(log10(step.ratio), np.log10(1.0 + least_change / seconds))
    linear = np.maximum(least_change, (step.ratio - 1.0) * np.abs(level))
    rounding = _FLOAT32_RATIO * np.maximum(np.abs(level), _SMALLEST_VALUE)
    return np.maximum(np.where(logarithmic, on_log, linear), rounding)


def is_step(
    before: float, after: float, *, logarithmic: bool, least_change: float, step: Step
) -> bool:
    """True when two levels, in the unit of the series, differ by the smallest step or more."""
    change, lower = abs(after - before), min(abs(before), abs(after))
    if logarithmic:
        lower = max(lower, FLOOR_SECONDS)
    return change > 0.0 and change >= max(least_change, (step.ratio - 1.0) * lower)
