"""The cuts of one series: proposed by exact segmentation, then tested until noise explains none that is left.

Method:  Cuts are proposed by optimal partitioning with pruning (`ruptures.KernelCPD`; Killick et al. 2012,
         doi:10.1080/01621459.2012.737745) under the energy of each segment (Szekely and Rizzo 2013,
         doi:10.1016/j.jspi.2013.03.018). A cut must gain an area, rows times height, that grows with the
         noise and the range of the series. The test of a cut is its largest contrast over all lengths that
         fit between its neighbours (`noise`). In m blocks of normal noise it stays below
         sqrt(2 ln(m / rate)) at all places with probability 1 - rate, however cuts are proposed.
Assumes: the noise is alike throughout a series, up to its size. A slow drift comes out as stairs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import exp, inf, log, log10, sqrt

import numpy as np
from numpy.typing import NDArray

from detectors.minimum_effect import MAD_TO_SD, most_probable, smallest_steps
from detectors.offline.noise import C, Noise, blocks, resolution
from soak.core.model import Series

Floats = NDArray[np.float64]

_AREA_SECONDS = 240.0  # length of the rows that `price_rows` counts
_PROPOSED_RATIO = 1.005  # a smaller step is not proposed
_FAR_SD = 2.0  # beyond the levels; a normal row is there once in twenty
_CLEAR_SD = 10.0  # a step of so many standard deviations is dated exactly
_GUARDED_BLOCKS = 3  # on both sides, so that one may be left out of the levels
_MAX_LOG = 700.0


@dataclass(frozen=True, slots=True)
class Cut:
    """A step at row `at` of its series, between `first` and `last`, with the levels on both sides.

    `strength` is its contrast in standard deviations of normal noise.
    """

    at: int
    first: int
    last: int
    before: float
    after: float
    strength: float

    @property
    def is_up(self) -> bool:
        return self.after > self.before

    def chance(self, places: int) -> float:
        """Return the most likely number of cuts as clear as this in noise with so many places."""
        return places * exp(-(self.strength**2) / 2.0)


@dataclass(frozen=True, slots=True, eq=False)
class Track:
    """A series prepared for the search: values on its scale `y`, shape (n,), and in m blocks of `rows`."""

    series: Series
    ratio: float  # of the smallest step
    least_change: float  # the same in the unit of the series; the larger of both counts
    is_log: bool
    y: Floats
    step: float  # resolution of y
    rows: int
    block_seconds: float
    means: Floats
    levels: Floats  # the means without what is too short for a level
    noise: Noise

    @property
    def spacing(self) -> int:
        """Return the distance of two rows in the unit of the series' k."""
        return _spacing(self.series)

    def cuts(self, rate: float) -> list[Cut]:
        """Return the cuts in order, of which noise has any with probability `rate`."""
        threshold = _threshold(self.means.size, rate)
        if self.noise.largest < threshold:
            return []
        proposed = _proposed(self)
        places = _settled(self, proposed, threshold)
        if not places:
            return []
        known = self.without(places)
        ends = [0, *_settled(known, proposed, threshold), self.means.size]
        return [_cut(known, *three) for three in zip(ends, ends[1:], ends[2:], strict=False)]

    def without(self, cuts: list[int]) -> Track:
        """Return the series with its noise learnt between these cuts."""
        return replace(self, noise=Noise(self.levels, self.rows, self.step, cuts))

    def cut_at(self, row: int, cuts: list[Cut], rate: float) -> Cut | None:
        """Return the cut near a given row, between the cuts of the series; None if noise explains it."""
        m = self.means.size
        at = round(row / self.rows)
        edges = [round(cut.at / self.rows) for cut in cuts]
        low = max((edge for edge in edges if edge < at), default=0)
        high = min((edge for edge in edges if edge >= at), default=m)
        if min(at - low, high - at) < C.level_blocks:
            return None
        if _share(self, low, at, high, _threshold(self.noise.contrasts_a_place, rate)) < 1.0:
            return None
        return _cut(self, low, at, high)


