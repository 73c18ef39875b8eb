"""The figures of trials: shares with intervals, the curve over the true size, and the causes named."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from scipy.stats import binomtest

from soak.lab.trials.outcome import Outcome, Trial

DATED_SECONDS, NOTIFIED_SECONDS = 10.0, 30.0
_EDGES = (0.0, 1.1, 1.25, 1.5, 2.0, 3.0, 5.0, 10.0, math.inf)


@dataclass(frozen=True, slots=True)
class Share:
    """So many of so many, with the 95 % interval of Wilson."""

    count: int
    of: int

    @property
    def value(self) -> float:
        return self.count / self.of if self.of else math.nan

    @property
    def interval(self) -> tuple[float, float]:
        if not self.of:
            return math.nan, math.nan
        found = binomtest(self.count, self.of).proportion_ci(method="wilson")
        return float(found.low), float(found.high)

    def __str__(self) -> str:
        if not self.of:
            return "0 of 0"
        low, high = self.interval
        return f"{self.count} of {self.of} ({self.value:.0%}; {low:.0%} to {high:.0%})"


def _has_mails(trial: Trial) -> bool:
    """Return False for a replay, which sends none."""
    return any(one.notified_seconds is not None for one in trial.outcomes)


def share(outcomes: Sequence[Outcome], *, of: Sequence[Outcome]) -> Share:
    return Share(len(outcomes), len(of))


def figures(trials: Sequence[Trial]) -> dict[str, Share]:
    """Return the shares that trials are judged by."""
    every = [one for trial in trials for one in trial.outcomes]
    reported = [one for one in every if one.is_reported]
    clear = [one for one in every if one.size == "clear"]
    moderate = [one for one in every if one.size == "moderate"]
    with_mails = [one for trial in trials if _has_mails(trial) for one in trial.outcomes]
    visible = [one for one in with_mails if one.is_reported and one.size in {"clear", "moderate"}]
    return {
        "reported, p99 at least doubled for 30 s": share(
            [one for one in clear if one.is_reported], of=clear
        ),
        "reported, p99 1.5 to 2 times for 30 s": share(
            [one for one in moderate if one.is_reported], of=moderate
        ),
        "cause right, of the reported": share(
            [one for one in reported if one.is_right], of=reported
        ),
        "cause wrong, of the reported": share(
            [one for one in reported if one.is_wrong], of=reported
        ),
        "dated within 10 s, of the reported": share(
            [one for one in reported if abs(one.onset_seconds or 0.0) <= DATED_SECONDS],
            of=reported,
        ),
        "mail within 30 s of the onset, of the visible": share(
            [
                one
                for one in visible
                if one.notified_seconds is not None and one.notified_seconds <= NOTIFIED_SECONDS
            ],
            of=visible,
        ),
        "one incident, of the reported": share(
            [one for one in reported if one.incidents == 1], of=reported
        ),
        "quiet stretches with an incident": Share(
            sum(trial.false_incidents for trial in trials),
            sum(trial.quiet_stretches for trial in trials),
        ),
    }


def curve(outcomes: Sequence[Outcome]) -> list[tuple[str, Share]]:
    """Return the share that was reported by the true size of the effect."""
    found = []
    for low, high in pairwise(_EDGES):
        those = [
            one for one in outcomes if low <= one.ratio < high or one.ratio == high == math.inf
        ]
        name = f"{low:g} and more" if math.isinf(high) else f"{low:g} to {high:g}"
        found.append((name, share([one for one in those if one.is_reported], of=those)))
    return found


def confusion(outcomes: Sequence[Outcome]) -> dict[str, dict[str, int]]:
    """Return how often each kind of trouble was reported under each cause; "" for not reported."""
    found: dict[str, dict[str, int]] = {}
    for one in sorted(outcomes, key=lambda one: one.kind):
        row = found.setdefault(one.kind, {})
        row[one.cause] = row.get(one.cause, 0) + 1
    return found
