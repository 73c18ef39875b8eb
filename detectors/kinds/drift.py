"""Drift: a level that rises or falls steadily over half an hour to six hours.

Method:  medians of minutes (of ten minutes beyond the last hour) in windows of 30 and 60 minutes, 3 and 6
         hours: Kendall's test with correlated residuals, slope by Theil and Sen (`_trend`). Reported when
         three minutes in a row pass the threshold, the line rises by the smallest step, and no single step
         would explain it as well.
Assumes: a window about as long as the drift, or shorter. A day's rhythm above the smallest step is drift.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import erfc, log, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from detectors.kinds.recent_rows import COARSE, MINUTE, Block, Recent, median
from detectors.minimum_effect import Config, ended, is_back
from soak.core.model import Change, Series

# --- Whether levels in order rise or fall steadily, and not by one step.
# Kendall's test (1945, doi:10.1093/biomet/33.3.239) with a variance enlarged for correlated residuals (after
# Hamed and Rao 1998, doi:10.1016/S0022-1694(97)00125-X), the slope by Theil and Sen.

_MOST_LINE = 0.7  # squares about the line over those about the best single step
_FAR = 37.0  # standard deviations from which on erfc is 0
_MOST_PLACES = 64  # numbers of levels whose pairs are remembered; a window has at most 60


@dataclass(frozen=True, slots=True)
class Trend:
    """A line through levels, on their own scale, at the first and at the last of them."""

    before: float
    after: float
    surprise: float  # -ln of the chance that so clear an order comes without a trend
    clearness: float  # share of the squares about the best single step that the line does away with


def judged(at: NDArray[np.int64], y: NDArray[np.float64]) -> Trend | None:
    """Return the trend of levels `y` at places `at`, ascending; None when a step tells them as well."""
    n = y.size
    first, second = _pairs(n)
    rises = y[second] - y[first]
    order = float(np.sign(rises).sum())
    slope = median(rises / (at[second] - at[first]))
    rest = y - slope * at
    level = median(rest)
    rest -= level
    ends = level + slope * float(at[0]), level + slope * float(at[-1])
    line, step = float((rest**2).sum()), _best_step(y)
    if line > _MOST_LINE * step:
        return None
    variance = n * (n - 1) * (2 * n + 5) / 18.0 * _memory(at, y, ends[1] - ends[0])
    z = max(0.0, abs(order) - 1.0) / sqrt(variance)
    surprise = -log(erfc(z / sqrt(2.0))) if z < _FAR else z * z / 2.0
    return Trend(*ends, surprise, 1.0 - line / step if step > 0.0 else 0.0)


@lru_cache(maxsize=_MOST_PLACES)
def _pairs(n: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the places of all pairs of `n` levels: first and second of each, shape (n * (n - 1) / 2,)."""
    first, second = np.triu_indices(n, 1)
    first.flags.writeable = second.flags.writeable = False  # all callers share them
    return first, second


def _best_step(y: NDArray[np.float64]) -> float:
    """Return the least sum of squares about two means, the first up to some row, the second from there."""
    sums = np.cumsum(y - y.mean())[:-1]
    before = np.arange(1, y.size)
    gained = sums**2 * (1.0 / before + 1.0 / (y.size - before))
    return float(((y - y.mean()) ** 2).sum() - gained.max())


_STRAIGHT = (
    0.01  # of the rise: what differs by less from a smooth curve is noise for itself, or rounding
)


def _memory(at: NDArray[np.int64], y: NDArray[np.float64], rise: float) -> float:
    """Return by how much correlation of neighbours enlarges the variance of sums, at least 1.

    From squared differences of what a parabola leaves, over one and two levels: of an AR(1) the second are
    1 + correlation times the first. Both get that of independent noise of `_STRAIGHT` of the rise: the rest
    of a bend would else be all that is left of a clean drift. Half a standard error is added, for it is a few
    levels' word.
    """
    x = (at - at[0]) / max(int(at[-1] - at[0]), 1)
    rest = y - np.polyval(np.polyfit(x, y, 2), x)
    least = 2.0 * (_STRAIGHT * rise) ** 2
    power = float(((rest[1:] - rest[:-1]) ** 2).mean()) + least
    if power <= 0.0:
        return 1.0
    raw = (float(((rest[2:] - rest[:-2]) ** 2).mean()) + least) / power - 1.0
    correlation = min(0.9, max(0.0, raw + 0.5 / sqrt(y.size)))
    return (1.0 + correlation) / (1.0 - correlation)


