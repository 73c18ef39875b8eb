"""Which changes are one incident: all latency changes while it is open, and those that follow at once.

A rise within a minute of the end of an incident belongs to it, so that latency which rises and falls once a
minute is one incident and not ten. A fall without an incident is an improvement; a rise that ends one is no
incident either.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from detectors.client_seconds import ChangeId, identity, is_of_finding
from detectors.incidents.incident import Incident, is_recovery, latest, opens_k
from detectors.minimum_effect import Config as MinimumEffect
from soak.core.model import Change

TOGETHER_SECONDS = 10
"""Onsets of one cause lie so close together; an earlier one may be reported later by a source that lags."""
REJOIN_SECONDS = 60
"""Of ten rises and falls in ten minutes, each rise follows the end of the one before within this time."""


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
            rises = (opens_k(member) for member in self.members if member.direction == "up")
            self._span = min(rises), Incident(tuple(self.members), effect=self.effect).resolved_k
        at, (begin, end) = opens_k(change), self._span
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
    every_change = latest(changes)
    breaches = [change for change in every_change if change.kind == "objective"]
    known = [change for change in every_change if change.kind != "objective"]
    reported = sorted(
        (change for change in known if is_of_finding(change)),
        key=lambda change: (opens_k(change), change.raised_k, change.series),
    )
    every_known = [*reported, *latest(context)]
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
        if change.direction == "up" and not is_recovery(change, every_known, least):
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
        for change in latest(changes)
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
