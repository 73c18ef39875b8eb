"""Did a channel change when latency did: both sides of the onset, and the channel's own onset.

Method:  Cliff's delta of up to 60 values before and after the step's interval says whether there is a
         change at all; a least-squares split of the ranks dates it, with the interval of its likelihood,
         widened by the noise's lag-1 correlation. Ranks, so neither unit nor outlier matters.
Assumes: one change of the channel within these two minutes; of two the larger is dated.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import log

import numpy as np
from numpy.typing import NDArray

from detectors import affected_brokers
from detectors.nearby import Nearby, between, when
from soak.core import wording
from soak.core.model import Change, Evidence, Series
from soak.core.series import parse_series

VALUES = 60  # looked at on either side
LEAST_VALUES = 6
LEAD = 3  # values that a channel may come before what it costs
LATE = 2  # or be told after it: polled once a second
CLEAR = 0.6  # Cliff's delta: of ten values after, eight are above those before
WIDEST = 3  # values from the onset that its interval may reach, or it would catch any change
_SAME = 1.15  # a ratio below is no change, however clear
_DROP = 2.0  # in log likelihood: 95 % of one degree of freedom
_FLOORS = {"seconds": 1e-4, "bytes": 65536.0, "messages": 1.0, "ratio": 0.01}
_FLOOR = 1e-3


@dataclass(frozen=True, slots=True)
class Move:
    """Medians of a channel before and after a step, and where its own change lies."""

    series: str
    before: float
    after: float
    delta: float  # Cliff's, -1 to 1
    onset_k: int
    is_at_onset: bool

    @property
    def ratio(self) -> float:
        """Return after over before, both kept from zero by the least that matters of the unit."""
        floor = _FLOORS.get(parse_series(self.series).unit, _FLOOR)
        return max(self.after, floor) / max(self.before, floor)

    @property
    def is_calm(self) -> bool:
        """True when there is hardly any change, at whatever time."""
        return abs(self.delta) < CLEAR or 1.0 / _SAME < self.ratio < _SAME

    @property
    def has_risen(self) -> bool:
        return self.is_at_onset and self._is_higher

    def has_risen_with(self, change: Change) -> bool:
        """True also anywhere in a wide interval of the onset: for what is a part of the latency itself."""
        low, high = change.interval
        return self._is_higher and (self.is_at_onset or low - LEAD <= self.onset_k <= high + LATE)

    @property
    def _is_higher(self) -> bool:
        return self.delta >= CLEAR and self.ratio >= _SAME

    @property
    def has_fallen(self) -> bool:
        return self.is_at_onset and self.delta <= -CLEAR and self.ratio <= 1.0 / _SAME

    @property
    def label(self) -> dict[str, str]:
        return dict(parse_series(self.series).labels)


def near(change: Change, lag_seconds: float = 0.0, spacing: int = 1) -> tuple[int, int]:
    """Return the seconds, both included, in which something is at the onset."""
    (low, high), onset, widest = change.interval, change.onset_k, WIDEST * spacing
    first = max(low, onset - widest) - LEAD * spacing
    return first, min(high, onset + widest) + LATE * spacing + round(lag_seconds)


def move(series: Series, change: Change, nearby: Nearby) -> Move | None:
    """Return what a channel did around a step; None when too few of its values are known."""
    spacing = spacing_of(series)
    lag = round(nearby.lag_seconds.get(series.name, 0.0))
    high = change.interval[1]
    first, last = near(change, lag, spacing)
    start = start_of(change, nearby, spacing)
    stop = min(end_of(change, nearby), high + lag + VALUES * spacing)
    before = between(series, start, first)
    after = between(series, max(high, first) + lag, stop)
    if min(before.size, after.size) < LEAST_VALUES:
        return None
    at = np.searchsorted(series.k, [start, stop])
    (earliest, latest), onset_k = _dated(series.k[at[0] : at[1]], series.values[at[0] : at[1]])
    return Move(
        series.name,
        float(np.median(before)),
        float(np.median(after)),
        float(np.sign(after[:, None] - before[None, :]).mean()),
        onset_k,
        earliest <= last and latest >= first,
    )


def moves(metric: str, change: Change, nearby: Nearby, **labels: str) -> list[Move]:
    """Return what the channels of a metric with these labels did."""
    return moves_in(nearby.named(metric), change, nearby, **labels)


def moves_like(pattern: re.Pattern[str], change: Change, nearby: Nearby) -> list[Move]:
    """Return what the channels did whose metric a pattern finds."""
    metrics = {
        name: series
        for name, series in nearby.series.items()
        if pattern.search(parse_series(name).metric)
    }
    return moves_in(metrics, change, nearby)


def moves_in(
    named: Mapping[str, Series], change: Change, nearby: Nearby, **labels: str
) -> list[Move]:
    """Return what these channels did, without those of brokers that the step is not about."""
    wanted = {
        name: series
        for name, series in named.items()
        if labels.items() <= dict(parse_series(name).labels).items()
    }
    if not wanted:
        return []
    untouched = affected_brokers.untouched(wanted, change, nearby)
    found = (
        move(series, change, nearby) for name, series in wanted.items() if name not in untouched
    )
    return [one for one in found if one is not None]


def risen(found: Iterable[Move], least_ratio: float = _SAME) -> Move | None:
    """Return the one that rose most at the onset, or None."""
    up = [one for one in found if one.has_risen and one.ratio >= least_ratio]
    return max(up, key=lambda one: (one.ratio, one.series), default=None)


def are_calm(found: Iterable[Move]) -> bool:
    """True when there are some, and none of them rose at any time."""
    known = list(found)
    return bool(known) and all(one.is_calm or one.delta < 0.0 for one in known)


def share(one: Move, change: Change) -> float:
    """Return how much of a step a channel can account for: by its ratio, or by its own seconds.

    Time spent a second is none of a message's: half a second of it would account for any step.
    """
    floor = _FLOORS["seconds"]
    step = log(max(change.after, floor) / max(change.before, floor))
    found = [log(one.ratio) / step] if step > 0.0 else []
    if parse_series(one.series).unit == "seconds" and change.after > change.before:
        found.append((one.after - one.before) / (change.after - change.before))
    return max(0.0, min(1.0, max(found, default=0.0)))


def told(one: Move, change: Change) -> Evidence:
    """Return a move as a sentence that stands alone."""
    before, after = (wording.amount_of(one.series, value) for value in (one.before, one.after))
    return Evidence(
        f"{wording.title_with_source(one.series)} went from {before} to {after}, "
        f"{when(one.onset_k - change.onset_k)} of the step.",
        {
            "series": one.series,
            "before": one.before,
            "after": one.after,
            "onset_k": one.onset_k,
        },
    )


def end_of(change: Change, nearby: Nearby) -> int:
    """Return the end of the seconds that show the new level, excluded: the next step is another one's."""
    later = [
        one.onset_k
        for one in nearby.changes
        if one.series == change.series and one.onset_k > change.interval[1]
    ]
    end = min([nearby.soak_end(change.onset_k), *later])
    return (
        end
        if change.resolved_k is None
        else min(end, max(change.resolved_k, change.interval[1] + 1))
    )