_FINE, _COARSE = (30, 60), (18, 36)  # blocks of a window
_LEAST_FILLED = 0.8
_CROSSINGS = 3
_LEVEL_BLOCKS = 5
_WHOLE = (30, 60, 120, 240, 480, 960)  # minutes of a window of the offline analysis
_MOST_LEVELS = 60


@dataclass(frozen=True, slots=True)
class _Seen:
    trend: Trend
    first_k: int
    length: int  # seconds


@dataclass(slots=True)
class Watch:
    """The drift of one series, as it comes."""

    crossings: int = 0
    standing: Change | None = None

    def minute_ended(self, series: str, k: int, recent: Recent, config: Config) -> list[Change]:
        """Return what the minutes up to second `k` say: a drift, its going on, or its end."""
        changes = self._gone(k, recent, config)
        seen = _clearest(recent, config)
        self.crossings = 0 if seen is None else self.crossings + 1
        if seen is None or self.crossings < _CROSSINGS:
            return changes
        change = _change(series, k, seen, config)
        old = self.standing
        if old is not None and _is_turned(old, change):
            changes.append(ended(old, k))
            self.standing = None
        if self.standing is None:
            self.standing = change
        elif _is_going_on(self.standing, change, config):
            self.standing = replace(self.standing, after=change.after)
        else:
            return changes
        return [*changes, self.standing]

    def _gone(self, k: int, recent: Recent, config: Config) -> list[Change]:
        change = self.standing
        if change is None or len(recent.fine) < _LEVEL_BLOCKS:
            return []
        level = config.unscaled(float(np.median([y for _, y in recent.fine[-_LEVEL_BLOCKS:]])))
        if not is_back(change, level, config.is_worth):
            return []
        self.standing = None
        return [ended(change, k)]

    def to_state(self) -> dict[str, Any]:
        """Return the state for JSON."""
        return {"crossings": self.crossings, "standing": self.standing and self.standing.to_row()}

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> Watch:
        """Return what `to_state` described, once through JSON."""
        return cls(state["crossings"], state["standing"] and Change.from_row(state["standing"]))


def _is_turned(standing: Change, change: Change) -> bool:
    """True when a drift goes the other way since; a longer window may still show what was before it."""
    return change.direction != standing.direction and change.onset_k > standing.onset_k


def _is_going_on(standing: Change, change: Change, config: Config) -> bool:
    """True when a drift went on in its direction by another smallest step."""
    further = "up" if change.after > standing.after else "down"
    is_worth = config.is_worth(standing.after, change.after)
    return is_worth and change.direction == standing.direction == further


def _clearest(recent: Recent, config: Config) -> _Seen | None:
    """Return the drift of the newest blocks that is the clearest of all windows."""
    found = []
    for blocks, lengths, seconds in (
        (recent.fine, _FINE, MINUTE),
        (recent.coarse, _COARSE, COARSE * MINUTE),
    ):
        for length in lengths:
            used = [one for one in blocks if one[0] > blocks[-1][0] - length]
            if len(used) >= _LEAST_FILLED * length:
                at, y = np.array([place for place, _ in used]), np.array([y for _, y in used])
                trend = _reported_trend(at, y, len(_FINE) + len(_COARSE), config)
                first_k, last_k = int(at[0]) * seconds, int(at[-1] + 1) * seconds
                found += [] if trend is None else [_Seen(trend, first_k, last_k - first_k)]
    return max(found, key=lambda one: one.trend.surprise, default=None)


