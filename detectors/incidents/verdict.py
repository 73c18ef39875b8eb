"""Whether an incident counts against the cluster, and which rise is no incident: one that only ends a dip."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from detectors.incidents.incident import LEVELS, Incident, is_above
from detectors.minimum_effect import Config as MinimumEffect
from soak.core.model import Change, Explanation

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
