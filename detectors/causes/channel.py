"""How one channel changed around one onset: by how much, in which direction, when, and whether that is usual.

Method:  Cliff's delta of up to 60 values before and after the interval of the onset says whether there is a
         change, of few values more of it than chance gives. A least-squares split dates it, with the interval
         of its likelihood, widened by the lag-1 correlation of the noise: on logarithms that are cut at the
         medians before and after, or on ranks where these alone have it at the onset, as of a climb. How
         much neighbouring medians differed at earlier places of the channel says whether such changes are
         usual there; one that moved before as it moves on after does not begin at the onset. So neither unit
         nor outliers matter.
Assumes: one change of the channel within these two minutes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import log, sqrt

import numpy as np
from numpy.typing import NDArray

from detectors.nearby import Nearby, between, when
from soak.core import wording
from soak.core.model import Change, Evidence, Series
from soak.core.series import parse_series

VALUES = 60  # looked at on either side
LEAST_VALUES = 6
LEAD = 3  # values that a channel may come before what it costs
LATE = 2  # or be reported after it: polled once a second
CLEAR = 0.6  # Cliff's delta: of ten values after, eight are above those before
_SIGMAS = 2.4  # of the delta of two samples that do not differ: what few values must exceed
_FEWEST, _FEWEST_SECONDS = 3, 15  # values after the onset, where they are far apart
WIDEST = 3  # values from the onset that its interval may reach, or it would catch any change
SAME_RATIO = 1.15  # a ratio below is no change, however clear
_DROP = 2.0  # in log likelihood: 95 % of one degree of freedom
_FLOORS = {"seconds": 1e-4, "bytes": 65536.0, "messages": 1.0, "ratio": 0.01}
_FLOOR = 1e-3
_SHORT = 20  # values on either side of an earlier place
_LEAST_PLACES = 100
_BY_SLOPE = 0.5  # of the change
USUAL = 0.1  # of the earlier places, that show as large a contrast


@dataclass(frozen=True, slots=True)
class Shift:
    """Medians of a channel before and after an onset, and where its own change lies."""

    series: str
    before: float
    after: float
    delta: float  # Cliff's, -1 to 1
    onset_k: int
    is_at_onset: bool
    is_usual: bool = False  # it changes as much at one in ten earlier places
    clear: float = CLEAR  # the least delta of a change
    is_sparse: bool = False  # too few values to say that nothing changed
    usual_ratio: float = (
        0.0  # of the earlier places, that show as large a change; 0 where too few are known
    )
    is_gradual: bool = False  # it moved before the onset as it moves on after it

    @property
    def ratio(self) -> float:
        """Return after over before, both kept from zero by the least that matters of the unit."""
        floor = floor_of(self.series)
        return max(self.after, floor) / max(self.before, floor)

    @property
    def rise(self) -> float:
        return self.after - self.before

    @property
    def is_calm(self) -> bool:
        """True when there is hardly any change, at whatever time."""
        return abs(self.delta) < self.clear or 1.0 / SAME_RATIO < self.ratio < SAME_RATIO

    @property
    def is_higher(self) -> bool:
        """True when it rose, at whatever time."""
        return self.delta >= self.clear and self.ratio >= SAME_RATIO

    @property
    def _begins_at_onset(self) -> bool:
        return self.is_at_onset and not self.is_usual and not self.is_gradual

    @property
    def has_risen(self) -> bool:
        return self._begins_at_onset and self.is_higher

    @property
    def has_fallen(self) -> bool:
        is_lower = self.delta <= -self.clear and self.ratio <= 1.0 / SAME_RATIO
        return self._begins_at_onset and is_lower

    def has_risen_with(self, change: Change) -> bool:
        """True also anywhere in a wide interval of the onset: for what is a part of the latency itself."""
        return self.is_higher and (self.is_at_onset or self.has_risen_within(*change.interval))

    def has_risen_within(self, first: int, last: int) -> bool:
        """True when it rose in these seconds, both included, or as close to them as to an onset."""
        return self.is_higher and first - LEAD <= self.onset_k <= last + LATE

    def label(self, key: str) -> str:
        return parse_series(self.series).label(key)

    @property
    def metric(self) -> str:
        return parse_series(self.series).metric

    def share(self, change: Change) -> float:
        """Return how much of a step it can account for: by its ratio, or by its own seconds, the larger.

        Time spent a second is none of a message's: half a second of it would account for any step.
        """
        floor = _FLOORS["seconds"]
        step = log(max(change.after, floor) / max(change.before, floor))
        found = [log(self.ratio) / step] if step > 0.0 else []
        if parse_series(self.series).unit == "seconds":
            found.append(self.added(change))
        return max(0.0, min(1.0, max(found, default=0.0)))

    def added(self, change: Change) -> float:
        """Return the share of a step that a channel in seconds adds to it."""
        step = change.after - change.before
        return self.rise / step if step > 0.0 else 0.0

    def evidence(self, change: Change) -> Evidence:
        """Return the shift as a sentence that stands alone."""
        before, after = (wording.amount_of(self.series, v) for v in (self.before, self.after))
        numbers: dict[str, float | int | str] = {
            "series": self.series,
            "before": self.before,
            "after": self.after,
        }
        return Evidence(
            f"{wording.title_with_source(self.series)} went from {before} to {after}, "
            f"{when(self.onset_k - change.onset_k)}.",
            {**numbers, "onset_k": self.onset_k},
        )


def floor_of(series: str) -> float:
    """Return the least value of a channel that matters, by its unit."""
    return _FLOORS.get(parse_series(series).unit, _FLOOR)


def shift_of(series: Series, change: Change, nearby: Nearby) -> Shift | None:
    """Return what a channel did around an onset; None when too few of its values are known."""
    spacing = spacing_of(series)
    lag = round(nearby.lag_seconds.get(series.name, 0.0))
    high = change.interval[1]
    first, last = near(change, lag, spacing)
    start = start_of(change, nearby, spacing)
    stop = min(end_of(change, nearby), high + lag + VALUES * spacing)
    before = between(series, start, first)
    after = between(series, max(high, first) + lag, stop)
    is_sparse = after.size < LEAST_VALUES
    least = _FEWEST if spacing * after.size >= _FEWEST_SECONDS else LEAST_VALUES
    if before.size < LEAST_VALUES or after.size < least:
        return None
    low, end = np.searchsorted(series.k, [start, stop])
    was, became = float(np.median(before)), float(np.median(after))
    k, values = series.k[low:end], series.values[low:end]
    spans = [
        _dated(k, y) for y in (_way(values, was, became, floor_of(series.name)), mid_ranks(values))
    ]
    at_onset = [one for one in spans if one[0][0] <= last and one[0][1] >= first]
    _, onset_k = (at_onset or spans)[0]
    delta = _delta(before, after)
    is_at_onset = bool(at_onset)
    clear = _least_delta(before.size, after.size)
    usual = _usual_ratio(series, first, after) if abs(delta) >= clear else 0.0
    is_usual = is_at_onset and usual > USUAL
    gap = (max(high, first) + lag - first) / spacing
    is_gradual = is_at_onset and _is_gradual(before, after, gap, floor_of(series.name))
    return Shift(
        *(series.name, was, became, delta, onset_k, is_at_onset, is_usual, clear, is_sparse),
        *(usual, is_gradual),
    )


def near(change: Change, lag_seconds: float = 0.0, spacing: int = 1) -> tuple[int, int]:
    """Return the seconds, both included, in which something is at the onset."""
    (low, high), onset, widest = change.interval, change.onset_k, WIDEST * spacing
    first = max(low, onset - widest) - LEAD * spacing
    return first, min(high, onset + widest) + LATE * spacing + round(lag_seconds)


def end_of(change: Change, nearby: Nearby) -> int:
    """Return the end of the seconds that show the new level, excluded: the next step is another one's."""
    later = [
        one.onset_k
        for one in nearby.changes
        if one.series == change.series and one.onset_k > change.interval[1]
    ]
    end = min([nearby.soak_end(change.onset_k), *later])
    if change.resolved_k is None:
        return end
    return min(end, max(change.resolved_k, change.interval[1] + 1))


