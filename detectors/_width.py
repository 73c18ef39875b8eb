"""Where the spread of a whole series about its level grew or shrank, for series that have no counts.

Method:  the 90 % quantile of the distance from the median in each minute, on log10; cut in two where the
         likelihood ratio of two levels is largest, and each part again.
Assumes: spreads of minutes that are independent but for what means of four minutes tell.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log

import numpy as np
from numpy.typing import NDArray

from detectors._memory import Memory
from detectors._recent import MINUTE
from detectors._starts import interval, scan
from detectors._worth import Config
from soak.core.model import Change, Series

_LEAST_BLOCKS = 5
_SPREAD_RATIO = 2.0
_TOP = 0.9
_MAD_TO_SD = 1.4826
_FLOOR = 1e-9  # of a spread
_LEAST_NOISE = 0.02  # on log10, of the spread of a minute


def detect(series: Series, config: Config) -> list[Change]:
    """Return where the spread of a whole series grew or shrank for good, in order of time."""
    y = config.scaled(series.values)
    edges = np.arange(MINUTE, y.size - MINUTE // 2, MINUTE)
    parts = np.split(y, edges)
    if len(parts) < 2 * _LEAST_BLOCKS:
        return []
    spreads = np.array([np.quantile(np.abs(part - np.median(part)), _TOP) for part in parts])
    width = np.log10(np.maximum(spreads, _FLOOR))
    starts = [int(at) for at in (0, *edges)]
    found = [
        _grown(series, starts, at, ratio, bounds, config)
        for at, ratio, bounds in _cuts(width, 0, width.size, config)
    ]
    return [one for one in found if config.is_worth(one.before, one.after)]


def _cuts(
    width: NDArray[np.float64], first: int, stop: int, config: Config
) -> list[tuple[int, float, tuple[int, int]]]:
    """Return the blocks at which the width changes, each with its ratio and its interval, in order."""
    part = width[first:stop]
    if part.size < 2 * _LEAST_BLOCKS:
        return []
    free = Memory.independent(_noise(part))
    whole = np.zeros(part.size, np.int64)  # each cut is judged against all blocks before it
    ratio = scan(part, np.ones(part.size), whole, free, _LEAST_BLOCKS, _LEAST_BLOCKS)
    at = int(np.argmax(ratio))
    grown = abs(float(np.median(part[at:]) - np.median(part[:at]))) if at else 0.0
    if ratio[at] < config.threshold - log(MINUTE) or grown < np.log10(_SPREAD_RATIO):
        return []
    low, high = interval(ratio)
    here = (first + at, float(ratio[at]), (first + low, first + high))
    return [*_cuts(width, first, first + at, config), here, *_cuts(width, first + at, stop, config)]


def _noise(part: NDArray[np.float64]) -> float:
    """Return the variance of a block, from differences of blocks and of means of four, the larger."""
    found = []
    for size in (1, 4):
        means = part[: part.size // size * size].reshape(-1, size).mean(axis=1)
        steps = np.abs(np.diff(means)) * np.sqrt(size)
        found.append(float(np.median(steps)) * _MAD_TO_SD)
    return max(*found, _LEAST_NOISE) ** 2 / 2.0


def _grown(
    series: Series,
    starts: Sequence[int],
    at: int,
    ratio: float,
    bounds: tuple[int, int],
    config: Config,
) -> Change:
    row = starts[at]
    low, high = (starts[place] for place in bounds)
    last = min(series.k.size - 1, high + MINUTE)
    around = [
        series.values[max(0, row - 10 * MINUTE) : row],
        series.values[row : row + 10 * MINUTE],
    ]
    before, after = (float(np.quantile(part, 0.99)) for part in around)
    onset = int(series.k[row])
    return Change(
        series=series.name,
        raised_k=onset,
        onset_k=onset,
        interval=(int(series.k[low]), int(series.k[last])),
        before=before,
        after=after,
        state="confirmed",
        confidence=config.confidence(ratio),
        kind="tail",
    )