def track_of(
    series: Series, *, is_log: bool, unit_seconds: float, ratio: float, least_change: float
) -> Track | None:
    """Return a series as it is searched; None when it is too short or constant.

    The scale is linear, whatever is asked for, when a value is not above zero: it has no logarithm.
    """
    values = series.values
    if values.size < 2 * C.level_blocks or values.min() == values.max():
        return None
    is_log = is_log and float(values.min()) > 0.0
    y = np.log10(values) if is_log else values
    seconds = _spacing(series) * unit_seconds
    rows = max(1, min(round(C.block_seconds / seconds), values.size // C.fewest_blocks))
    step = resolution(y, values)
    means, levels = blocks(y, rows, step)
    noise = Noise(levels, rows, step)
    block_seconds = rows * seconds
    return Track(
        series, ratio, least_change, is_log, y, step, rows, block_seconds, means, levels, noise
    )


def _spacing(series: Series) -> int:
    return max(1, int(np.median(np.diff(series.k))))


def _threshold(places: int, rate: float) -> float:
    return C.normal_excess * sqrt(2.0 * log(places / rate))


def _levels(track: Track, low: int, at: int, high: int) -> tuple[float, float]:
    """Return the levels of the blocks before and after block `at`, in the unit of the series."""
    before, after = track.noise.means(low, at, high)
    return (10.0**before, 10.0**after) if track.is_log else (before, after)


def _share(track: Track, low: int, at: int, high: int, threshold: float) -> float:
    """Return how much of what it needs the cut at block `at` has between its neighbours; 1 is enough."""
    sizes = smallest_steps(*_levels(track, low, at, high), track.ratio, track.least_change)
    return min(track.noise.strength(low, at, high) / threshold, sizes)


def _cut(track: Track, low: int, at: int, high: int) -> Cut:
    rows, values = track.rows, track.series.values
    start, stop = low * rows, values.size if high == track.means.size else high * rows
    row, first, last = _dated(track.y, start, at * rows, stop, rows, track.noise.block_sd(at))
    before, after = float(np.median(values[start:row])), float(np.median(values[row:stop]))
    levels = _levels(track, low, at, high)
    if (after - before) * (levels[1] - levels[0]) <= 0.0:  # rounded: most rows are the same
        before, after = levels
    strength = track.noise.strength(low, at, high) / C.normal_excess
    return Cut(row, first, last, before, after, strength)


def _settled(track: Track, places: list[int], threshold: float) -> list[int]:
    """Return the places that are left when the weakest is dropped until none is too weak."""
    ends = [0, *places, track.means.size]

    def share(place: int) -> float:
        low, at, high = ends[place - 1 : place + 2]
        return _share(track, low, at, high, threshold)

    shares = [inf, *(share(place) for place in range(1, len(ends) - 1)), inf]
    while (weakest := int(np.argmin(shares))) and shares[weakest] < 1.0:
        del ends[weakest], shares[weakest]
        for place in (weakest - 1, weakest):
            if 0 < place < len(ends) - 1:
                shares[place] = share(place)
    return ends[1:-1]


def _proposed(track: Track) -> list[int]:
    """Return the blocks at which a cut gains its price, found in overlapping pieces."""
    from ruptures import KernelCPD  # noqa: PLC0415  # takes a second: only where there is something to find

    y, size = track.means, C.piece_blocks
    if y.min() == y.max():
        return []
    features, width = _features(y)
    least = log10(_PROPOSED_RATIO)
    if not track.is_log:
        least = (_PROPOSED_RATIO - 1.0) * float(np.mean(np.abs(y)))
    typical = float(np.median(np.abs(np.diff(y)))) + least / 4.0
    seconds = min(track.block_seconds / _AREA_SECONDS, 1.0)
    price = C.price_rows * sqrt(seconds * typical / width)
    margin = size // 10 if y.size > size else 0  # the ends of a piece hide cuts near them
    found: set[int] = set()
    for first in range(0, max(y.size - 2 * margin, 1), size - 2 * margin):
        end = min(first + size, y.size)
        if end - first < 2 * C.level_blocks:
            continue
        model = KernelCPD("linear", min_size=C.level_blocks).fit(features[first:end])
        places = {first + int(place) for place in model.predict(pen=price)[:-1]}
        low, high = first + margin * (first > 0), end - margin * (end < y.size)
        found |= {place for place in places if low <= place <= high}
    return sorted(found)


def _features(y: Floats) -> tuple[Floats, float]:
    """Return the values as ramps between thresholds, and the width of their bulk, which is scaled to 1.

    The squared distance of two means of such rows is the area between two distributions. Thresholds lie
    evenly in the bulk of the values, and beyond it each twice as far from the one before.
    """
    low, high = np.quantile(y, [0.01, 0.99])
    if high <= low:
        low, high = y.min(), y.max()
    width = float(high - low)
    scaled = (y - low) / width
    edges = list(np.linspace(0.0, 1.0, C.levels + 1))
    while edges[-1] < scaled.max():
        edges.append(edges[-1] + 2.0 * (edges[-1] - edges[-2]))
    while edges[0] > scaled.min():
        edges.insert(0, edges[0] - 2.0 * (edges[1] - edges[0]))
    widths = np.diff(edges)
    ramps = np.clip((np.array(edges[1:]) - scaled[:, np.newaxis]) / widths, 0.0, 1.0)
    return ramps * np.sqrt(widths), width


# --- When a step began: its likeliest row, and the rows that hold its onset with 95 % probability.
# Method:  every row near a cut has a normal log-likelihood ratio of the level after over the level before. An
# onset is as likely as the sum of the ratios from it on; the interval takes the likeliest rows first.
# Correlated rows are counted as fewer independent ones, in proportion to the variance of block means. A row
# far beyond both levels counts as two standard deviations beyond.
# Assumes: one step between the given rows, and equal noise on both sides of it.


def _dated(
    y: Floats, low: int, at: int, high: int, rows: int, block_sd: float
) -> tuple[int, int, int]:
    """Return the likeliest first row of a new level, and the first and last row of its interval.

    The step near row `at` is the only one in rows `low` to `high` of a series.
    `block_sd` is the standard deviation of the mean of `rows` rows, in the unit of `y`.
    """
    start, stop = max(low, at - C.local_blocks * rows), min(high, at + C.local_blocks * rows)
    before, after, sd = _levels_around(y, start, at, stop, rows)
    # rows for which one independent row would stand
    alike = max(1.0, rows * (block_sd / sd) ** 2)
    least, most = min(before, after) - _FAR_SD * sd, max(before, after) + _FAR_SD * sd
    near = np.clip(y[start:stop], least, most) - (before + after) / 2.0
    ratios = (after - before) * near / sd**2 / alike
    likelihoods = -np.cumsum(ratios)[:-1]  # of an onset in row start + 1, start + 2, ...
    weights = np.exp(np.maximum(likelihoods - likelihoods.max(), -_MAX_LOG))
    first, last = most_probable(weights)
    row = start + 1
    return row + int(np.argmax(weights)), row + first, row + last


def _levels_around(
    y: Floats, start: int, at: int, stop: int, rows: int
) -> tuple[float, float, float]:
    """Return the levels before and after row `at`, and the standard deviation of a row around them."""
    is_long = min(at - start, stop - at) > _GUARDED_BLOCKS * rows
    guard = rows if is_long else 0  # rows of the block with the cut may be of either level
    left, right = y[start : at - guard], y[at + guard : stop]
    before, after = float(np.median(left)), float(np.median(right))
    if before == after:  # rounded: most rows are the same
        before, after = float(left.mean()), float(right.mean())
    distances = np.abs(np.concatenate([left - before, right - after]))
    sd = MAD_TO_SD * float(np.median(distances))
    return before, after, max(sd, abs(after - before) / _CLEAR_SD)
