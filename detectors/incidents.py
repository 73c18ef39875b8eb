"""One incident, one finding: latency steps whose onsets lie together are the same story."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from detectors.channels import QUANTILES, column_of, is_headline
from soak.core.model import Change, Direction, Explanation

TOGETHER_SECONDS = 10
_RANK = {"warning": 0, "confirmed": 1, "gone": 2}


@dataclass(frozen=True, slots=True)
class Incident:
    """Latency changes of one onset, in the order in which they were raised; channels beside them."""

    changes: tuple[Change, ...]
    related: tuple[Change, ...] = ()  # of other series, at the same time

    @property
    def raised_k(self) -> int:
        """Return what the finding's key is minted from: refining an onset does not change it."""
        return self.changes[0].raised_k

    @property
    def direction(self) -> Direction:
        return self.changes[0].direction

    @property
    def state(self) -> Literal["warning", "confirmed", "gone"]:
        """Return "gone" when every change that was confirmed has gone."""
        states = {change.state for change in self.changes}
        if "confirmed" in states:
            return "confirmed"
        return "gone" if "gone" in states else "warning"

    @property
    def headline(self) -> Change:
        """Return the change that names the finding: confirmed first, then p99, then the largest."""
        return min(self.changes, key=_prominence)


def group(changes: Iterable[Change]) -> list[Incident]:
    """Return the incidents in the order in which they were raised.

    Of several words on one change (same series and raise) the last state counts. Each change joins the
    incident whose first onset is at most ten seconds away, so that later ones never regroup it.
    """
    latest: dict[tuple[str, int], Change] = {}
    for change in changes:
        known = latest.get((change.series, change.raised_k))
        if known is None or _RANK[change.state] >= _RANK[known.state]:
            latest[change.series, change.raised_k] = change
    ordered = sorted(latest.values(), key=lambda change: (change.raised_k, change.series))
    groups: list[list[Change]] = []
    others: list[Change] = []
    for change in ordered:
        if not is_headline(column_of(change.series)):
            others.append(change)
            continue
        home = next((members for members in groups if _is_together(members[0], change)), None)
        if home is None:
            groups.append([change])
        else:
            home.append(change)
    return [
        Incident(
            tuple(members),
            tuple(
                other
                for other in others
                if abs(other.onset_k - members[0].onset_k) <= TOGETHER_SECONDS
            ),
        )
        for members in groups
    ]


def is_regression(incident: Incident, causes: Sequence[Explanation]) -> bool:
    """True for a confirmed upward step, also one that went away, unless the client is to blame."""
    is_client = bool(causes) and causes[0].cause == "client"
    return incident.state != "warning" and incident.direction == "up" and not is_client


def _is_together(first: Change, change: Change) -> bool:
    is_near = abs(change.onset_k - first.onset_k) <= TOGETHER_SECONDS
    return is_near and change.direction == first.direction


def _prominence(change: Change) -> tuple[bool, int, float, str]:
    quantile = dict(column_of(change.series).labels)["quantile"]
    lower, larger = sorted((abs(change.before), abs(change.after)))
    ratio = larger / lower if lower > 0.0 else float("inf")
    return change.state == "warning", QUANTILES.index(quantile), -ratio, change.series
