"""Changes into incidents: one period in which users of the cluster were worse off is one incident.

It opens with the first rise, escalates and eases, and is resolved when latency is back. A series is back when
its detector found its rise to be over, or when a fall took it to within the minimum effect of the level that
it had before the incident or, where it had just fallen without one, before that dip. A series that returns in
several falls is back with the last one. What has no level of its own, such as spikes and tails, is over when
its detector says so.

A rise within a minute of the return of latency belongs to the incident before it, so that latency which
rises and falls once a minute is one incident, not ten. A fall without an incident is an improvement; a rise
that ends one is no incident either.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from detectors.client_seconds import QUANTILES, ChangeId, identity, is_of_finding
from detectors.minimum_effect import Config as MinimumEffect
from soak.core.model import Change, Explanation, Kind
from soak.core.series import parse_series

TOGETHER_SECONDS = 10
"""Onsets of one cause lie so close together; an earlier one may be reported later by a source that lags."""
REJOIN_SECONDS = 60
"""Of ten rises and falls in ten minutes, each rise follows the end of the one before within this time."""
_DIP_SECONDS = 600
"""What was lower for longer is how the cluster is by now."""
_FOUND = frozenset({"confirmed", "gone"})
_LEVELS = frozenset[Kind]({"step", "drift"})
"""Kinds that leave a level behind to which a series may return."""
_SLOW = frozenset[Kind]({"drift", "spikes"})
"""Kinds that are known long after they began."""
_ABOUT_FEW = frozenset[Kind]({"tail", "stalls"})
"""Kinds that most messages know nothing of: another one says more of an incident."""
_RANK: Mapping[str, int] = {"warning": 0, "confirmed": 1, "gone": 2, "withdrawn": 2}


@dataclass(frozen=True, slots=True)
class Incident:
    """The changes of one incident, rises and falls, in the order in which they were raised."""

    changes: tuple[Change, ...]
    related: tuple[Change, ...] = ()  # of other series, at the time of its worst change
    key: str = ""  # of the finding that it is known as; none yet for a new one
    effect: MinimumEffect = field(default_factory=MinimumEffect)
    before_dips: Mapping[str, float] = field(
        default_factory=dict
    )  # levels of series that had just fallen

    @property
    def rises(self) -> tuple[Change, ...]:
        return tuple(change for change in self.changes if change.direction == "up")

    @property
    def raised_k(self) -> int:
        """Return the second of the first raise, after which a new finding is named."""
        return self.changes[0].raised_k

    @property
    def opening(self) -> Change:
        """Return the rise with which it began: the earliest of those that are confirmed."""
        levels = self._levels()
        return min(self._confirmed(), key=lambda change: (_opens_k(change), _rank(change, levels)))

    @property
    def headline(self) -> Change:
        """Return its worst change, from the level before the incident on."""
        levels = self._levels()
        worst = min(self._confirmed(), key=lambda change: _rank(change, levels))
        return replace(worst, before=_before(worst, levels))

    @property
    def state(self) -> Literal["warning", "confirmed", "gone"]:
        """Return "gone" when every series is back, and "warning" while no rise is confirmed."""
        if all(change.state == "warning" for change in self.rises):
            return "warning"
        return "confirmed" if self.resolved_k is None else "gone"

    @property
    def resolved_k(self) -> int | None:
        """Return when the last series was back; None while one is not, or may not be."""
        rises = self.rises
        levels = {
            series: max(level, self.before_dips.get(series, level))
            for series, level in self._levels().items()
        }
        ends = _ends_of(rises, self.changes, levels, self.effect)
        return max(ends, default=None) if len(ends) == len(rises) else None

    @property
    def moved(self) -> tuple[str, ...]:
        """Return the series that became worse, and others that changed then; not those that only may have."""
        every = (*self.rises, *self.related)
        return tuple(sorted({change.series for change in every if change.state != "warning"}))

    def _confirmed(self) -> tuple[Change, ...]:
        rises = self.rises
        return tuple(change for change in rises if change.state != "warning") or rises

    def _levels(self) -> dict[str, float]:
        """Return the level of each series before its first rise in the incident."""
        first: dict[str, Change] = {}
        for change in self.rises:
            if change.kind in _LEVELS:
                known = first.get(change.series)
                if known is None or _begun(change) < _begun(known):
                    first[change.series] = change
        return {series: change.before for series, change in first.items()}


def _begun(change: Change) -> tuple[int, int]:
    return change.onset_k, change.raised_k


def _rank(change: Change, levels: Mapping[str, float]) -> tuple[object, ...]:
    return _prominence(change, _before(change, levels))


def _before(change: Change, levels: Mapping[str, float]) -> float:
    """Return the level before a rise, or before the incident where that was lower."""
    return min(change.before, levels[change.series]) if change.kind in _LEVELS else change.before


def _ends_of(
    rises: Iterable[Change],
    changes: Iterable[Change],
    levels: Mapping[str, float],
    effect: MinimumEffect,
) -> list[int]:
    """Return when the series of each rise was back, without those that are not, or may not be."""
    returns: dict[str, list[int]] = defaultdict(
        list
    )  # onsets of falls to the level before, ascending
    for change in changes:
        if (
            change.direction == "down"
            and change.state == "confirmed"
            and change.series in levels
            and not _is_above(levels[change.series], change.after, effect)
        ):
            returns[change.series].append(change.onset_k)
    for onsets in returns.values():
        onsets.sort()
    found = []
    for rise in rises:
        if rise.state == "gone":
            found.append(rise.raised_k if rise.resolved_k is None else rise.resolved_k)
        elif rise.kind in _LEVELS and rise.state != "warning":
            onsets = returns.get(rise.series, [])
            at = bisect_right(onsets, rise.onset_k)
            found += onsets[at : at + 1]
    return found


def _is_above(before: float, level: float, effect: MinimumEffect) -> bool:
    """True when a level is above another by the minimum effect or more."""
    return level > before and effect.is_worth(before, level)


def _opens_k(change: Change) -> int:
    """Return from when on a change counts: its onset, or its raise where that comes long after."""
    return change.raised_k if change.kind in _SLOW else change.onset_k


def _prominence(change: Change, before: float) -> tuple[bool, float, bool, int, float, str]:
    """Sort outages first, the longest; then levels, p99 before the others, the largest ratio to `before`."""
    quantile = dict(parse_series(change.series).labels).get("quantile")
    place = QUANTILES.index(quantile) if quantile in QUANTILES else len(QUANTILES)
    ratio = change.after / before if before > 0.0 else float("inf")
    return (
        change.kind != "outage",
        -change.after if change.kind == "outage" else 0.0,
        change.kind in _ABOUT_FEW,
        place,
        -ratio,
        change.series,
    )


def _latest(changes: Iterable[Change]) -> list[Change]:
    """Return each change in the last state that was reported of it, without those withdrawn."""
    found: dict[ChangeId, Change] = {}
    for change in changes:
        known = found.get(identity(change))
        if known is None or _RANK[change.state] >= _RANK[known.state]:
            found[identity(change)] = change
    return [change for change in found.values() if change.state != "withdrawn"]


def is_regression(incident: Incident, causes: Sequence[Explanation]) -> bool:
    """True for a confirmed incident, also one that is resolved, unless the client is to blame."""
    is_client = bool(causes) and causes[0].cause == "client"
    return incident.state != "warning" and not is_client


def _is_recovery(up: Change, own: Iterable[Change], effect: MinimumEffect) -> bool:
    """True for a rise that ends a dip: back to where its series was before it fell, minutes ago.

    `own` has the last state of each change of its series that left a level behind. A fall that ended an
    earlier rise is no dip: what rises again is news.
    """
    return any(not _is_above(one.before, up.after, effect) for one in _dips(up, own, effect))


def _dips(up: Change, own: Iterable[Change], effect: MinimumEffect) -> list[Change]:
    """Return the falls of the minutes before a rise that ended no earlier rise; see `_is_recovery`."""
    if up.kind not in _LEVELS:  # nothing is back where it was
        return []
    return [
        one
        for one in own
        if one.direction == "down"
        and up.onset_k - _DIP_SECONDS <= one.onset_k < up.onset_k
        and not any(
            rise.direction == "up" and (_stood(rise, one.onset_k) or _ends(one, rise, effect))
            for rise in own
        )
    ]


def _ends(fall: Change, rise: Change, effect: MinimumEffect) -> bool:
    """True when a fall takes what was left of a rise that went away, back to the level from which it began.

    What was left for longer is how the cluster was by then.
    """
    is_earlier = rise.resolved_k is not None and 0 <= fall.onset_k - rise.resolved_k <= _DIP_SECONDS
    is_back = not effect.is_worth(rise.before, fall.after)
    return is_earlier and is_back and _is_above(rise.before, fall.before, effect)


def _stood(rise: Change, k: int) -> bool:
    """True when a rise was not over yet in second `k`, in which it may have begun to be."""
    return rise.onset_k < k and (rise.resolved_k is None or rise.resolved_k >= k)


# --- which changes are one incident: those while it is open, and those that follow at once


@dataclass(slots=True)
class _Group:
    """The members of one incident; what is asked for each change is kept up to date, not looked for."""

    effect: MinimumEffect
    levels: Mapping[str, Sequence[Change]]  # all that left a level behind, of this incident or not
    key: str = ""
    members: list[Change] = field(default_factory=list)
    begin_k: int | None = None  # of its rises; None: it has none
    first_k: int = 0  # at which the earliest onset of its rises may have been
    before_dips: dict[str, float] = field(default_factory=dict)
    _onsets: list[int] = field(default_factory=list)  # of all members, ascending
    _of_series: dict[str, list[Change]] = field(default_factory=dict)
    _ends: dict[str, int | None] = field(default_factory=dict)  # by series with a rise
    _changed: set[str] = field(default_factory=set)  # series whose end is to be looked for

    def add(self, change: Change) -> None:
        self.members.append(change)
        insort(self._onsets, change.onset_k)
        self._of_series.setdefault(change.series, []).append(change)
        self._changed.add(change.series)
        if change.direction == "up":
            if all(one.direction == "down" for one in self._of_series[change.series][:-1]):
                # what a series fell from is no level to be back at if it is nearer to the height of the rise
                dips = [
                    one.before
                    for one in _dips(change, self.levels.get(change.series, ()), self.effect)
                    if one.before**2 <= change.before * change.after
                ]
                if dips:
                    self.before_dips[change.series] = max(dips)
            is_first = self.begin_k is None
            begin_k, first_k = _opens_k(change), change.interval[0]
            self.first_k = first_k if is_first else min(self.first_k, first_k)
            self.begin_k = begin_k if self.begin_k is None else min(self.begin_k, begin_k)

    def incident(self, members: Iterable[Change]) -> Incident:
        return Incident(
            tuple(members), key=self.key, effect=self.effect, before_dips=self.before_dips
        )

    @property
    def end_k(self) -> int | None:
        """Return when its last series was back; None while one is not."""
        for series in self._changed:
            own = self.incident(self._of_series[series])
            if own.rises:
                self._ends[series] = own.resolved_k
        self._changed.clear()
        ends = self._ends.values()
        return None if None in ends else max((end for end in ends if end is not None), default=None)

    def distance(self, change: Change) -> int | None:
        """Return the seconds between a change and the incident, 0 within it; None: it is another story."""
        if self.begin_k is None:
            return None
        at, begin, end = _opens_k(change), self.begin_k, self.end_k
        if at < begin:
            # an onset is known to its interval: those that overlap may be one
            apart = min(begin - at, max(0, self.first_k - change.interval[1]))
            return apart if change.direction == "up" and apart <= TOGETHER_SECONDS else None
        if end is None or at <= end:
            return 0
        return at - end if at - end <= REJOIN_SECONDS else None

    def nearest_onset(self, change: Change) -> int:
        """Return the seconds to the nearest onset of a member."""
        at = bisect_left(self._onsets, change.onset_k)
        return min(abs(onset - change.onset_k) for onset in self._onsets[max(0, at - 1) : at + 1])

    @property
    def has_rise(self) -> bool:
        return self.begin_k is not None


class _Groups:
    """All incidents, of which it looks only at those that a change of the present time may belong to.

    Changes are asked about in the order of the times at which they count, so an incident that ended long
    before one of them has nothing to do with those after it. `rewind` begins again with the earliest.
    """

    def __init__(self, groups: Iterable[_Group]) -> None:
        self.every = list(groups)
        self._waiting: list[
            tuple[int, int]
        ] = []  # first second and place of later ones, the first last
        self._near: list[int] = []  # places, ascending
        self._newest_k = 0
        self.rewind()

    def rewind(self) -> None:
        begun = (
            (min(one.begin_k, one.first_k), at)
            for at, one in enumerate(self.every)
            if one.begin_k is not None
        )
        self._waiting, self._near = sorted(begun, reverse=True), []
        self._newest_k = -(2**62)

    def open(self, one: _Group) -> None:
        """Add an incident that begins with the present change."""
        self._near.append(len(self.every))
        self.every.append(one)

    def joined(self, change: Change) -> bool:
        """Add a change to the nearest group that it belongs to; return whether there is one."""
        at = _opens_k(change)
        self._newest_k = max(self._newest_k, at, change.interval[1])
        while self._waiting and self._waiting[-1][0] <= self._newest_k + TOGETHER_SECONDS:
            insort(self._near, self._waiting.pop()[1])
        near, kept = [], []
        for place in self._near:
            one = self.every[place]
            end = one.end_k
            is_past = (
                one.begin_k is None or one.begin_k <= at
            )  # refined, it may end before it begins
            if is_past and end is not None and at > end + REJOIN_SECONDS:
                continue
            kept.append(place)
            apart = one.distance(change)
            if apart is not None:
                near.append((apart, one.nearest_onset(change), place))
        self._near = kept
        if near:
            self.every[min(near)[2]].add(change)
        return bool(near)


def group(
    changes: Iterable[Change],
    assigned: Mapping[ChangeId, str] | None = None,
    effect: MinimumEffect | None = None,
    context: Iterable[Change] = (),
) -> list[Incident]:
    """Return the incidents in the order in which they were raised.

    Of several reports of one change (same series and raise) the last state counts; what was withdrawn counts
    for nothing. A change that is `assigned` to a finding stays there, wherever its onset was refined to; any
    other joins the nearest incident that is open then; the breach of an objective is always one of its own.
    `effect`: what a level must differ by to be another;
    `context`: changes that make no incident here, but tell whether a rise only ends a dip.
    """
    least, keys = effect or MinimumEffect(), assigned or {}
    every_change = _latest(changes)
    breaches = [change for change in every_change if change.kind == "objective"]
    known = [change for change in every_change if change.kind != "objective"]
    reported = sorted(
        (change for change in known if is_of_finding(change)),
        key=lambda change: (_opens_k(change), change.raised_k, change.series),
    )
    levels: dict[str, list[Change]] = defaultdict(list)
    for change in (*reported, *_latest(context)):
        if change.state in _FOUND and change.kind in _LEVELS:
            levels[change.series].append(change)
    groups: dict[str, _Group] = {}
    for change in reported:
        key = keys.get(identity(change))
        if key is not None:
            groups.setdefault(key, _Group(least, levels, key)).add(change)
    every = _Groups(groups.values())
    remaining = []
    for change in reported:
        if identity(change) in keys or every.joined(change):
            continue
        if change.direction == "up" and not _is_recovery(change, levels[change.series], least):
            one = _Group(least, levels)
            one.add(change)
            every.open(one)
        else:
            remaining.append(change)
    count = -1
    while count != len(remaining):
        count = len(remaining)
        every.rewind()
        remaining = [change for change in remaining if not every.joined(change)]
    others = [(change.onset_k, at) for at, change in enumerate(known) if not is_of_finding(change)]
    others.sort()
    found = [_incident(one, others, known) for one in every.every if one.has_rise]
    found += [Incident((one,), key=keys.get(identity(one), ""), effect=least) for one in breaches]
    return sorted(found, key=lambda incident: (incident.raised_k, incident.changes[0].series))


def improvements(changes: Iterable[Change], incidents: Iterable[Incident]) -> list[Change]:
    """Return the confirmed falls of latency that belong to no incident, in order of onset."""
    taken = {identity(change) for incident in incidents for change in incident.changes}
    found = [
        change
        for change in _latest(changes)
        if is_of_finding(change)
        and change.direction == "down"
        and change.state != "warning"
        and identity(change) not in taken
    ]
    return sorted(found, key=lambda change: (change.onset_k, change.series))


def _incident(one: _Group, others: Sequence[tuple[int, int]], known: Sequence[Change]) -> Incident:
    """Return a group as an incident; `others` are onset and place in `known` of changes of other series."""
    members = sorted(one.members, key=lambda change: (change.raised_k, change.series))
    alone = one.incident(members)
    if not others:
        return alone
    worst_k = alone.headline.onset_k
    begin = bisect_left(others, (worst_k - TOGETHER_SECONDS, -1))
    end = bisect_left(others, (worst_k + TOGETHER_SECONDS + 1, -1))
    places = sorted(place for _, place in others[begin:end])
    return replace(alone, related=tuple(known[place] for place in places))