def recovered_k(change: Change, nearby: Nearby) -> int | None:
    """Return the second in which the latency of a change came back, or `resolved_k` where none is found.

    That it is over is known only some time later, and in between everything else is calm again, too.
    """
    series = nearby.series.get(change.series)
    first = change.interval[1]
    stop = min(end_of(change, nearby), first + VALUES)
    if series is None or change.kind == "spikes":
        return change.resolved_k
    low, end = np.searchsorted(series.k, [first, stop])
    k, values = series.k[low:end], series.values[low:end]
    if k.size < 2 * LEAST_VALUES:
        return change.resolved_k
    _, at = _dated(k, mid_ranks(values))
    high, back = values[k < at], values[k >= at]
    if min(high.size, back.size) < LEAST_VALUES:
        return change.resolved_k
    delta = _delta(back, high)
    middle = sqrt(max(change.before, 0.0) * max(change.after, 0.0))
    is_back = change.before <= change.after and float(np.median(back)) < middle
    return at if is_back and delta >= CLEAR else change.resolved_k


def start_of(change: Change, nearby: Nearby, spacing: int = 1) -> int:
    """Return the first of the seconds before the onset that are looked at."""
    return max(change.interval[0] - VALUES * spacing, nearby.soak_start(change.onset_k))


def spacing_of(series: Series) -> int:
    """Return the usual distance of two values in seconds, at least 1."""
    return max(1, int(np.median(np.diff(series.k)))) if series.k.size > 1 else 1


