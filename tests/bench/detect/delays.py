"""How long a step takes to be seen, over the least that any method needs at the same rate of false alarms."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, log, log10, sqrt

import numpy as np

from detectors.level_shift import Config
from tests.bench.detect.feed import FAR, config, feed
from tests.bench.detect.noises import autocorrelated

_MONTH = 30 * 86_400.0
_MOST_ROWS = 900  # after the step, by which everything is seen or counts as not


@dataclass(frozen=True, slots=True)
class Delay:
    """Of one size of step: mean rows until warned and confirmed, and the bound 2 log(ARL) / D^2."""

    correlation: float
    size: float  # in long-run standard deviations
    bound: float
    warned: float
    confirmed: float
    missed: int


def measure(
    correlation: float, size: float, series: int, history: int, seed: int, panel_size: int = 100
) -> Delay:
    """Step all series after `history` rows of AR(1) noise; false alarms before it do not count."""
    rng = np.random.default_rng(seed)
    values = FAR + autocorrelated(correlation)(rng, history + _MOST_ROWS, series)
    values[history:] += size * sqrt((1.0 + correlation) / (1.0 - correlation))
    waits: dict[str, dict[int, int]] = {"warning": {}, "confirmed": {}}
    for one in feed(values, config(_MONTH, panel_size)):
        if one.row >= history and one.change.state in waits:
            waits[one.change.state].setdefault(one.series, one.row - history + 1)
    warned, confirmed = (
        float(np.mean([float(wait) for wait in one.values()] or [np.nan])) for one in waits.values()
    )
    return Delay(
        correlation=correlation,
        size=size,
        bound=2.0 * log(_MONTH * panel_size) / size**2,
        warned=warned,
        confirmed=confirmed,
        missed=series - len(waits["confirmed"]),
    )


def in_a_plan(ratio: float, series: int, history: int, seed: int) -> float:
    """Return the median rows until a plan without settings confirms that 10 ms step up so many times.

    Noise of 0.02 on log10, far below the smallest step. Infinite where half is missed.
    """
    y = np.random.default_rng(seed).normal(-2.0, 0.02, (history + _MOST_ROWS, series))
    y[history:] += log10(ratio)
    waits = dict.fromkeys(range(series), inf)
    for one in feed(10.0**y, Config(), "seconds"):
        if one.row >= history and one.change.state == "confirmed":
            waits[one.series] = min(waits[one.series], one.row - history + 1)
    return float(np.median([*waits.values()]))
