"""Why it stepped: every cause is asked, those above the bar are named, else it is unknown."""

from __future__ import annotations

from dataclasses import replace

from detectors.causes import _brokers
from detectors.incidents import Incident
from detectors.nearby import Nearby
from detectors.spikes import words_of
from soak.core import plugins, wording
from soak.core.model import Change, Evidence, Explanation

BAR = 0.5
PACKAGE = "detectors.causes"
UNKNOWN = "unknown"


def attribute(found: Change | Incident, nearby: Nearby) -> list[Explanation]:
    """Return the causes that pass the bar, best first; `unknown` alone when there is none.

    A step down is `unknown`: causes say what makes latency worse. So is a drift, which has no instant that a
    cause could share. Of spikes the period is said too.
    """
    change = found.headline if isinstance(found, Incident) else found
    causes = _asked(change, replace(nearby, events=_brokers.events_of_touched(change, nearby)))
    if change.kind != "spikes" or change.period_seconds is None:
        return causes
    first, *others = causes
    return [replace(first, evidence=(*first.evidence, _comb(change))), *others]


def _asked(change: Change, nearby: Nearby) -> list[Explanation]:
    told = [
        plugins.load(PACKAGE, name).explain(change, nearby)
        for name in plugins.names(PACKAGE)
        if name != UNKNOWN and change.direction == "up" and change.kind != "drift"
    ]
    passing = [explanation for explanation in told if explanation and explanation.score >= BAR]
    if passing:
        return sorted(passing, key=lambda explanation: (-explanation.score, explanation.cause))
    return [plugins.load(PACKAGE, UNKNOWN).explain(change, nearby)]


def _comb(change: Change) -> Evidence:
    top = wording.amount(change.after, wording.split(change.series).unit)
    return Evidence(
        f"{wording.title(change.series)} spikes {words_of(change)}, to {top}.",
        {
            "period_seconds": change.period_seconds or 0.0,
            "burst_seconds": change.burst_seconds or 0.0,
        },
    )
