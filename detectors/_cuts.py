"""Cuts of several series judged by the rows on both sides of them: which are kept, and where they lie."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from detectors._dating import Dated, dated
from detectors._energy import QUIET
from detectors._middle import middle

_NEAR_ROWS = 100  # on each side of a cut, to judge it from
_LEAST_RATIO = 20.0  # log likelihood ratio of a step, by the noise of the rows nearby
_LEAST_CONTRAST = 10.0  # and of two levels, by that of the whole series
_BESIDE = 0.25  # of both is enough for a series beside one that steps clearly


@dataclass(frozen=True, slots=True, eq=False)
class Track:
    """One series of n rows on the scale of the search, `y`, and in its unit, among N rows common to several.

    `rows`, shape (N,), is the first row of its own at or after each common row; `places`, shape (n,), the
    common row of each of its own.
    """

    y: NDArray[np.float64]
    values: NDArray[np.float64]
    rows: NDArray[np.int64]
    places: NDArray[np.int64]
    least_step: float  # in its unit
    least_ratio: float  # larger level over smaller
    wandering: float  # long-run sd of the noise, on the scale of the search


@dataclass(frozen=True, slots=True)
class Side:
    """What one series says of a cut: levels in its unit, and how far beyond what a step needs it is.

    `strength` is 1 where it just suffices, and below 0 where the step is smaller than the smallest.
    """

    track: int
    before: float
    after: float
    strength: float
    onset: Dated


@dataclass(frozen=True, slots=True)
class Cut:
    """A cut at common row `at`, between `first` and `last`; `sides` of those that step, clearest first."""

    at: int
    first: int
    last: int
    strength: float
    sides: tuple[Side, ...]


def settled(starts: Sequence[int], tracks: Sequence[Track], least_rows: int) -> list[Cut]:
    """Return the cuts that are left when the weakest is dropped until none is too weak, in order.

    Each is judged and dated between its neighbours, so it is judged again when one of them goes.
    """
    end = tracks[0].rows.size
    kept: list[Cut] = []
    for at, high in pairwise([*starts, end]):
        kept.append(_judged(kept, at, high, tracks, least_rows))
    while kept:
        weakest = min(range(len(kept)), key=lambda place: kept[place].strength)
        if kept[weakest].strength >= 1.0:
            break
        del kept[weakest]
        for place in range(max(weakest - 1, 0), min(weakest + 1, len(kept))):
            high = kept[place + 1].at if place + 1 < len(kept) else end
            kept[place] = _judged(kept[:place], kept[place].at, high, tracks, least_rows)
    return kept


def _judged(
    earlier: Sequence[Cut], at: int, high: int, tracks: Sequence[Track], least_rows: int
) -> Cut:
    """Return what all series say of a cut at common row `at`, after the earlier ones and before `high`."""
    sides = [
        side
        for place, track in enumerate(tracks)
        if (side := _side(place, track, earlier, (at, high), least_rows)) is not None
    ]
    sides.sort(key=lambda side: -side.strength)
    if not sides or sides[0].strength < 0.0:
        return Cut(at, at, at, sides[0].strength if sides else -1.0, ())
    places, onset = tracks[sides[0].track].places, sides[0].onset
    first, at, last = (int(places[row]) for row in (onset.first, onset.at, onset.last))
    beside = (side for side in sides[1:] if side.strength >= _BESIDE)
    return Cut(at, first, last, sides[0].strength, (sides[0], *beside))


def _side(
    place: int, track: Track, earlier: Sequence[Cut], bounds: tuple[int, int], least_rows: int
) -> Side | None:
    """Return what one series says, or None when it has too few rows there.

    A series that has none between two cuts is compared with what it was before the earlier one.
    """
    at = int(track.rows[bounds[0]])
    high = int(track.rows[bounds[1]]) if bounds[1] < track.rows.size else track.y.size
    lows = (int(track.rows[cut.at]) for cut in reversed(earlier))
    low = next((low for low in lows if at - low >= least_rows), 0)
    if min(at - low, high - at) < least_rows:
        return None
    before, after = middle(track.values[low:at]), middle(track.values[at:high])
    least = max(track.least_step, (track.least_ratio - 1.0) * min(abs(before), abs(after)))
    size = abs(after - before) / least if least > 0.0 else float(after != before)
    if size < 1.0:
        return Side(place, before, after, size - 1.0, Dated(at, at, at, 0.0))
    near, stop = max(low, at - _NEAR_ROWS), min(high, at + _NEAR_ROWS)
    found = dated(track.y[near:stop], at - near, least_rows, QUIET)
    strength = min(found.ratio / _LEAST_RATIO, _contrast(track, low, at, high) / _LEAST_CONTRAST)
    onset = Dated(near + found.at, near + found.first, near + found.last, found.ratio)
    return Side(place, before, after, strength, onset)


def _contrast(track: Track, low: int, at: int, high: int) -> float:
    """Return the log likelihood ratio of two levels in noise that wanders as it does in the whole series."""
    change = middle(track.y[at:high]) - middle(track.y[low:at])
    rows = (at - low) * (high - at) / (high - low)
    return rows * (change / max(track.wandering, QUIET)) ** 2 / 2.0
