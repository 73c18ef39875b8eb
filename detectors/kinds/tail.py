"""Tail growth: the slow messages become more, or slower, while the median stays.

Method:  online the odds of a message to be slower than p99 and p99.9 were at first, on log10, as series of
         their own that the panel of steps follows. Reported when the quantile has moved by the
         smallest step, p50 has not, and no step of that latency is reported; a step of p99.9 that neither
         p50 nor p99 shares is a tail too. Offline, in a series without counts: the width of its values.
Assumes: what it says of online steps holds for the odds; bursts of slow messages make them vary slowly, which
         their scale and correlation account for.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import exp, inf, isfinite
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from detectors import level_shift
from detectors.client_seconds import (
    END_TO_END_ABOVE,
    PUBLISH_ABOVE,
    BySource,
    ChangeId,
    identity,
    latency_of,
)
from detectors.kinds.recent_rows import MINUTE, Recent
from detectors.minimum_effect import Config, ended
from detectors.offline import steps
from detectors.online.step import Following, Smallest
from soak.core.model import Change, Column, Series
from soak.core.series import SeriesId, parse_series, series_name, source_of

# --- Which steps of a latency are reported or may yet be: a tail that comes with one is the step's.

_SECONDS = 60  # a step of the same latency raised so near covers it already


@dataclass(slots=True)
class NearSteps:
    """When a step was last raised: of those reported by latency, of those that wait by series."""

    reported_k: dict[str, int] = field(default_factory=dict)
    waiting_k: dict[str, int] = field(default_factory=dict)

    def note(self, step: Change) -> None:
        """Take a change of the state of a step; one that is withdrawn was none."""
        if step.state == "warning":
            self.waiting_k[step.series] = step.raised_k
        elif step.state in {"confirmed", "withdrawn"}:
            self.waiting_k.pop(step.series, None)
        if step.state == "confirmed":
            self.reported_k[latency_of(step.series)] = step.raised_k

    def forget(self, source: str) -> None:
        """Forget what was reported of a source whose clock was set back: it would lie in what is to come."""
        reported = self.reported_k.items()
        self.reported_k = {name: k for name, k in reported if source_of(name) != source}

    def of(self, latency: str, onset_k: int) -> Literal["reported", "waiting", "none"]:
        """Return whether a step of a latency was raised about this second or later."""
        since_k = onset_k - _SECONDS
        if self.reported_k.get(latency, since_k) > since_k:
            return "reported"
        waits = (k > since_k and latency_of(name) == latency for name, k in self.waiting_k.items())
        return "waiting" if any(waits) else "none"


# --- The odds of a message to be slower than p99 and p99.9 were at first, from counts above fixed thresholds.
# Method:  over the first 120 rows the threshold whose share of messages is nearest to 1 % (to 0.1 %) is taken
# for good, or until a source that was restarted has it no more; then each second has its odds,
# half a message added on both sides so that none is 0.
# Assumes: at least 30 messages above the threshold in these rows, and a share within a factor of 4, else that
# quantile has no odds.

ROWS = 120
SHARES = {"0.99": 0.01, "0.999": 0.001}
COUNTS = {
    "publish_latency_seconds": (PUBLISH_ABOVE, "acked_messages"),
    "end_to_end_latency_seconds": (END_TO_END_ABOVE, "received_messages"),
}
"""Where a source records how many messages were above each threshold, and how many there were."""
_LEAST_ABOVE = 30
_HALF = 0.5
_UNKNOWN = [float("nan")] * len(SHARES)


@dataclass(frozen=True, slots=True)
class _Counts:
    """Where among its columns a source has the counts above thresholds, and that of all messages."""

    series: str  # the latency, without a quantile
    thresholds: tuple[str, ...]
    above: NDArray[np.int64]
    total: int


@dataclass(slots=True)
class Exceedance:
    """One latency of one source: what was counted so far above which thresholds, then those chosen."""

    rows: int = 0
    above: dict[str, float] = field(default_factory=dict)
    total: float = 0.0
    chosen: list[str | None] | None = None

    def odds(
        self, thresholds: tuple[str, ...], above: NDArray[np.float64], total: float
    ) -> list[float]:
        """Take a second that counts; return its odds for each of `SHARES`, NaN while they are not known."""
        is_known = self.chosen is not None and self._is_of(thresholds)
        if not is_known and _is_measured(above, total):
            self._learn(thresholds, above, total)
            return _UNKNOWN
        return self.expected(thresholds, above, total)

    def expected(
        self, thresholds: tuple[str, ...], above: NDArray[np.float64], total: float
    ) -> list[float]:
        """Return what `odds` gives, and learn nothing."""
        if self.chosen is None or not self._is_of(thresholds) or not _is_measured(above, total):
            return _UNKNOWN
        counts = [None if at is None else above[thresholds.index(at)] for at in self.chosen]
        return [
            float("nan")
            if count is None
            else float((count + _HALF) / (max(0.0, total - count) + _HALF))
            for count in counts
        ]

    def _is_of(self, thresholds: tuple[str, ...]) -> bool:
        """True for the thresholds that are being learnt, or that have those chosen."""
        if self.chosen is None:
            return not self.above or tuple(self.above) == thresholds
        return all(at is None or at in thresholds for at in self.chosen)

    def _learn(self, thresholds: tuple[str, ...], above: NDArray[np.float64], total: float) -> None:
        if not self._is_of(thresholds):
            self.rows, self.above, self.total, self.chosen = 0, {}, 0.0, None
        seen = zip(thresholds, above.tolist(), strict=True)
        self.above = {at: self.above.get(at, 0.0) + count for at, count in seen}
        self.total += total
        self.rows += 1
        if self.rows == ROWS:
            counts = np.array(list(self.above.values()))
            places = [_nearest(counts, self.total, share) for share in SHARES.values()]
            self.chosen = [None if at is None else thresholds[at] for at in places]
            self.above = {}


def _is_measured(above: NDArray[np.float64], total: float) -> bool:
    return 0.0 < total < inf and bool(np.isfinite(above).all())


def _counted(source: str, columns: Sequence[Column]) -> tuple[list[_Counts], tuple[Column, ...]]:
    """Return where a source counts the messages of its latencies, and its columns with those of the odds."""
    found: list[_Counts] = []
    odds: list[Column] = []
    for metric, (above, total) in COUNTS.items():
        at = [i for i, column in enumerate(columns) if column.metric == above]
        all_at = [i for i, column in enumerate(columns) if column.metric == total]
        if at and all_at:
            thresholds = tuple(dict(columns[i].labels).get("threshold", "") for i in at)
            places = np.array(at, np.int64)
            found.append(_Counts(series_name(source, metric), thresholds, places, all_at[0]))
            odds += [_odds_column(metric, quantile) for quantile in SHARES]
    return found, (*columns, *odds)


_Odds = Callable[[tuple[str, ...], NDArray[np.float64], float], list[float]]
"""`Exceedance.odds` or `expected` of one latency."""


def _with_odds(
    values: NDArray[np.float64], places: Sequence[_Counts], of: Sequence[_Odds]
) -> NDArray[np.float64]:
    """Return the values of a second, and behind them the odds of each latency of its source."""
    odds = [
        one
        for at, odds_of in zip(places, of, strict=True)
        for one in odds_of(at.thresholds, values[at.above], float(values[at.total]))
    ]
    return np.concatenate([values, odds])


def _unknown_odds(*_: object) -> list[float]:
    return _UNKNOWN


def _nearest(above: NDArray[np.float64], total: float, share: float) -> int | None:
    enough = above >= _LEAST_ABOVE
    if not enough.any():
        return None
    apart = np.abs(np.log(np.where(enough, above, 1.0) / total / share))
    at = int(np.argmin(np.where(enough, apart, np.inf)))
    return at if apart[at] <= np.log(4.0) else None


# --- Where the spread of a whole series about its level grew or shrank, for series that have no counts.
# Method:  the 90 % quantile of the distance from the median in each minute; its steps, as the offline search
# finds them in any series.

_SPREAD_RATIO = 2.0
_TOP = 0.9
_FLOOR = 1e-9  # of a spread
_MOST_RATE = 0.05  # probability of a tail in a series without one, as of steps


def detect(series: Series, config: Config) -> list[Change]:
    """Return where the spread of a whole series grew or shrank for good, in order of time."""
    y = config.scaled(series.values)
    if not y.size:
        return []
    starts = np.arange(0, max(1, y.size - MINUTE // 2), MINUTE)
    parts = np.split(y, starts[1:])
    spreads = np.array([np.quantile(np.abs(part - np.median(part)), _TOP) for part in parts])
    spread = Series(series.name, np.arange(starts.size), np.maximum(spreads, _FLOOR))
    settings = steps.Config(
        smallest_step_ratio=_SPREAD_RATIO,
        smallest_step_seconds=0.0,
        false_step_rate=min(_MOST_RATE, y.size * exp(-config.threshold)),
        unit_seconds=float(MINUTE),
    )
    found = [_grown(series, starts, step) for step in steps.detect(spread, settings)]
    return [one for one in found if config.is_worth(one.before, one.after)]


def _grown(series: Series, starts: NDArray[np.int64], step: Change) -> Change:
    """Return a step of the spread, counted in minutes, as a change of the p99 of ten minutes."""
    low, row, high = (int(starts[at]) for at in (step.interval[0], step.onset_k, step.interval[1]))
    before = series.values[max(0, row - 10 * MINUTE) : row]
    after = series.values[row : row + 10 * MINUTE]
    onset = int(series.k[row])
    return replace(
        step,
        raised_k=onset,
        onset_k=onset,
        interval=(int(series.k[low]), int(series.k[min(series.k.size - 1, high + MINUTE)])),
        before=float(np.quantile(before, 0.99)),
        after=float(np.quantile(after, 0.99)),
        kind="tail",
    )


_ODDS = "_above_odds"  # behind the metric of a latency
_ODDS_RATIO = 2.0  # least growth of the odds
_OVER = frozenset({"withdrawn", "gone"})
_MEDIAN, _SLOW, _FAR = "0.5", "0.99", "0.999"


def smallest_steps(config: level_shift.Config) -> Smallest:
    """Return the smallest step of the series of a panel that follows the odds too."""

    def smallest(column: Column) -> tuple[float, float]:
        if column.metric.endswith(_ODDS):
            return _ODDS_RATIO, 0.0
        return config.smallest_step_ratio, config.smallest_step_seconds

    return smallest


def parted(changes: Sequence[Change]) -> tuple[list[Change], list[Change]]:
    """Return the changes of recorded series, and those of odds."""
    of_odds = [one for one in changes if parse_series(one.series).metric.endswith(_ODDS)]
    return [one for one in changes if one not in of_odds], of_odds


class Tails:
    """The tails of all latencies of one run and shard."""

    def __init__(self, effect: Config) -> None:
        self._effect = effect
        self._learnt: dict[str, Exceedance] = {}
        # by the raise of the odds, for as long as the panel has it
        self._reported: dict[ChangeId, Change] = {}
        self._held: list[Change] = []  # of the odds, confirmed while steps wait
        self._places: BySource[tuple[list[_Counts], tuple[Column, ...]]] = BySource()
        self._alone: list[ChangeId] = []  # steps of p99.9 that are tails: series and raise

    def with_odds(
        self,
        source: str,
        columns: Sequence[Column],
        values: NDArray[np.float64],
        following: Following,
        *,
        counts: bool,
    ) -> tuple[Sequence[Column], NDArray[np.float64], Following]:
        """Return columns and values of the next second and the values that follow, each with the odds.

        They have nothing to learn from a second that does not count.
        """
        places, every = self._places.get(source, columns, _counted)
        if not places:
            return columns, values, following
        learnt = [self._learnt.setdefault(one.series, Exceedance()) for one in places]
        odds = [one.odds if counts else _unknown_odds for one in learnt]

        def more() -> list[NDArray[np.float64]]:
            return [_with_odds(one, places, [of.expected for of in learnt]) for one in following()]

        return every, _with_odds(values, places, odds), more

    def update(
        self,
        source: str,
        k: int,
        changes: Sequence[Change],
        recents: Callable[[], Mapping[str, Recent]],
        near: NearSteps,
    ) -> list[Change]:
        """Return what changes of the odds mean in second `k`; `near`: steps that may cover a tail already."""
        held = [one for one in self._held if source_of(one.series) == source]
        self._held = [one for one in self._held if one not in held]
        every = [*held, *changes]
        if not every:
            return []
        seen = recents()
        return [one for change in every for one in self._meant(change, k, seen, near)]

    def renamed(self, step: Change, recents: Mapping[str, Recent]) -> Change:
        """Return a step of p99.9 as a tail when neither p50 nor p99 has moved; any other as it is."""
        name = identity(step)
        if step.state == "confirmed" and self._is_alone(step, recents):
            self._alone.append(name)
        if name not in self._alone:
            return step
        if step.state in _OVER:
            self._alone.remove(name)
        return replace(step, kind="tail")

    def _is_alone(self, step: Change, recents: Mapping[str, Recent]) -> bool:
        column = parse_series(step.series)
        if column.metric not in COUNTS or dict(column.labels) != {"quantile": _FAR}:
            return False
        names = [_quantile_series(column.source, column.metric, q) for q in (_MEDIAN, _SLOW)]
        return all(
            name in recents
            and recents[name].since(step.onset_k).size > 0
            and not self._has_moved(recents[name], step.onset_k)
            for name in names
        )

    def to_state(self) -> dict[str, Any]:
        """Return the state for JSON."""
        return {
            "learnt": {name: dataclasses.asdict(one) for name, one in self._learnt.items()},
            "reported": [(k, one.to_row()) for (_, k), one in self._reported.items()],
            "held": [one.to_row() for one in self._held],
            "alone": self._alone,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take back what `to_state` gave."""
        self._learnt = {name: Exceedance(**one) for name, one in state["learnt"].items()}
        self._alone = [(name, raised_k) for name, raised_k in state["alone"]]
        reported = [(k, Change.from_row(one)) for k, one in state["reported"]]
        self._reported = {(one.series, k): one for k, one in reported}
        self._held = [*map(Change.from_row, state["held"])]

    def _meant(
        self, odds: Change, k: int, recents: Mapping[str, Recent], near: NearSteps
    ) -> list[Change]:
        """Return a change of the odds as one of the latency, when it is the tail's alone.

        While a step waits it waits too: a step that is withdrawn covers nothing.
        """
        source, metric, quantile = _latency_of(odds.series)
        series = _quantile_series(source, metric, quantile)
        name = series, odds.raised_k
        known = self._reported.get(name)
        if odds.state in _OVER:
            self._reported.pop(name, None)
            self._held = [one for one in self._held if identity(one) != identity(odds)]
            if known is None:
                return []
            if odds.resolved_k is None:
                return [replace(known, state=odds.state)]
            return [ended(known, odds.resolved_k)]
        seen = self._levels(recents, series, source, metric, odds.onset_k)
        step = near.of(series_name(source, metric), odds.onset_k)
        if seen is None or step == "reported":
            self._reported.pop(name, None)
            return [] if known is None else [replace(known, state="withdrawn")]
        if step == "waiting":
            if odds.state == "confirmed":
                self._held.append(odds)
            return []
        before, after = seen
        # a step that was withdrawn may have had the second in which the odds were raised
        raised_k = k if known is None else known.raised_k
        change = replace(
            odds, series=series, raised_k=raised_k, before=before, after=after, kind="tail"
        )
        self._reported[name] = change
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
        if not self._effect.is_worth(before, after) or self._has_moved(middle, onset_k):
            return None
        return before, after

    def _has_moved(self, recent: Recent, onset_k: int) -> bool:
        """True when a level changed by the smallest step, or is not known on both sides."""
        before, after = self._around(recent, onset_k)
        return not isfinite(before + after) or self._effect.is_worth(before, after)

    def _around(self, recent: Recent, onset_k: int) -> tuple[float, float]:
        after = recent.since(onset_k)
        return (
            self._effect.unscaled(recent.before(onset_k)),
            self._effect.unscaled(float(np.median(after)) if after.size else float("nan")),
        )


def _odds_column(metric: str, quantile: str) -> Column:
    # the unit has the odds judged on log10, as latencies are
    return Column(f"{metric}{_ODDS}", (("quantile", quantile),), "seconds")


def _latency_of(series: str) -> tuple[str, str, str]:
    """Return source, latency and quantile from the name of a series of odds."""
    found = parse_series(series)
    return found.source, found.metric.removesuffix(_ODDS), found.label("quantile")


def _quantile_series(source: str, metric: str, quantile: str) -> str:
    return str(SeriesId(source, metric, (("quantile", quantile),)))
