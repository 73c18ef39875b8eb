"""Cuts that several series pay for together where none pays alone: short steps that all of them take.

Their features stand side by side, so what each would give for a cut adds up; what noise gives by chance adds
up too, and is part of the price. What is nearly a copy of another adds nothing: with C the correlations of
the series' changes from row to row, in sign, to the power of `_POWER`, their weights are those w with C w = 1
(the magnitude of a metric space: Leinster 2013, Documenta Mathematica 18). Two copies weigh as much as one,
and series that differ 1 each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from detectors import _energy, _partition
from detectors._cuts import settled
from detectors._events import Member

_POWER = 8
_SINGULAR = 1e-6  # of the largest eigenvalue
_MOST_ROWS = 300_000  # of all series in a piece: the search takes some 500 bytes each
_OVERLAP = 0.1  # of a piece, half of it told by the piece before


def with_shared(many: Sequence[Member], least_rows: int) -> list[Member]:
    """Return the members with the cuts that they pay for together too."""
    if len(many) < 2:  # noqa: PLR2004  # a pair
        return list(many)
    rows = 1 + max(int(member.places[-1]) for member in many)
    starts = _starts(many, rows, least_rows, max(_MOST_ROWS // len(many), 4 * least_rows))
    return [_with_cuts(member, starts) for member in many]


def _starts(many: Sequence[Member], rows: int, least_rows: int, piece: int) -> list[int]:
    """Return the common rows at which cuts pay, found in overlapping pieces of so many rows.

    Of what two pieces tell, each tells its half: the ends of a piece are no cuts, and hide what is near them.
    """
    shares = weights([member.track.y[_last(member, rows)] for member in many])
    margin = 0 if rows <= piece else max(1, int(_OVERLAP * piece) // 2)
    found: list[int] = []
    for first in range(0, max(rows - 2 * margin, 1), piece - 2 * margin):
        end = min(first + piece, rows)
        features, is_there = _features(many, shares, first, end)
        by_chance = sum(_by_chance(features[is_there[:, at], at]) for at in range(len(many)))
        starts = _partition.best(features, least_rows, by_chance, is_there)
        low, high = margin * (first > 0), piece - margin * (end < rows)
        found += [first + start for start in starts if low <= start < high]
    return found


def _features(
    many: Sequence[Member], shares: NDArray[np.float64], first: int, end: int
) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Return the weighed features of these common rows, shape (n, k, d), and which each has, (n, k)."""
    features = np.zeros((end - first, len(many), _energy.THRESHOLDS), np.float32)
    is_there = np.zeros(features.shape[:2], np.bool_)
    for at, (member, share) in enumerate(zip(many, shares, strict=True)):
        low, high = np.searchsorted(member.places, (first, end))
        rows = member.places[low:high] - first
        own = _energy.features(member.track.y, member.track.penalty, slice(low, high))
        features[rows, at], is_there[rows, at] = np.float32(sqrt(share)) * own, True
    return features, is_there


def _by_chance(features: NDArray[np.float32]) -> float:
    """Return what a cut anywhere in independent noise gives: half the squared distance of two rows."""
    change = np.diff(features, axis=0)
    return 0.5 * float(np.einsum("ij,ij->", change, change)) / max(len(change), 1)


def weights(many: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    """Return the weight of each series of equal length, shape (n,); 0 where nothing varies."""
    signs = np.sign(np.diff(np.array(many), axis=1))
    norms = np.sqrt((signs**2).sum(axis=1, keepdims=True))
    signs /= np.maximum(norms, 1.0)
    alike = (signs @ signs.T) ** _POWER
    found: NDArray[np.float64] = np.linalg.pinv(alike, rcond=_SINGULAR, hermitian=True).sum(axis=1)
    return np.maximum(found, 0.0)


def _last(member: Member, rows: int) -> NDArray[np.int64]:
    """Return the row of a member at or before each common row, or its first."""
    found = np.searchsorted(member.places, np.arange(rows), side="right") - 1
    return np.asarray(np.maximum(found, 0))


def _with_cuts(member: Member, starts: Sequence[int]) -> Member:
    """Return a member with the cuts at those common rows too at which it steps clearly."""
    own, least_rows = [cut.at for cut in member.cuts], member.track.least_rows
    rows = {int(np.searchsorted(member.places, start)) for start in starts}
    more = [row for row in rows if all(abs(row - at) >= least_rows for at in own)]
    if not more:
        return member
    return replace(member, cuts=settled(sorted([*own, *more]), member.track))