def start_of(change: Change, nearby: Nearby, spacing: int = 1) -> int:
    """Return the first of the seconds before the onset that are looked at."""
    return max(change.interval[0] - VALUES * spacing, nearby.soak_start(change.onset_k))


def spacing_of(series: Series) -> int:
    """Return the usual distance of two values in seconds, at least 1."""
    return max(1, int(np.median(np.diff(series.k)))) if series.k.size > 1 else 1


def _dated(k: NDArray[np.int64], values: NDArray[np.float64]) -> tuple[tuple[int, int], int]:
    """Return the seconds that may hold the change with 95 %, and the most probable one."""
    n = values.size
    ranks = mid_ranks(values)
    sums, left = np.cumsum(ranks)[:-1], np.arange(1, n)
    gain = sums**2 / left + sums**2 / (n - left)  # the ranks sum to zero
    best = int(np.argmax(gain))
    unexplained = np.maximum(float(ranks @ ranks) - gain, 1e-3 * n)
    ratio = 0.5 * n * np.log(unexplained / unexplained[best])
    means = sums[best] / (best + 1), -sums[best] / (n - best - 1)
    rest = ranks - np.where(np.arange(n) <= best, *means)
    energy = float(rest @ rest)
    rho = max(0.0, float(rest[1:] @ rest[:-1]) / energy) if energy > 0.0 else 0.0
    probable = np.flatnonzero(ratio * (1.0 - rho) / (1.0 + rho) <= _DROP)
    first, last = int(probable[0]), int(probable[-1])
    return (int(k[first]) + 1, int(k[last + 1])), int(k[best + 1])


def mid_ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return mid-ranks about zero: equal values share theirs."""
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    middle = np.cumsum(count) - 0.5 * count
    return np.asarray(middle[place] - 0.5 * values.size, dtype=np.float64)
