"""Changes into incidents: one period in which users of the cluster were worse off is one incident.

It opens with the first rise, escalates and eases, and is resolved when latency is back. A series is back when
its detector found its rise to be over, or when a fall took it to within the minimum effect of the level that
it had before the incident. A series that returns in several falls is back with the last one. What has no
level of its own, such as spikes and tails, is over when its detector says so.

A rise within a minute of the return of latency belongs to the incident before it, so that latency which
rises and falls once a minute is one incident, not ten. A fall without an incident is an improvement; a rise
that ends one is no incident either.
"""

from __future__ import annotations

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
_RANK: Mapping[str, int] = {"warning": 0, "confirmed": 1, "gone": 2, "withdrawn": 2}


@dataclass(frozen=True, slots=True)
class Incident:
    """The changes of one incident, rises and falls, in the order in which they were raised."""

    changes: tuple[Change, ...]
    related: tuple[Change, ...] = ()  # of other series, at the time of its worst change
    key: str = ""  # of the finding that it is known as; none yet for a new one
    effect: MinimumEffect = field(default_factory=MinimumEffect)

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
        return min(self._confirmed(), key=lambda change: (_opens_k(change), self._rank(change)))

    @property
    def headline(self) -> Change:
        """Return its worst change, from the level before the incident on."""
        worst = min(self._confirmed(), key=self._rank)
        return replace(worst, before=self._before(worst))

    @property
    def state(self) -> Literal["warning", "confirmed", "gone"]:
        """Return "gone" when every series is back, and "warning" while no rise is confirmed."""
        if all(change.state == "warning" for change in self.rises):
            return "warning"
        return "confirmed" if self.resolved_k is None else "gone"

    @property
    def resolved_k(self) -> int | None:
        """Return when the last series was back; None while one is not, or may not be."""
        ends = [self._back_k(change) for change in self.rises]
        known = [end for end in ends if end is not None]
        return max(known, default=None) if len(known) == len(ends) else None

    @property
    def moved(self) -> tuple[str, ...]:
        """Return the series that became worse, and others that changed then; not those that only may have."""
        every = (*self.rises, *self.related)
        return tuple(sorted({change.series for change in every if change.state != "warning"}))

    def _confirmed(self) -> tuple[Change, ...]:
        rises = self.rises
        return tuple(change for change in rises if change.state != "warning") or rises

    def _back_k(self, rise: Change) -> int | None:
        """Return when the series of a rise was back; None while it is not."""
        if rise.state == "gone":
            return rise.raised_k if rise.resolved_k is None else rise.resolved_k
        if rise.kind not in _LEVELS or rise.state == "warning":
            return None
        before = self.level_before(rise.series)
        returns = (
            change.onset_k
            for change in self.changes
            if change.series == rise.series
            and change.direction == "down"
            and change.state == "confirmed"
            and change.onset_k > rise.onset_k
            and not _is_above(before, change.after, self.effect)
        )
        return min(returns, default=None)

    def level_before(self, series: str) -> float:
        """Return the level of a series before its first rise in the incident."""
        own = (
            change for change in self.rises if change.series == series and change.kind in _LEVELS
        )
        return min(own, key=lambda change: (change.onset_k, change.raised_k)).before

    def _rank(self, change: Change) -> tuple[object, ...]:
        return _prominence(change, self._before(change))

    def _before(self, change: Change) -> float:
        """Return the level before a rise, or before the incident where that was lower."""
        is_level = change.kind in _LEVELS
        return min(change.before, self.level_before(change.series)) if is_level else change.before


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
        change.kind == "tail",
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


def _is_recovery(up: Change, known: Iterable[Change], effect: MinimumEffect) -> bool:
    """True for a rise that ends a dip: back to where its series was before it fell, minutes ago.

    `known` has the last state of each change. A fall that ended an earlier rise is no dip: what rises again
    is news.
    """
    if up.kind not in _LEVELS:  # nothing is back where it was
        return False
    own = [
        one
        for one in known
        if one.series == up.series and one.state in _FOUND and one.kind in _LEVELS
    ]
    rises = [one for one in own if one.direction == "up"]
    return any(
        one.direction == "down"
        and up.onset_k - _DIP_SECONDS <= one.onset_k < up.onset_k
        and not _is_above(one.before, up.after, effect)
        and not any(_stood(rise, one.onset_k) or _ends(one, rise, effect) for rise in rises)
        for one in own
    )


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
    effect: MinimumEffect
    key: str = ""
    members: list[Change] = field(default_factory=list)
    _span: tuple[int, int | None] | None = None

    def add(self, change: Change) -> None:
        self.members.append(change)
        self._span = None

    def distance(self, change: Change) -> int | None:
        """Return the seconds between a change and the incident, 0 within it; None: it is another story."""
        if not self.has_rise:
            return None
        if self._span is None:
            rises = (_opens_k(member) for member in self.members if member.direction == "up")
            self._span = min(rises), Incident(tuple(self.members), effect=self.effect).resolved_k
        at, (begin, end) = _opens_k(change), self._span
        if at < begin:
            # an onset is known to its interval: those that overlap may be one
            first_k = min(one.interval[0] for one in self.members if one.direction == "up")
            apart = min(begin - at, max(0, first_k - change.interval[1]))
            return apart if change.direction == "up" and apart <= TOGETHER_SECONDS else None
        if end is None or at <= end:
            return 0
        return at - end if at - end <= REJOIN_SECONDS else None

    def nearest_onset(self, change: Change) -> int:
        """Return the seconds to the nearest onset of a member."""
        return min(abs(member.onset_k - change.onset_k) for member in self.members)

    @property
    def has_rise(self) -> bool:
        return any(change.direction == "up" for change in self.members)


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
    every_known = [*reported, *_latest(context)]
    groups: dict[str, _Group] = {}
    for change in reported:
        key = keys.get(identity(change))
        if key is not None:
            groups.setdefault(key, _Group(least, key)).add(change)
    every = list(groups.values())
    remaining = []
    for change in reported:
        if identity(change) in keys or _joined(change, every):
            continue
        if change.direction == "up" and not _is_recovery(change, every_known, least):
            every.append(_Group(least, members=[change]))
        else:
            remaining.append(change)
    while taken := [change for change in remaining if _joined(change, every)]:
        remaining = [change for change in remaining if change not in taken]
    others = [change for change in known if not is_of_finding(change)]
    found = [_incident(one, others) for one in every if one.has_rise]
    found += [Incident((one,), key=keys.get(identity(one), ""), effect=least) for one in breaches]
    return sorted(found, key=lambda incident: (incident.raised_k, incident.changes[0].series))


def _joined(change: Change, groups: Sequence[_Group]) -> bool:
    """Add a change to the nearest group that it belongs to; return whether there is one."""
    near = [
        (apart, one.nearest_onset(change), at)
        for at, one in enumerate(groups)
        if (apart := one.distance(change)) is not None
    ]
    if near:
        groups[min(near)[2]].add(change)
    return bool(near)


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


def _incident(one: _Group, others: Iterable[Change]) -> Incident:
    members = sorted(one.members, key=lambda change: (change.raised_k, change.series))
    alone = Incident(tuple(members), key=one.key, effect=one.effect)
    worst_k = alone.headline.onset_k
    related = (other for other in others if abs(other.onset_k - worst_k) <= TOGETHER_SECONDS)
    return replace(alone, related=tuple(related))
