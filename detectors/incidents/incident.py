"""One incident: it opens with the first rise, escalates and eases, and is resolved when latency is back.

A series is back when its detector found its rise to be over, or when a fall took it to within the minimum
effect of the level that it had before the incident. A series that returns in several falls is back with the
last one. What has no level of its own, such as spikes and tails, is over when its detector says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from detectors.client_seconds import QUANTILES, ChangeId, identity
from detectors.minimum_effect import Config as MinimumEffect
from soak.core.model import Change, Explanation, Kind
from soak.core.series import parse_series

LEVELS = frozenset[Kind]({"step", "drift"})
"""Kinds that leave a level behind to which a series may return."""
SLOW = frozenset[Kind]({"drift", "spikes"})
"""Kinds that are known long after they began."""


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
        return min(self._confirmed(), key=lambda change: (opens_k(change), self._rank(change)))

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
        if rise.kind not in LEVELS or rise.state == "warning":
            return None
        before = self.level_before(rise.series)
        returns = (
            change.onset_k
            for change in self.changes
            if change.series == rise.series
            and change.direction == "down"
            and change.state == "confirmed"
            and change.onset_k > rise.onset_k
            and not is_above(before, change.after, self.effect)
        )
        return min(returns, default=None)

    def level_before(self, series: str) -> float:
        """Return the level of a series before its first rise in the incident."""
        own = (change for change in self.rises if change.series == series and change.kind in LEVELS)
        return min(own, key=lambda change: (change.onset_k, change.raised_k)).before

    def _rank(self, change: Change) -> tuple[object, ...]:
        return _prominence(change, self._before(change))

    def _before(self, change: Change) -> float:
        """Return the level before a rise, or before the incident where that was lower."""
        is_level = change.kind in LEVELS
        return min(change.before, self.level_before(change.series)) if is_level else change.before


def is_above(before: float, level: float, effect: MinimumEffect) -> bool:
    """True when a level is above another by the minimum effect or more."""
    return level > before and effect.is_worth(before, level)


def opens_k(change: Change) -> int:
    """Return from when on a change counts: its onset, or its raise where that comes long after."""
    return change.raised_k if change.kind in SLOW else change.onset_k


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


def latest(changes: Iterable[Change]) -> list[Change]:
    """Return each change in the last state that was reported of it, without those withdrawn."""
    found: dict[ChangeId, Change] = {}
    for change in changes:
        known = found.get(identity(change))
        if known is None or _RANK[change.state] >= _RANK[known.state]:
            found[identity(change)] = change
    return [change for change in found.values() if change.state != "withdrawn"]


_RANK: Mapping[str, int] = {"warning": 0, "confirmed": 1, "gone": 2, "withdrawn": 2}


DIP_SECONDS = 600
"""What was lower for longer is how the cluster is by now."""
_FOUND = frozenset({"confirmed", "gone"})


def is_regression(incident: Incident, causes: Sequence[Explanation]) -> bool:
    """True for a confirmed incident, also one that is resolved, unless the client is to blame."""
    is_client = bool(causes) and causes[0].cause == "client"
    return incident.state != "warning" and not is_client


def is_recovery(up: Change, known: Iterable[Change], effect: MinimumEffect) -> bool:
    """True for a rise that ends a dip: back to where its series was before it fell, minutes ago.

    `known` has the last state of each change. A fall that ended an earlier rise is no dip: what rises again
    is news.
    """
    if up.kind not in LEVELS:  # nothing is back where it was
        return False
    own = [
        one
        for one in known
        if one.series == up.series and one.state in _FOUND and one.kind in LEVELS
    ]
    rises = [one for one in own if one.direction == "up"]
    return any(
        one.direction == "down"
        and up.onset_k - DIP_SECONDS <= one.onset_k < up.onset_k
        and not is_above(one.before, up.after, effect)
        and not any(_stood(rise, one.onset_k) or _ends(one, rise, effect) for rise in rises)
        for one in own
    )


def _ends(fall: Change, rise: Change, effect: MinimumEffect) -> bool:
    """True when a fall takes what was left of a rise that went away, back to the level from which it began.

    What was left for longer is how the cluster was by then.
    """
    is_earlier = rise.resolved_k is not None and 0 <= fall.onset_k - rise.resolved_k <= DIP_SECONDS
    is_back = not effect.is_worth(rise.before, fall.after)
    return is_earlier and is_back and is_above(rise.before, fall.before, effect)


def _stood(rise: Change, k: int) -> bool:
    """True when a rise was not over yet in second `k`, in which it may have begun to be."""
    return rise.onset_k < k and (rise.resolved_k is None or rise.resolved_k >= k)
