"""Which cuts of several series are one event: those whose onsets cannot be told apart.

Clearest first, a cut joins the nearest event that it may share its onset with and to which neither series
has a nearer cut, if both rise or both fall, or begins an event. A series without a cut there moved too when
the rows on both sides of the onset show a quarter of what a cut needs.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from detectors._cuts import Cut, Track, judged

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
