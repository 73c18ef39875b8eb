"""One incident, one finding: latency steps whose onsets lie together are the same story."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from detectors.channels import QUANTILES, is_told
from soak.core.model import Change, Direction, Explanation, Kind
from soak.core.series import parse_series

TOGETHER_SECONDS = 10
MOST_APART_SECONDS = 2 * TOGETHER_SECONDS
DIP_SECONDS = 600
"""What was lower for longer is how the cluster is by now."""
_SLOW = frozenset[Kind]({"drift", "spikes"})
"""Kinds without an instant: what belongs together is told by its course, not by ten seconds."""
_LEVELS = frozenset[Kind]({"step", "drift"})
"""Kinds that leave a level behind from which, or to which, a series may fall."""
_FOUND = frozenset({"confirmed", "gone"})
_SAME_PERIOD = 1.05
_RANK = {"warning": 0, "confirmed": 1, "gone": 2, "withdrawn": 2}

ChangeId = tuple[str, int]
"""Series and raise of a change: what stays when its onset is refined."""


@dataclass(frozen=True, slots=True)
class Incident:
    """Latency changes of one onset, in the order in which they were raised; channels beside them."""

    changes: tuple[Change, ...]
    related: tuple[Change, ...] = ()  # of other series, at the same time
    key: str = ""  # of the finding it is known as; none yet for a new one

    @property
    def raised_k(self) -> int:
        """Return the second of the first raise, after which a new finding is named."""
        return self.changes[0].raised_k

    @property
    def direction(self) -> Direction:
        return self.changes[0].direction

    @property
    def state(self) -> Literal["warning", "confirmed", "gone"]:
        """Return "gone" only when no change of it is still up or may be."""
        states = {change.state for change in self.changes}
        if states == {"gone"}:
            return "gone"
        return "warning" if states == {"warning"} else "confirmed"

    @property
    def resolved_k(self) -> int | None:
        """Return when the last of its changes went away; None while one is there."""
        ends = [change.resolved_k for change in self.changes if change.resolved_k is not None]
        return max(ends, default=None) if self.state == "gone" else None

    @property
    def headline(self) -> Change:
        """Return the change that names the finding: confirmed, an outage, a step, p99, the largest."""
        return min(self.changes, key=_prominence)

    @property
    def moved(self) -> tuple[str, ...]:
        """Return the series that changed, without those that only may have."""
        every = (*self.changes, *self.related)
        return tuple(sorted({change.series for change in every if change.state != "warning"}))


@dataclass(slots=True)
class _Group:
    key: str = ""
    members: list[Change] = field(default_factory=list)

    def distance(self, change: Change) -> int | None:
        """Return the seconds to the nearest member; None when the change is another story."""
        first = self.members[0]
        if change.direction != first.direction or _family(change) != _family(first):
            return None
        if change.kind in _SLOW:
            return 0 if any(_is_same_course(change, member) for member in self.members) else None
        apart = [abs(change.onset_k - member.onset_k) for member in self.members]
        is_near = min(apart) <= TOGETHER_SECONDS and max(apart) <= MOST_APART_SECONDS
        return min(apart) if is_near else None


def _family(change: Change) -> Kind:
    """Return the kind whose incidents a change may join: tails and outages are as sudden as steps."""
    return "step" if change.kind in {"tail", "outage"} else change.kind


def _is_same_course(change: Change, other: Change) -> bool:
    """True for spikes of one period, and for drifts that began about the same time."""
    if change.period_seconds is not None and other.period_seconds is not None:
        low, high = sorted((change.period_seconds, other.period_seconds))
        if high > _SAME_PERIOD * low:
            return False
    return change.interval[0] <= other.interval[1] and other.interval[0] <= change.interval[1]


def identity(change: Change) -> ChangeId:
    return change.series, change.raised_k


def group(
    changes: Iterable[Change], assigned: Mapping[ChangeId, str] | None = None
) -> list[Incident]:
    """Return the incidents in the order in which they were raised.

    Of several words on one change (same series and raise) the last state counts. A change that is
    `assigned` to a finding stays there, wherever its onset was refined to; any other joins the nearest
    incident within ten seconds. What was withdrawn counts for nothing.
    """
    ordered = sorted(_latest(changes), key=lambda change: (change.raised_k, change.series))
    latencies = [change for change in ordered if is_told(change)]
    others = [change for change in ordered if not is_told(change)]
    known: dict[str, _Group] = {}
    left = []
    for change in latencies:
        key = (assigned or {}).get(identity(change))
        if key is None:
            left.append(change)
        else:
            known.setdefault(key, _Group(key)).members.append(change)
    groups = list(known.values())
    for change in left:
        near = [
            (apart, at)
            for at, one in enumerate(groups)
            if (apart := one.distance(change)) is not None
        ]
        if near:
            groups[min(near)[1]].members.append(change)
        else:
            groups.append(_Group(members=[change]))
    found = [_incident(one, others) for one in groups]
    return sorted(found, key=lambda incident: (incident.raised_k, incident.changes[0].series))


def is_regression(incident: Incident, causes: Sequence[Explanation]) -> bool:
    """True for a confirmed upward step, also one that went away, unless the client is to blame."""
    is_client = bool(causes) and causes[0].cause == "client"
    return incident.state != "warning" and incident.direction == "up" and not is_client


def is_recovery(incident: Incident, known: Iterable[Change], step_ratio: float) -> bool:
    """True for a step up that ends a dip: back to where its series was before it fell, minutes ago.

    `known` has the last word on each change. A fall that ended an earlier rise is no dip: what rises again
    is news.
    """
    up = incident.headline
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
        and up.onset_k - DIP_SECONDS <= one.onset_k < up.onset_k
        and up.after < step_ratio * one.before
        and not any(_stood(rise, one.onset_k) or _ends(one, rise, step_ratio) for rise in rises)
        for one in own
    )


def _ends(fall: Change, rise: Change, step_ratio: float) -> bool:
    """True when a fall takes what was left of a rise that went away, back to the level from which it began.

    What was left for longer is how the cluster was by then.
    """
    is_earlier = rise.resolved_k is not None and 0 <= fall.onset_k - rise.resolved_k <= DIP_SECONDS
    is_back = rise.before <= step_ratio * fall.after and fall.after < step_ratio * rise.before
    return is_earlier and is_back and step_ratio * rise.before <= fall.before


def _stood(rise: Change, k: int) -> bool:
    """True when a rise was not over yet in second `k`, in which it may have begun to be."""
    return rise.onset_k < k and (rise.resolved_k is None or rise.resolved_k >= k)


def _latest(changes: Iterable[Change]) -> list[Change]:
    latest: dict[ChangeId, Change] = {}
    for change in changes:
        known = latest.get(identity(change))
        if known is None or _RANK[change.state] >= _RANK[known.state]:
            latest[identity(change)] = change
    return [change for change in latest.values() if change.state != "withdrawn"]


def _incident(one: _Group, others: Iterable[Change]) -> Incident:
    members = sorted(one.members, key=lambda change: (change.raised_k, change.series))
    alone = Incident(tuple(members), key=one.key)
    onset = alone.headline.onset_k
    related = (other for other in others if abs(other.onset_k - onset) <= TOGETHER_SECONDS)
    return Incident(alone.changes, tuple(related), one.key)


def _prominence(change: Change) -> tuple[bool, bool, bool, int, float, str]:
    quantile = dict(parse_series(change.series).labels).get("quantile")
    place = QUANTILES.index(quantile) if quantile else len(QUANTILES)
    lower, larger = sorted((abs(change.before), abs(change.after)))
    ratio = larger / lower if lower > 0.0 else float("inf")
    return (
        change.state == "warning",
        change.kind != "outage",
        change.kind == "tail",
        place,
        -ratio,
        change.series,
    )
