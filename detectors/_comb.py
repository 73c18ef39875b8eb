"""Whether bursts keep a period: how many fall on the ticks of a comb, against chance.

Method:  combs through every pair of an early and a late burst; of those that have a burst at most ticks, the
         one with the rarest number of hits, by the binomial law of bursts that come at any time. Every comb
         tried costs its share.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, lgamma, log

import numpy as np
from numpy.typing import NDArray

LEAST_BURSTS = 6
EARLY_ROWS, EARLY_RATIO = 1.0, 0.02  # and of a period: by how much a burst may be early or late
_LEAST_ROWS = 6.0
_ENDS = 3  # bursts at either end that may be no part of the comb
_LEAST_FILLED = 0.75  # of the ticks
_MOST_CHANCE = 0.5  # of a burst to hit a tick by chance


@dataclass(frozen=True, slots=True)
class Comb:
    """A period in the unit of the times; `surprise`: -ln of the chance of one so sharp in random bursts."""

    period: float
    surprise: float
    hits: NDArray[np.bool_]  # which bursts are on its ticks
    tick: float  # the last of these


def judged(starts: NDArray[np.int64] | NDArray[np.float64]) -> Comb | None:
    """Return the sharpest comb of bursts, in rows and in order; None when there is none worth the name."""
    n = starts.size
    if n < LEAST_BURSTS:
        return None
    times = starts.astype(np.float64)
    first, periods, ticks = _candidates(times)
    width = EARLY_ROWS + EARLY_RATIO * periods
    chance = (2.0 * width + 1.0) / periods
    place = (times[np.newaxis] - times[first][:, np.newaxis]) / periods[:, np.newaxis]
    tick = np.round(place)
    hits = np.abs(place - tick) * periods[:, np.newaxis] <= width[:, np.newaxis]
    inside = hits & (tick >= 0) & (tick <= ticks[:, np.newaxis])
    twice = inside[:, 1:] & inside[:, :-1] & (tick[:, 1:] == tick[:, :-1])
    filled = inside.sum(axis=1) - twice.sum(axis=1)
    usable = (periods >= _LEAST_ROWS) & (chance <= _MOST_CHANCE) & (filled > _LEAST_FILLED * ticks)
    if not usable.any():
        return None
    counts = hits.sum(axis=1)
    surprise, at = max(
        (_rarity(int(counts[at]) - 2, n - 2, float(chance[at])), int(at))
        for at in np.flatnonzero(usable)
    )
    period, last = _fitted(times[hits[at]], float(periods[at]))
    return Comb(period, surprise - log(periods.size), hits[at], last)


def _candidates(
    times: NDArray[np.float64],
) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
    """Return the burst that each comb goes through, its period, and its ticks up to a late burst."""
    n = times.size
    found = [
        (i, (times[j] - times[i]) / ticks, ticks)
        for i in range(_ENDS)
        for j in range(n - _ENDS, n)
        if j - i >= LEAST_BURSTS - 1
        for ticks in range(round(0.6 * (j - i)), round(1.3 * (j - i)) + 1)
    ]
    first, periods, ticks = zip(*found, strict=True)
    return np.array(first, np.int64), np.array(periods), np.array(ticks, np.float64)


def _rarity(hits: int, of: int, chance: float) -> float:
    """Return -ln of the chance of so many hits or more."""
    terms = [
        lgamma(of + 1)
        - lgamma(k + 1)
        - lgamma(of - k + 1)
        + k * log(chance)
        + (of - k) * log(1.0 - chance)
        for k in range(max(0, hits), of + 1)
    ]
    top = max(terms)
    return -(top + log(sum(exp(term - top) for term in terms)))


def _fitted(times: NDArray[np.float64], period: float) -> tuple[float, float]:
    """Return the period and the last tick by least squares over the ticks that were hit."""
    tick = np.round((times - times[0]) / period)
    centred = tick - tick.mean()
    slope = float((centred * times).sum() / (centred**2).sum())
    return slope, float(times.mean()) + slope * float(centred[-1])
