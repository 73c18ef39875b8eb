"""Which cuts of several series are one event: those whose onsets cannot be told apart.

Clearest first, a cut joins the nearest event that it may share its onset with and to which neither series
has a nearer cut, if both rise or both fall, or begins an event. A series without a cut there moved too when
the rows on both sides of the onset show a quarter of what a cut needs.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from detectors import _cuts, _partition
from detectors._cuts import Cut, Track, judged, settled

_BESIDE = 0.25  # of what a step needs is enough beside a clear one
_LATE_SECONDS = 1  # what begins within a second may show in the next, and then in the next row


@dataclass(frozen=True, slots=True, eq=False)
class Member:
    """A series with its cuts in order; `places`, shape (n,), are its rows among those common to all."""

    name: str
    track: Track
    places: NDArray[np.int64]
    cuts: Sequence[Cut]


@dataclass(frozen=True, slots=True)
class Shown:
    """What a member shows of an event; its onset lies at common row `at`, between `first` and `last`."""

    member: Member
    cut: Cut
    at: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Event:
    """What moved, clearest first, and the member whose cut leaves the least doubt of the onset."""

    shown: tuple[Shown, ...]
    dated: Shown


def events(many: Sequence[Member], k: NDArray[np.int64]) -> list[Event]:
    """Return the events in order of time; `k` are the seconds of the common rows.

    Onsets are one when no more than a row and `_LATE_SECONDS` lie between their intervals.
    """
    apart = int(np.median(np.diff(k))) + _LATE_SECONDS
    found: list[list[Shown]] = []
    every = [_shown(member, cut) for member in many for cut in member.cuts]
    for one in sorted(every, key=_clearest):
        near = [group for group in found if _may_join(one, group, k, apart)]
        if near:
            min(near, key=lambda group: (abs(group[0].at - one.at), group[0].at)).append(one)
        else:
            found.append([one])
    return sorted((_event(many, group) for group in found), key=lambda event: event.dated.at)


def _event(many: Sequence[Member], group: Sequence[Shown]) -> Event:
    dated = min(group, key=lambda one: (one.last - one.first, _clearest(one)))
    beside = sorted(_beside(many, group, dated.at), key=_clearest)
    return Event((*group, *beside), dated)


def _clearest(one: Shown) -> tuple[float, int, str]:
    return -one.cut.strength, one.at, one.member.name


def _shown(member: Member, cut: Cut) -> Shown:
    """Return a cut among the common rows: behind a gap of its series, the onset may lie in the gap."""
    first = int(member.places[cut.first - 1]) + 1
    return Shown(member, cut, int(member.places[cut.at]), first, int(member.places[cut.last]))


def _may_join(one: Shown, group: Sequence[Shown], k: NDArray[np.int64], apart: int) -> bool:
    lead = group[0]
    if one.cut.is_up != lead.cut.is_up or any(other.member is one.member for other in group):
        return False
    if max(k[one.first] - k[lead.last], k[lead.first] - k[one.last]) > apart:
        return False
    return all(
        abs(int(this.member.places[cut.at]) - other.at) >= abs(one.at - lead.at)
        for this, other in ((one, lead), (lead, one))
        for cut in this.member.cuts
    )


def _beside(many: Sequence[Member], group: Sequence[Shown], at: int) -> Iterator[Shown]:
    """Give what the members show at common row `at` that have no cut of their own there, if they moved."""
    present = [one.member for one in group]
    for member in many:
        if any(member is other for other in present):
            continue
        cut = _moved(member, int(np.searchsorted(member.places, at)))
        if cut is not None and cut.is_up == group[0].cut.is_up:
            yield _shown(member, cut)


def _moved(member: Member, row: int) -> Cut | None:
    """Return a cut at a row as the series shows it between its own cuts; None if it did not move there."""
    after = bisect([cut.at for cut in member.cuts], row)
    earlier, later = member.cuts[:after], member.cuts[after:]
    if earlier and row - earlier[-1].at < member.track.least_rows:
        return None
    cut = judged(earlier, row, later[0].at if later else member.track.y.size, member.track)
    return cut if cut.strength >= _BESIDE else None


# --- Cuts that several series pay for together where none pays alone: short steps that all of them take.
# Their features stand side by side, so what each would give for a cut adds up; what noise gives by
# chance adds
# up too, and is part of the price. What is nearly a copy of another adds nothing: with C the correlations of
# the series' changes from row to row, in sign, to the power of `_POWER`, their weights are those w with
# C w = 1
# (the magnitude of a metric space: Leinster 2013, Documenta Mathematica 18). Two copies weigh as much as one,
# and series that differ 1 each.

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
    features = np.zeros((end - first, len(many), _cuts.THRESHOLDS), np.float32)
    is_there = np.zeros(features.shape[:2], np.bool_)
    for at, (member, share) in enumerate(zip(many, shares, strict=True)):
        low, high = np.searchsorted(member.places, (first, end))
        rows = member.places[low:high] - first
        own = _cuts.features(member.track.y, member.track.penalty, slice(low, high))
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
