"""Why it stepped: every cause is asked, those above the bar are named, else it is unknown."""

from __future__ import annotations

from detectors.incidents import Incident
from detectors.nearby import Nearby
from soak.core import plugins
from soak.core.model import Change, Explanation

BAR = 0.5
PACKAGE = "detectors.causes"
UNKNOWN = "unknown"


def attribute(found: Change | Incident, nearby: Nearby) -> list[Explanation]:
    """Return the causes that pass the bar, best first; `unknown` alone when there is none.

    A step down is `unknown`: causes say what makes latency worse.
    """
    change = found.headline if isinstance(found, Incident) else found
    told = [
        plugins.load(PACKAGE, name).explain(change, nearby)
        for name in plugins.names(PACKAGE)
        if name != UNKNOWN and change.direction == "up"
    ]
    passing = [explanation for explanation in told if explanation and explanation.score >= BAR]
    if passing:
        return sorted(passing, key=lambda explanation: (-explanation.score, explanation.cause))
    return [plugins.load(PACKAGE, UNKNOWN).explain(change, nearby)]
