"""What a step is worth: values as soft thresholds, scaled so that the price of one step is 1.

Between thresholds the squared distance of two rows is the Gini (CRPS) distance of two distributions, so least
squares over these features sees level and spread, and a step earns its area: rows times height.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from detectors._dating import dated, middle

THRESHOLDS = 24
QUIET = 0.0005  # log10; added to the change from row to row, so that a rounded series has a price
_SOFTNESS = 0.001  # width of a threshold, log10
_TYPICAL_RANGE = 0.08  # log10, where the weight of a series' range is one


def features(
    y: NDArray[np.float64], penalty: float, rows: slice = slice(None)
) -> NDArray[np.float32]:
    """Return the features of some rows of a series on log10, (n, THRESHOLDS); zero where nothing varies."""
    part = y[rows]
    lowest, highest = np.quantile(y, [0.002, 0.99])
    width = float(highest - lowest)
    if width <= 0.0:  # nearly all values are equal
        lowest, highest = y.min(), y.max()
        width = float(highest - lowest)
    if width <= 0.0:
        return np.zeros((part.size, THRESHOLDS), np.float32)
    thresholds = np.linspace(lowest, highest, THRESHOLDS)
    weight = width / THRESHOLDS / sqrt(width / _TYPICAL_RANGE) / _price(y, penalty)
    # rounding to 32 bits is far below the width of a threshold, once the values are near zero
    near, edges = ((x - lowest) / _SOFTNESS for x in (part, thresholds))
    below: NDArray[np.float32] = edges.astype(np.float32) - near.astype(np.float32)[:, np.newaxis]
    np.clip(below, -50.0, 50.0, out=below)
    np.exp(below, out=below)
    below += np.float32(1.0)
    np.divide(np.float32(sqrt(weight)), below, out=below)
    return below


def _price(y: NDArray[np.float64], penalty: float) -> float:
    typical = float(np.median(np.abs(np.diff(y))))
    return penalty * sqrt((typical + QUIET) / _SOFTNESS)


# --- Cuts of one series judged by the rows on both sides of them: which are kept, and where they lie.

_NEAR_ROWS = 100  # on each side of a cut, to judge it from
_LEAST_RATIO = 20.0  # log likelihood ratio of a step, by the noise of the rows nearby
_LEAST_CONTRAST = 10.0  # and of two levels, by that of the whole series


@dataclass(frozen=True, slots=True, eq=False)
class Track:
    """One series of n rows on the scale of the search, `y`, and in its unit, each of shape (n,)."""

    y: NDArray[np.float64]
    values: NDArray[np.float64]
    least_step: float  # in its unit
    least_ratio: float  # larger level over smaller
    wandering: float  # long-run sd of the noise, on the scale of the search
    least_rows: int  # of a level
    penalty: float  # price of a cut, see `_energy`


@dataclass(frozen=True, slots=True)
class Cut:
    """A cut at row `at`, between `first` and `last`, and the levels on both sides in the series' unit.

    `strength` says how far beyond what a step needs it is: 1 where it just suffices, and below 0 where the
    step is smaller than the smallest. `ratio` is the log likelihood ratio of a step.
    """

    at: int
    first: int
    last: int
    before: float
    after: float
    strength: float
    ratio: float

    @property
    def is_up(self) -> bool:
        return self.after > self.before


def settled(starts: Sequence[int], track: Track) -> list[Cut]:
    """Return the cuts that are left when the weakest is dropped until none is too weak, in order.

    Each is judged and dated between its neighbours, so it is judged again when one of them goes.
    """
    end = track.y.size
    kept: list[Cut] = []
    for at, high in pairwise([*starts, end]):
        kept.append(judged(kept, at, high, track))
    while kept:
        weakest = min(range(len(kept)), key=lambda place: kept[place].strength)
        if kept[weakest].strength >= 1.0:
            break
        del kept[weakest]
        for place in range(max(weakest - 1, 0), min(weakest + 1, len(kept))):
            high = kept[place + 1].at if place + 1 < len(kept) else end
            kept[place] = judged(kept[:place], kept[place].at, high, track)
    return kept


def judged(earlier: Sequence[Cut], at: int, high: int, track: Track) -> Cut:
    """Return a cut at row `at`, after the earlier ones and before row `high`, as the series shows it."""
    lows = (cut.at for cut in reversed(earlier))
    low = next((low for low in lows if at - low >= track.least_rows), 0)
    if min(at - low, high - at) < track.least_rows:
        return Cut(at, at, at, 0.0, 0.0, -1.0, 0.0)
    before, after = middle(track.values[low:at]), middle(track.values[at:high])
    least = max(track.least_step, (track.least_ratio - 1.0) * min(abs(before), abs(after)))
    size = abs(after - before) / least if least > 0.0 else float(after != before)
    if size < 1.0:
        return Cut(at, at, at, before, after, size - 1.0, 0.0)
    near, stop = max(low, at - _NEAR_ROWS), min(high, at + _NEAR_ROWS)
    onset = dated(track.y[near:stop], at - near, track.least_rows, QUIET)
    return Cut(
        at=near + onset.at,
        first=near + onset.first,
        last=near + onset.last,
        before=before,
        after=after,
        strength=min(onset.ratio / _LEAST_RATIO, _contrast(track, low, at, high) / _LEAST_CONTRAST),
        ratio=onset.ratio,
    )


def _contrast(track: Track, low: int, at: int, high: int) -> float:
    """Return the log likelihood ratio of two levels in noise that wanders as it does in the whole series."""
    change = middle(track.y[at:high]) - middle(track.y[low:at])
    rows = (at - low) * (high - at) / (high - low)
    return rows * (change / max(track.wandering, QUIET)) ** 2 / 2.0
