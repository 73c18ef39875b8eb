"""Tail growth: the slow messages become more, or slower, while the median stays.

Method:  online the odds of a message to be slower than p99 and p99.9 were at first (`_exceedance`), on log10,
         as series of their own in a `level_shift` panel with the same threshold. Told when the quantile has
         moved by the smallest step, p50 has not, and no step of that latency is told; a step of p99.9 that
         neither p50 nor p99 shares is a tail too. Looking back at a series without counts: `_width`.
Assumes: what it says of `level_shift` holds for the odds; bursts of slow messages make them wander, which
         their spread and correlation pay for.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from typing import Any

import numpy as np
from numpy.typing import NDArray

from detectors import _exceedance, level_shift
from detectors._exceedance import COUNTS, SHARES, Exceedance, Places
from detectors._near_steps import NearSteps
from detectors._recent import Recent
from detectors._width import detect
from detectors._worth import Config
from detectors.channels import column_of, source_of
from detectors.drift import change_of
from soak.core.model import Change, Column

__all__ = ["Config", "Tails", "detect"]

ChangeId = tuple[str, int]
"""Series and raise of a change."""
_ODDS_RATIO = 2.0  # least growth of the odds
_MOST_TOLD = 4  # of one series
_OVER = frozenset({"withdrawn", "gone"})
_MEDIAN, _SLOW, _FAR = "0.5", "0.99", "0.999"


@dataclass(frozen=True, slots=True)
class Second:
    """What one source measured in one second; `counts` is False where it teaches nothing."""

    source: str
    columns: Sequence[Column]
    k: int
    values: NDArray[np.float64]
    trusted: bool
    phase: str
    inc: int
    counts: bool


class Tails:
    """The tails of all latencies of one run and shard."""

    def __init__(self, config: level_shift.Config, worth: Config) -> None:
        self._worth = worth
        self._settings = dataclasses.replace(
            config, smallest_step_ratio=_ODDS_RATIO, smallest_step_seconds=0.0
        )
        self._panel = level_shift.Panel(self._settings)
        self._learnt: dict[str, Exceedance] = {}
        self._told: dict[ChangeId, Change] = {}  # by the raise of the odds
        self._held: list[Change] = []  # of the odds, confirmed beside steps that wait
        self._places: dict[str, tuple[Sequence[Column], list[tuple[str, Places]]]] = {}
        self._alone: list[ChangeId] = []  # steps of p99.9 that are tails: series and raise

    def update(
        self, second: Second, recents: Mapping[str, Recent], near: NearSteps
    ) -> list[Change]:
        """Take a second, with the recent values by series, and the steps that may tell a tail already."""
        columns: list[Column] = []
        odds: list[float] = []
        for metric, found in self._counted(second):
            columns += [_odds_column(metric, quantile) for quantile in SHARES]
            odds += self._odds(f"{second.source}|{metric}", found, second)
        if not columns:
            return []
        said = self._panel.update(
            second.source,
            tuple(columns),
            second.k,
            np.array(odds),
            second.trusted,
            second.phase,
            inc=second.inc,
        )
        held = [one for one in self._held if source_of(one.series) == second.source]
        self._held = [one for one in self._held if one not in held]
        every = [*held, *said]
        return [one for change in every for one in self._meant(change, second.k, recents, near)]

    def renamed(self, step: Change, recents: Mapping[str, Recent]) -> Change:
        """Return a step of p99.9 as a tail when neither p50 nor p99 has moved; any other as it is."""
        name = step.series, step.raised_k
        if step.state == "confirmed" and self._is_alone(step, recents):
            self._alone = _bounded([*self._alone, name], step.series)
        if name not in self._alone:
            return step
        if step.state in _OVER:
            self._alone.remove(name)
        return replace(step, kind="tail")

    def _is_alone(self, step: Change, recents: Mapping[str, Recent]) -> bool:
        column = column_of(step.series)
        if column.metric not in COUNTS or dict(column.labels) != {"quantile": _FAR}:
            return False
        for quantile in (_MEDIAN, _SLOW):
            recent = recents.get(_quantile_series(source_of(step.series), column.metric, quantile))
            if recent is None or recent.since(step.onset_k).size == 0:
                return False
            if self._has_moved(recent, step.onset_k):
                return False
        return True

    def to_state(self) -> tuple[bytes, dict[str, Any]]:
        """Return the state of the odds' panel, and the rest for JSON."""
        return self._panel.to_bytes(), {
            "learnt": {name: dataclasses.asdict(one) for name, one in self._learnt.items()},
            "told": [(k, dataclasses.asdict(one)) for (_, k), one in self._told.items()],
            "held": [dataclasses.asdict(one) for one in self._held],
            "alone": self._alone,
        }

    def restore(self, blob: bytes, state: Mapping[str, Any]) -> None:
        """Take back what `to_state` gave."""
        self._panel = level_shift.Panel.from_bytes(blob, self._settings)
        self._learnt = {name: Exceedance.of(one) for name, one in state["learnt"].items()}
        self._alone = [(name, raised_k) for name, raised_k in state["alone"]]
        told = [(k, change_of(one)) for k, one in state["told"]]
        self._told = {(one.series, k): one for k, one in told if one is not None}
        self._held = [one for one in map(change_of, state["held"]) if one is not None]

    def _counted(self, second: Second) -> list[tuple[str, Places]]:
        """Return the latencies whose counts a source tells, and where."""
        seen = self._places.get(second.source)
        if seen is not None and (seen[0] is second.columns or seen[0] == second.columns):
            return seen[1]
        told = [(metric, _exceedance.places(second.columns, metric)) for metric in COUNTS]
        found = [(metric, at) for metric, at in told if at is not None]
        self._places[second.source] = second.columns, found
        return found

    def _odds(self, latency: str, found: Places, second: Second) -> list[float]:
        known = self._learnt.setdefault(latency, Exceedance())
        if not second.counts:
            return [float("nan")] * len(SHARES)
        above, total = second.values[found.above], float(second.values[found.total])
        return known.odds(found.thresholds, above, total)

    def _meant(
        self, said: Change, k: int, recents: Mapping[str, Recent], near: NearSteps
    ) -> list[Change]:
        """Return a change of the odds as one of the latency, when it is the tail's alone.

        Beside a step that waits it waits too: a step that is withdrawn tells nothing.
        """
        source, metric, quantile = _latency_of(said.series)
        series = _quantile_series(source, metric, quantile)
        name = series, said.raised_k
        known = self._told.get(name)
        if said.state in _OVER:
            self._told.pop(name, None)
            self._held = [one for one in self._held if _raise_of(one) != _raise_of(said)]
            return [] if known is None else [replace(known, state=said.state, gone_k=said.gone_k)]
        seen = self._levels(recents, series, source, metric, said.onset_k)
        step = near.beside(f"{source}|{metric}", said.onset_k)
        if seen is None or step == "told":
            self._told.pop(name, None)
            return [] if known is None else [replace(known, state="withdrawn")]
        if step == "waiting":
            if said.state == "confirmed":
                self._held.append(said)
            return []
        before, after = seen
        # a step that was withdrawn may have had the second in which the odds were raised
        raised_k = k if known is None else known.raised_k
        change = replace(
            said, series=series, raised_k=raised_k, before=before, after=after, kind="tail"
        )
        self._told[name] = change
        self._told = {name: self._told[name] for name in _bounded(list(self._told), series)}
        return [change]

    def _levels(
        self, recents: Mapping[str, Recent], series: str, source: str, metric: str, onset_k: int
    ) -> tuple[float, float] | None:
        """Return the quantile before and after; None when it hardly moved, or p50 moved with it."""
        middle = recents.get(_quantile_series(source, metric, _MEDIAN))
        own = recents.get(series)
        if own is None or middle is None or own.since(onset_k).size == 0:
            return None
        before, after = self._around(own, onset_k)
        if not self._worth.is_worth(before, after) or self._has_moved(middle, onset_k):
            return None
        return before, after

    def _has_moved(self, recent: Recent, onset_k: int) -> bool:
        """True when a level changed by the smallest step, or is not known on both sides."""
        before, after = self._around(recent, onset_k)
        return not isfinite(before + after) or self._worth.is_worth(before, after)

    def _around(self, recent: Recent, onset_k: int) -> tuple[float, float]:
        after = recent.since(onset_k)
        return (
            self._worth.unscaled(recent.before(onset_k)),
            self._worth.unscaled(float(np.median(after)) if after.size else float("nan")),
        )


def _raise_of(change: Change) -> ChangeId:
    return change.series, change.raised_k


def _bounded(names: list[ChangeId], series: str) -> list[ChangeId]:
    """Return names without those of a series between its first ones and its newest, if it has too many."""
    own = [name for name in names if name[0] == series]
    return [name for name in names if name not in own[_MOST_TOLD - 1 : -1]]


def _odds_column(metric: str, quantile: str) -> Column:
    # the unit has the odds judged on log10, as latencies are
    return Column(f"{metric}_above_odds", (("quantile", quantile),), "seconds")


def _latency_of(series: str) -> tuple[str, str, str]:
    """Return source, latency and quantile from the name of a series of odds."""
    source, _, name = series.partition("|")
    metric, _, rest = name.partition("_above_odds")
    return source, metric, rest.split('"')[1]


def _quantile_series(source: str, metric: str, quantile: str) -> str:
    return f"{source}|{Column(metric, (('quantile', quantile),)).name}"
