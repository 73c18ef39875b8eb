"""Leaders moved: partitions are led by other brokers than before, and their clients had to find out.

Method:  leaders change at the onset, by a broker's log or by its counters, and did not do so before.
Assumes: a change of leaders is told within two seconds. One that a broker's end brought about has that as its
         first cause.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from detectors import cause_scores
from detectors.causes import _background, broker_down
from detectors.causes._moves import end_of, near
from detectors.nearby import Nearby, when
from soak.core.model import Change, Evidence, Explanation

NEXT = "read in the controller's log why leaders moved, and move them back"

KIND = "leader_change"
_BEFORE_SECONDS = 300
_MOST_EXPECTED = 0.1  # of such seconds as near to any instant


def explain(change: Change, nearby: Nearby) -> Explanation | None:
    """Return the changes of leaders at the onset, or None."""
    ks = np.unique(np.concatenate([nearby.event_ks(KIND), *_counted(nearby)]))
    first, last = near(change)
    here = ks[(ks >= first) & (ks <= last)]
    if here.size == 0:
        return None
    start = max(nearby.k0, first - _BEFORE_SECONDS)
    before = int(np.count_nonzero((ks >= start) & (ks < first)))
    expected = before * (last + 1 - first) / max(1, first - start)
    score = cause_scores.WEAK if expected > _MOST_EXPECTED else _usual_score(change, nearby)
    after = int(np.count_nonzero((ks > last) & (ks < end_of(change, nearby))))
    text = (
        f"Leaders changed in {here.size} of the seconds around the onset, first "
        f"{when(int(here[0]) - change.onset_k)} of the step{_what(int(here[0]), nearby)}; in the "
        f"{first - start} s before it was {before}, afterwards {after}."
    )
    numbers = {"first_k": int(here[0]), "seconds_near": int(here.size), "seconds_before": before}
    return Explanation("leader_move", cause_scores.graded(score, 1.0), (Evidence(text, numbers),))


def _usual_score(change: Change, nearby: Nearby) -> float:
    """Return the score of leaders that moved at the onset alone: less where a broker's end moved them."""
    end = broker_down.explain(change, nearby)
    return (
        cause_scores.LIKELY
        if end is not None and end.score >= cause_scores.STRONG
        else cause_scores.STRONG
    )


def _counted(nearby: Nearby) -> list[NDArray[np.int64]]:
    return [
        s.k[s.values > 0.0]
        for metric in _background.LEADER_COUNTERS
        for s in nearby.named(metric).values()
    ]


def _what(k: int, nearby: Nearby) -> str:
    """Return an example, where a broker's log gave one."""
    fields = next((e.event.fields for e in nearby.events if e.k == k and e.event.kind == KIND), {})
    names = [f"{key} {fields[key]}" for key in ("topic", "partition", "bundle") if key in fields]
    return f" ({', '.join(names)})" if names else ""
