"""Stalls: single seconds in which latency is ten times as high, several within a minute, with calm between.

Brokers that restart one after the other cause them. They are too short for a step, too partial for an outage,
and too few to have a period.

Method:  a second stalls where its value lies a decade above the median of the last minute. Four within a
         minute are reported once latency is calm again: none of the last five values stalls, and their
         median, and that of the last minute, are nearer to the level before than to a stall, on logarithms.
         They are over when half a minute has had none, as a step is that is back.
Assumes: latencies, a row a second. Seconds of a reported step, tail or outage count for that. What came three
         times in two hours, or during the baseline, is how the cluster is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from detectors.kinds.recent_rows import MINUTE, Recent, median
from detectors.minimum_effect import MAX_CONFIDENCE, Config, ended
from soak.core.model import Change
from soak.core.series import parse_series

_HEIGHT = 1.0  # on log10, above the level
_LEAST = 4  # seconds that stall, of a minute
_CALM = 5  # values, more than a level that begins has before it is long enough for a step
_OVER = 30  # seconds without any
_USUAL = 3  # such minutes, in the time that is remembered
_REMEMBERED_SECONDS = 7200
_SLACK = 1  # second


def is_watched(series: str) -> bool:
    """True for p99 of all leaders: one that stalls shows in it, and each other quantile would repeat it."""
    labels = dict(parse_series(series).labels)
    return labels.get("quantile") == "0.99" and "leader" not in labels


@dataclass(slots=True)
class Watch:
    """The seconds of one series that stall, as they come."""

    known_until_k: int  # what is there by this second is no news
    first_k: int | None = None  # of the series
    level: float = 0.0  # before the first of the seconds
    # of the last minute, with their values
    seconds: list[tuple[int, float]] = field(default_factory=list)
    # when there were enough of them, reported or not
    noted_k: list[int] = field(default_factory=list)
    is_noted: bool = False  # those of now are
    left_k: int | None = None  # the last second that belongs to another change
    standing: Change | None = None

    def take(self, series: str, k: int, y: float, recent: Recent, config: Config) -> list[Change]:
        """Take the next value, with the minute before it; return stalls that are found, or their end."""
        self.first_k = k if self.first_k is None else self.first_k
        self.seconds = [one for one in self.seconds if one[0] > k - MINUTE]
        if y >= recent.level + _HEIGHT:
            self._count(k, y, recent)
        if self.is_noted:
            last_k = self.seconds[-1][0] if self.seconds else self.left_k or 0
            return self.end(last_k + 1) if k - last_k > _OVER else []
        if len(self.seconds) < _LEAST or not self._is_calm(y, recent):
            return []
        self.is_noted = True
        self.noted_k = [one for one in self.noted_k if one > k - _REMEMBERED_SECONDS]
        is_early = any(one <= self.known_until_k for one in (k, *self.noted_k))
        is_usual = is_early or len(self.noted_k) >= _USUAL
        self.noted_k.append(k)
        if is_usual:
            return []
        self.standing = self._change(series, k, config)
        return [self.standing]

    def leave_out(self, k: int) -> None:
        """Forget the minute up to second `k`, and what goes on from it: it is of another change."""
        self.seconds, self.is_noted, self.left_k = [], self.standing is not None, k

    def go_back(self, known_until_k: int) -> None:
        """Forget all but what stands: what comes is in seconds that were there already."""
        self.known_until_k, self.first_k, self.noted_k = known_until_k, None, []

    def take_back(self) -> None:
        """Raise what stands again later: another change of the series has its second."""
        self.standing, self.is_noted = None, False
        self.noted_k.pop()

    def end(self, k: int) -> list[Change]:
        """Return what stands as over since second `k`."""
        change, self.standing, self.is_noted, self.seconds = self.standing, None, False, []
        return [] if change is None else [ended(change, k)]

    def _count(self, k: int, y: float, recent: Recent) -> None:
        if self.left_k is not None and k - self.left_k <= _CALM:
            self.left_k = k
            return
        if not self.seconds:
            self.level = recent.level
        self.seconds.append((k, y))

    def _is_calm(self, y: float, recent: Recent) -> bool:
        newest = [*recent.last[1 - _CALM :], (0, y)]
        if self.seconds[-1][0] >= newest[0][0]:
            return False
        now = max(recent.level, median(np.array([value for _, value in newest])))
        return now < self.level + _HEIGHT / 2.0

    def _change(self, series: str, k: int, config: Config) -> Change:
        onset_k = self.seconds[0][0]
        return Change(
            series=series,
            raised_k=k,
            onset_k=onset_k,
            interval=(onset_k - _SLACK, onset_k + _SLACK),
            before=config.unscaled(self.level),
            after=config.unscaled(median(np.array([y for _, y in self.seconds]))),
            state="confirmed",
            confidence=self._confidence(k),
            kind="stalls",
            burst_seconds=float(len(self.seconds)),
        )

    def _confidence(self, k: int) -> float:
        """Return the probability that a minute of the past had none."""
        seconds = min(k - (k if self.first_k is None else self.first_k), _REMEMBERED_SECONDS)
        return min(MAX_CONFIDENCE, 1.0 - len(self.noted_k) / (1.0 + seconds / MINUTE))

    def to_state(self) -> dict[str, Any]:
        """Return the state for JSON."""
        return {**asdict(self), "standing": self.standing and self.standing.to_row()}

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> Watch:
        """Return what `to_state` described, once through JSON, which has lists for tuples."""
        seconds = [(k, y) for k, y in state["seconds"]]
        standing = state["standing"] and Change.from_row(state["standing"])
        return cls(**{**state, "seconds": seconds, "standing": standing})
