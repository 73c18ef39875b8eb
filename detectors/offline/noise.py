"""How far the means of a series' rows differ where nothing changes, learnt from the series itself.

Method:  The contrast at a block is the mean of some blocks from it on minus the mean of some before it. For
         each pair of lengths the median of all absolute contrasts gives their standard deviation, in units
         of the noise near by. Autocorrelation, daily waves, heavy tails and rounding are in that
         median; steps are rare, so they hardly are. Moving sums at several lengths: Eichinger and Kirch 2018,
         doi:10.3150/16-BEJ887; the variance of neighbouring means: Allan 1966, doi:10.1109/PROC.1966.4634.
Assumes: noise that varies no more than a random walk. In a long series less than half of the windows of a
         length contain a step; in a short one more may, and the random walk is the bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import median_filter

from detectors.minimum_effect import MAD_TO_SD

Floats = NDArray[np.float64]
_Places = int | NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Constants:
    """Numbers of the method, each with what fixes it; the settings of a user are in `steps.Config`."""

    block_seconds: float = 10.0
    """Rows are averaged over so long: a stall of some seconds is no level."""
    fewest_blocks: int = 60
    """A short series has shorter blocks, so that it has at least so many: its noise must be seen."""
    level_blocks: int = 3
    """Shortest level, half a minute. On labelled traces 3 and 4 are alike, 5 loses the shortest levels."""
    clip_sd: float = 4.0
    """A value farther from the running median counts as so far: of normal values 0.006 % are."""
    local_blocks: int = 35
    """On each side, in which the size of the noise is measured; 20 to 70 are alike on labelled traces."""
    longer_side: int = 4
    """A short level is also compared with so many times its blocks: 21 % less noise than with as many."""
    windows: int = 3
    """A series must hold both sides of a contrast so often, or most windows contain the step itself."""
    normal_excess: float = 1.1
    """Threshold over that of normal noise: change-free noise of varying size and Student t noise need it."""
    price_rows: float = 12.0
    """Area that a proposed cut must gain, in rows of 240 s; 10 to 14 are alike on labelled traces."""
    levels: int = 16
    """Thresholds between the 1 % and the 99 % quantile; 12 to 32 are alike on labelled traces."""
    piece_blocks: int = 3000
    """Searched at once: the time of the exact search grows with the square of the blocks."""


C = Constants()

_SD_TO_MEDIAN = 0.6745  # median of |x| over sd, normal
_AVERAGED = 1.5  # long-run variance of the changes of means of a random walk, over their variance
_BESIDE = 1  # blocks from a proposed cut to the best place
_TINY = 1e-9  # of the range of a series: below it is the rounding of sums


def resolution(y: Floats, values: Floats) -> float:
    """Return the distance on the scale `y` from a typical value to the next where most values repeat, else 0.

    A distance larger than the smallest value does not count: rounding has equal steps from 0 on.
    """
    levels, places, counts = np.unique(y, return_index=True, return_counts=True)
    if levels.size < 2 or 2 * counts[counts > 1].sum() < counts.sum():  # noqa: PLR2004  # a pair
        return 0.0
    raw = values[places]
    sizes = np.abs(raw[raw != 0.0])
    is_step = np.abs(np.diff(raw)) <= sizes.min() * (1.0 + _TINY)
    gaps = np.where(is_step, np.diff(levels), 0.0)
    gaps = np.concatenate([[np.inf], gaps, [np.inf]])
    nearest = np.minimum(gaps[:-1], gaps[1:])
    order = np.argsort(nearest)
    half = int(np.searchsorted(np.cumsum(counts[order]), counts.sum() / 2.0))
    return float(nearest[order][half])


def blocks(y: Floats, rows: int, step: float) -> tuple[Floats, Floats]:
    """Return the means of so many rows each, and the same without what is too short for a level.

    In the first, rows are clipped around their running median over half a level on each side; in the second,
    blocks too. `step` is the resolution of the values.
    """
    if rows > 1:
        y = _clipped(y, C.level_blocks * rows | 1, rows, step)
    means = y[: y.size // rows * rows].reshape(-1, rows).mean(axis=1)
    return means, _clipped(means, 2 * C.level_blocks - 1, 1, step)


def _clipped(y: Floats, window: int, rows: int, step: float) -> Floats:
    middle = median_filter(y, window, mode="reflect")
    spread = median_filter(np.abs(y - middle), 2 * C.local_blocks * rows + 1, mode="reflect")
    reach = C.clip_sd * np.maximum(MAD_TO_SD * spread, step / 2.0)
    return np.clip(y, middle - reach, middle + reach)


class Noise:
    """The contrasts of a series of m blocks, in standard deviations of contrasts without a change.

    Blocks are means of `rows` rows with the resolution `step`. Known `cuts` are not taken for noise.
    `largest` is the largest contrast of the whole series.
    """

    def __init__(self, x: Floats, rows: int, step: float, cuts: Sequence[int] = ()) -> None:
        self._cuts = np.array(cuts, np.int64)
        self._sums = _running_sums(x)
        self._variance = _local_variance(x, self._cuts)
        # rounded rows vary by half a step, even where by chance all are equal
        self._variance_sums = _running_sums(np.maximum(self._variance, step**2 / 4.0))
        self._averaged = _AVERAGED if rows > 1 else 1.0
        self._short_sd = 1.0  # of the mean of a short level, over that of independent blocks
        self._before, self._after, self._sd, self.largest = self._learnt(x.size)

    @property
    def contrasts_a_place(self) -> int:
        """Return how many contrasts `strength` takes the largest of."""
        return max(1, (2 * _BESIDE + 1) * self._before.size)

    def strength(self, low: int, at: int, high: int) -> float:
        """Return the largest standardised contrast at block `at` within blocks `low` to `high`.

        It may be at a neighbouring block: what is proposed is not always the best place.
        """
        largest = 0.0
        for place in range(max(at - _BESIDE, low), min(at + _BESIDE, high) + 1):
            fits = (self._before <= place - low) & (self._after <= high - place)
            contrasts = self._contrasts(self._before[fits], self._after[fits], place)
            z = (contrasts / self._sd[fits]).astype(np.float32)
            largest = max(largest, float(z.max(initial=0.0)))
        return largest

    def means(self, low: int, at: int, high: int) -> tuple[float, float]:
        """Return the means of the blocks from `low` to `at` and from `at` to `high`."""
        sums = self._sums
        before, after = (sums[at] - sums[low]) / (at - low), (sums[high] - sums[at]) / (high - at)
        return float(before), float(after)

    def block_sd(self, at: int) -> float:
        """Return the standard deviation of one block near a place, as the mean of a short level shows it."""
        return self._short_sd * sqrt(self._variance[min(at, self._variance.size - 1)])

    def _learnt(self, m: int) -> tuple[NDArray[np.int64], NDArray[np.int64], Floats, float]:
        """Return lengths before and after a place, and standard deviations of their contrasts, shape (n,).

        The last is the largest standardised contrast of the whole series.
        """
        before: list[int] = []
        after: list[int] = []
        sds: list[float] = []
        largest = [np.float32(0.0)]
        for longer in (1, C.longer_side):
            sd = 1.0  # of a contrast, over that of independent blocks; with the length it never falls
            for length in _lengths(m, longer):
                pairs = sorted({(length, longer * length), (longer * length, length)})
                contrasts = [
                    self._contrasts(left, right, np.arange(left, m + 1 - right))
                    for left, right in pairs
                ]
                learnt = self._median(pairs, contrasts) / _SD_TO_MEDIAN
                bound = self._averaged * _random_walk_variance(length, longer * length)
                sd = max(sd, min(learnt, sqrt(bound)))
                self._short_sd = self._short_sd if before else sd
                for (left, right), one in zip(pairs, contrasts, strict=True):
                    largest.append((one / sd).astype(np.float32).max())
                    before.append(left)
                    after.append(right)
                    sds.append(sd)
        lengths = np.array(before, np.int64), np.array(after, np.int64)
        return *lengths, np.array(sds), float(np.max(largest))

    def _median(self, pairs: Sequence[tuple[int, int]], contrasts: Sequence[Floats]) -> float:
        """Return the median of the contrasts that reach over no known cut, or of all if few are left."""
        kept = []
        for (before, after), one in zip(pairs, contrasts, strict=True):
            at = before + np.arange(one.size)
            cuts_before = np.searchsorted(self._cuts, [at - before, at + after - 1], side="right")
            left = one[cuts_before[0] == cuts_before[1]]
            kept.append(left if left.size >= C.windows * (before + after) else one)
        return float(np.median(np.concatenate(kept)))

    def _contrasts(self, before: _Places, after: _Places, at: _Places) -> Floats:
        """Return absolute contrasts, in standard deviations of independent blocks.

        Of one pair of lengths at many places, or of many pairs at one.
        """
        sums, variance = self._sums, self._variance_sums
        contrast = (sums[at + after] - sums[at]) / after - (sums[at] - sums[at - before]) / before
        expected = (variance[at + after] - variance[at]) / after**2
        expected += (variance[at] - variance[at - before]) / before**2
        with np.errstate(divide="ignore", invalid="ignore"):  # equal values have no noise
            return np.asarray(np.abs(contrast) / np.sqrt(expected))


def _lengths(m: int, longer: int) -> list[int]:
    """Return the lengths of the shorter side that are tested in m blocks, by a factor of root 2."""
    found = []
    for length in np.unique((C.level_blocks * sqrt(2.0) ** np.arange(40)).astype(int)).tolist():
        both = length * (1 + longer)
        # two short levels are compared in any series
        if both * C.windows <= m or (both == 2 * C.level_blocks and both <= m):
            found.append(length)
    return found


def _random_walk_variance(before: int, after: int) -> float:
    """Return the variance of a contrast of a random walk, over that of independent blocks as far apart."""
    steps = 1.0 + sum((n - 1) * (2 * n - 1) / (6 * n) for n in (before, after))
    return 2.0 * steps / (1.0 / before + 1.0 / after)


def _local_variance(x: Floats, cuts: NDArray[np.int64]) -> Floats:
    """Return the variance of each block as the changes between neighbours show it, within `local_blocks`.

    One change counts as at most `clip_sd`, and one at a known cut as a typical one.
    """
    change = np.abs(np.diff(x))
    size = min(2 * C.local_blocks, change.size - 1) | 1
    sd = MAD_TO_SD * median_filter(change, size, mode="reflect")
    change = np.where(sd > 0.0, np.minimum(change, C.clip_sd * sd), change)
    if cuts.size:
        change[cuts - 1] = sqrt(np.mean(np.delete(change, cuts - 1) ** 2))
    squares = _running_sums(change**2 / 2.0)
    at = np.arange(x.size)
    low, high = np.maximum(at - C.local_blocks, 0), np.minimum(at + C.local_blocks, x.size - 1)
    least = max(squares[-1] / (x.size - 1), (_TINY * np.ptp(x)) ** 2)
    return np.asarray(np.maximum((squares[high] - squares[low]) / (high - low), least))


def _running_sums(x: Floats) -> Floats:
    return np.concatenate([[0.0], np.cumsum(x)])