def risen(found: Iterable[Shift], least_ratio: float = SAME_RATIO) -> Shift | None:
    """Return the one that rose most at the onset, or None."""
    up = [one for one in found if one.has_risen and one.ratio >= least_ratio]
    return max(up, key=lambda one: (one.ratio, one.series), default=None)


def are_calm(found: Iterable[Shift]) -> bool:
    """True when there are some, and none of them rose at any time."""
    known = [one for one in found if not one.is_sparse or not one.is_calm]
    return bool(known) and all(one.is_calm or one.delta < 0.0 for one in known)


def _delta(base: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    """Return Cliff's delta of two samples: 1 where all of the other are higher, -1 where all are lower."""
    return float(np.sign(other[:, None] - base[None, :]).mean())


def _least_delta(n: int, m: int) -> float:
    """Return the least delta of samples of these sizes that do differ."""
    return max(CLEAR, _SIGMAS * sqrt((n + m + 1) / (3.0 * n * m)))


def _is_gradual(
    before: NDArray[np.float64], after: NDArray[np.float64], gap: float, floor: float
) -> bool:
    """True for what moved before the onset and moves on after it, so that a split of it lies anywhere.

    Of as many values on either side, `gap` values apart, the halves differ, that way on both sides, and the
    slope before alone makes half of the change.
    """
    n = min(before.size, after.size)
    half, near_before, near_after = n // 2, before[-n:], after[:n]
    if half < LEAST_VALUES:
        return False
    least = _least_delta(half, half)
    moved = _delta(near_before[:half], near_before[-half:])
    moves = _delta(near_after[:half], near_after[-half:])
    if abs(moved) < least or moves * moved < 0.0 or abs(moves) < least:
        return False
    sides = near_before[:half], near_before[-half:], near_before, near_after
    first, second, was, became = (log(max(float(np.median(one)), floor)) for one in sides)
    expected = (second - first) * (n + gap) / half
    return expected * (became - was) > 0.0 and abs(expected) >= _BY_SLOPE * abs(became - was)


def mid_ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return mid-ranks about zero: equal values share theirs."""
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    middle = np.cumsum(count) - 0.5 * count
    return np.asarray(middle[place] - 0.5 * values.size, dtype=np.float64)


def _usual_ratio(series: Series, first: int, after: NDArray[np.float64]) -> float:
    """Return the share of earlier places where neighbouring medians differed as much, that way."""
    earlier = series.values[series.k < first]
    n = min(_SHORT, after.size)
    if earlier.size - 2 * n < _LEAST_PLACES:
        return 0.0
    values = np.concatenate([earlier, after[:n]])
    medians = np.median(np.lib.stride_tricks.sliding_window_view(values, n), axis=1)
    y = np.log(np.maximum(medians, floor_of(series.name)))
    contrast = y[n:] - y[:-n]
    sign = 1.0 if contrast[-1] >= 0.0 else -1.0
    past = contrast[: earlier.size - 2 * n]
    return float(np.mean(sign * past >= sign * contrast[-1]))


def _way(
    values: NDArray[np.float64], was: float, became: float, floor: float
) -> NDArray[np.float64]:
    """Return how far each value is from one level to the other, on logarithms, about zero.

    A value beyond a level counts as that level: neither outliers nor a small change before weigh much.
    Mid-ranks where the levels are equal.
    """
    low, high = np.log(np.maximum(sorted((was, became)), floor))
    if high - low <= 0.0:
        return mid_ranks(values)
    y = (np.clip(np.log(np.maximum(values, floor)), low, high) - low) / (high - low)
    return np.asarray(y - y.mean(), dtype=np.float64)


def _dated(k: NDArray[np.int64], y: NDArray[np.float64]) -> tuple[tuple[int, int], int]:
    """Return the seconds that may hold a change with 95 %, and the most probable one; `y` sums to zero."""
    n = y.size
    sums, left = np.cumsum(y)[:-1], np.arange(1, n)
    gain = sums**2 / left + sums**2 / (n - left)
    best = int(np.argmax(gain))
    unexplained = np.maximum(float(y @ y) - gain, 1e-3 * n)
    ratio = 0.5 * n * np.log(unexplained / unexplained[best])
    means = sums[best] / (best + 1), -sums[best] / (n - best - 1)
    rest = y - np.where(np.arange(n) <= best, *means)
    energy = float(rest @ rest)
    rho = max(0.0, float(rest[1:] @ rest[:-1]) / energy) if energy > 0.0 else 0.0
    probable = np.flatnonzero(ratio * (1.0 - rho) / (1.0 + rho) <= _DROP)
    first, last = int(probable[0]), int(probable[-1])
    return (int(k[first]) + 1, int(k[last + 1])), int(k[best + 1])
