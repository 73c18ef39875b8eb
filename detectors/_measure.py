"""How large a change of a series is: latencies on log10, everything else as it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log10

import numpy as np
from numpy.typing import NDArray

from soak.core.model import Column

FLOOR_SECONDS = 1e-6  # the histograms' own resolution; a zero has no logarithm
_FLOOR = log10(FLOOR_SECONDS) + 1e-6  # with float32's rounding
_LEFT = 0.2  # of the logarithm of a change: after a hundredfold step a level 2.5 times the old one is back
_MOST_LEFT = log10(2.5)
_LEAST_BY_UNIT = {"ratio": 0.05, "messages": 1.0}  # what nobody would call a change


@dataclass(frozen=True, slots=True)
class Step:
    """The smallest step worth reporting: of both, the one that asks for more."""

    ratio: float
    seconds: float


def is_watched(column: Column) -> bool:
    """True for what a panel follows.

    Counts above thresholds belong to the histogram, and one message decides a maximum.
    """
    return (
        not column.metric.endswith("_above_messages") and ("quantile", "max") not in column.labels
    )


def is_log(columns: Sequence[Column]) -> NDArray[np.bool_]:
    return np.array([column.unit == "seconds" for column in columns], dtype=np.bool_)


def least(columns: Sequence[Column], step: Step) -> NDArray[np.float64]:
    """Return the least absolute change of each column in its own unit, shape (n,)."""
    return np.array(
        [
            step.seconds if column.unit == "seconds" else _LEAST_BY_UNIT.get(column.unit, 0.0)
            for column in columns
        ]
    )


def scaled(values: NDArray[np.float64], logarithmic: NDArray[np.bool_]) -> NDArray[np.float32]:
    """Return the values on the scale of their series, shape (n,); NaN stays NaN."""
    floored = np.log10(np.maximum(np.where(logarithmic, values, 1.0), FLOOR_SECONDS))
    return np.where(logarithmic, floored, values).astype(np.float32)


def unscaled(value: float, *, logarithmic: bool) -> float:
    """Return a value of the series' scale in its own unit; the floor stands for zero."""
    if not logarithmic:
        return float(value)
    return float(10.0**value) if value > _FLOOR else 0.0


def sd_floor(
    center: NDArray[np.float64],
    logarithmic: NDArray[np.bool_],
    least_change: NDArray[np.float64],
    step: Step,
) -> NDArray[np.float64]:
    """Return the least sd to score with, on the scale of each series, shape (n,).

    That is the smallest step: a quiet series is scored as if its noise were as large.
    """
    level = 10.0 ** np.where(logarithmic, center, 0.0)
    in_log = np.maximum(log10(step.ratio), np.log10(1.0 + least_change / level))
    in_unit = np.maximum(least_change, (step.ratio - 1.0) * np.abs(center))
    tiny = 1e-6 * np.maximum(np.abs(center), 1e-3)  # float32 rounding, and a series all zero
    return np.maximum(np.where(logarithmic, in_log, in_unit), tiny)


def is_step(
    before: float, after: float, *, logarithmic: bool, least_change: float, step: Step
) -> bool:
    """True when two levels, in the series' own unit, differ by the smallest step or more."""
    change, lower = abs(after - before), min(abs(before), abs(after))
    if logarithmic:
        lower = max(lower, FLOOR_SECONDS)
    return change > 0.0 and change >= max(least_change, (step.ratio - 1.0) * lower)


def is_undone(before: float, after: float, level: float, *, logarithmic: bool) -> bool:
    """True when next to nothing is left of a change from `before` to `after`, in the series' own unit.

    Of latencies a fifth of the logarithm may be left, up to 2.5 times the level before: after a second nobody
    waits for 17 ms to be 9 again, and a short baseline does not know the one from the other.
    """
    if not logarithmic:
        return (level - before) * (after - before) <= 0.0
    start, end, now = (log10(max(one, FLOOR_SECONDS)) for one in (before, after, level))
    span, left = abs(end - start), (now - start) * (1.0 if end > start else -1.0)
    return left <= min(_LEFT * span, _MOST_LEFT)