def _reported_trend(
    at: NDArray[np.int64], y: NDArray[np.float64], windows: int, config: Config
) -> Trend | None:
    """Return the trend of levels when noise in so many windows seldom has one so clear, nor so large."""
    trend = judged(at, y)
    if trend is None or trend.surprise < config.threshold - log(MINUTE) + log(windows):
        return None
    is_large = config.is_worth(config.unscaled(trend.before), config.unscaled(trend.after))
    return trend if is_large else None


def _change(series: str, k: int, seen: _Seen, config: Config) -> Change:
    margin = seen.length // 4
    return Change(
        series=series,
        raised_k=k,
        onset_k=seen.first_k,
        interval=(max(0, seen.first_k - margin), min(k, seen.first_k + margin)),
        before=config.unscaled(seen.trend.before),
        after=config.unscaled(seen.trend.after),
        state="confirmed",
        confidence=config.confidence(seen.trend.surprise),
        kind="drift",
    )


def detect(series: Series, config: Config) -> list[Change]:
    """Return the drifts in order of time, none overlapping; those that follow each other are one."""
    if series.k.size == 0 or series.k[-1] - series.k[0] < (_WHOLE[0] - 1) * MINUTE:
        return []
    minutes = _minutes(series, config)
    found = [one for length in _WHOLE for one in _looked(minutes, length, config)]
    found.sort(
        key=lambda one: (
            -abs(one.trend.after - one.trend.before) * one.trend.clearness,
            one.first_k,
        )
    )
    kept: list[_Seen] = []
    for one in found:
        if all(_is_apart(one, other) for other in kept):
            kept.append(one)
    kept.sort(key=lambda one: one.first_k)
    changes: list[Change] = []
    for one in kept:
        change = _change(series.name, one.first_k + one.length, one, config)
        last = changes[-1] if changes else None
        is_going_on = last is not None and one.first_k <= last.raised_k + _WHOLE[0] * MINUTE
        if last is not None and is_going_on and last.direction == change.direction:
            changes[-1] = replace(last, after=change.after, raised_k=change.raised_k)
        else:
            changes.append(change)
    return changes


def _minutes(series: Series, config: Config) -> list[Block]:
    y = config.scaled(series.values)
    minute = series.k // MINUTE
    edges = np.flatnonzero(np.diff(minute)) + 1
    starts = np.concatenate([[0], edges])
    sizes = np.diff(np.append(starts, y.size))
    least = float(np.median(sizes)) / 2.0  # a series may have one row in ten seconds
    levels = zip(minute[starts].tolist(), _medians(y, starts).tolist(), sizes, strict=True)
    return [(place, level) for place, level, size in levels if size >= least]


def _medians(y: NDArray[np.float64], starts: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the median of each part of `y`; `starts`: where they begin, ascending from 0."""
    sizes = np.diff(np.append(starts, y.size))
    ordered = y[np.lexsort((y, np.repeat(np.arange(starts.size), sizes)))]
    middles: NDArray[np.float64] = (
        ordered[starts + (sizes - 1) // 2] + ordered[starts + sizes // 2]
    ) / 2.0
    return middles


def _looked(minutes: Sequence[Block], length: int, config: Config) -> Iterator[_Seen]:
    """Give the windows of so many minutes, a sixth of it apart, that hold a drift."""
    each = max(1, length // _MOST_LEVELS)
    places = np.array([place for place, _ in minutes])
    levels = np.array([y for _, y in minutes])
    for first in range(int(places[0]), int(places[-1]) - length + 2, length // 6):
        low, high = np.searchsorted(places, [first, first + length])
        if high - low < _LEAST_FILLED * length:
            continue
        block = places[low:high] // each
        starts = np.concatenate([[0], np.flatnonzero(np.diff(block)) + 1])
        y = _medians(levels[low:high], starts)
        trend = _reported_trend(block[starts], y, len(_WHOLE), config)
        if trend is not None:
            yield _Seen(trend, first * MINUTE, length * MINUTE)


def _is_apart(one: _Seen, other: _Seen) -> bool:
    return one.first_k >= other.first_k + other.length or other.first_k >= one.first_k + one.length
