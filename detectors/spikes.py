"""Spikes that come again after the same time: a roll of segments every 52 s, a checkpoint every 8.5 min.

Method:  a burst begins where a value lies both the smallest step and five robust sd above the median of the
         last minute, and ends after two calm rows. With each burst the last 24 are held against combs
         (`_comb`); one is told when it is rarer than the threshold, and gone after three ticks without a
         burst on them, or when one of another period is told.
Assumes: bursts of at most 20 s or two rows, six rows to two hours apart, of which noise hides two in a row
         and a quarter of all at most; a minute is one of rows of a second. A comb that is there from the
         start of a watch is how the cluster is, no news.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import log
from typing import Any

import numpy as np

from detectors import _comb
from detectors._crossings import Crossings
from detectors._recent import MINUTE, Recent
from detectors._worth import Config
from detectors.drift import change_of
from soak.core.model import Change, Series

__all__ = ["Config", "Watch", "detect", "words_of"]

_SDS = 5.0
_CLEAR_SDS = 3.0  # a rise that is no noise, though it need not be a burst
_CALM = 2  # rows that end a burst
_LONGEST = 20  # seconds, or two rows
_MOST = 24  # bursts held against combs
_SILENT_TICKS = 3.5
_SLACK = 3  # seconds
_SAME_PERIOD = 0.05
_BEAT_RATIO = 4 / 3  # faster or slower, a comb of about the height is the one that was there
_BEAT_STEPS = 1.7  # by so many smallest steps it may have grown: of 1.5 x, by a factor of 2
_REMEMBERED_SECONDS = 7200  # at least a burst; a comb that was so, or whose beat changes
_SAME_HEIGHT = 1.2  # in smallest steps above the level
_FOLLOWED = 0.25  # of how early or late a burst is: a period is never known exactly
_LENIENT = 1.5  # a burst of the standing comb may be so much earlier or later: ticks are less sure
_STEP_SECONDS = 60  # before a step and after it, in which a comb that begins is the step's
_MOST_STEPS = 4  # the newest, with which a comb may have come

Burst = tuple[int, int, float]
"""First second, seconds, and the highest value on the scale of judgement."""


@dataclass(slots=True)
class Watch:
    """The bursts of one series, as they come."""

    known_until_k: int | None = None  # a comb that is there by this second is no news
    stepped_k: list[int] = field(default_factory=list)  # nor is one that begins about a step
    known: tuple[float, float, float] | None = None  # of such a comb: last tick, period, top
    calm_rows: int = 0  # since the standing comb had a burst
    tick_k: float | None = None  # when it last had; None where any burst may be one, behind a gap
    now: Burst | None = None
    bar: float = 0.0  # what a value must pass to belong to it
    bursts: list[Burst] = field(default_factory=list)
    standing: Change | None = None
    spacing: int = 1  # seconds from row to row
    crossings: Crossings = field(default_factory=Crossings)  # while no comb stands
    # a comb that was so: when last, period, height in smallest steps above the level
    hidden: tuple[int, float, float] | None = None

    def take(self, series: str, k: int, y: float, recent: Recent, config: Config) -> list[Change]:
        """Take the next value, with the level before it; return a comb that is found, or its end."""
        changes = self._gone(k)
        if self.standing is None:
            rise = y - recent.level
            is_clear = rise > _CLEAR_SDS * recent.sd
            self.crossings.take(k, rise / config.reach(recent.level) if is_clear else 0.0)
        ended = None
        if self.now is not None and k > self.now[0] + self.now[1] + (_CALM - 1) * self.spacing:
            ended, self.now = self.now, None
        self.calm_rows += 1
        # a new level, known by now
        if self.now is not None and self.now[1] > MINUTE * self.spacing:
            self.now = None
        if self.now is None:
            self.bar = recent.level + max(_SDS * recent.sd, config.reach(recent.level))
        if y > self.bar:
            if self.now is None and self._is_on_tick(k):
                self.calm_rows = 0
            first, _, top = self.now or (k, 0, y)
            self.now = first, k - first + self.spacing, max(top, y)
        if ended is None or ended[1] > max(_LONGEST, 2 * self.spacing):
            return changes
        if self.bursts and ended[0] > self.bursts[-1][0] + self._longest_gap():
            self.bursts = []
        self.bursts = [*self.bursts, ended][-_MOST:]
        return changes + self._told(series, k, recent.level, config)

    def note_step(self, onset_k: int) -> None:
        """Leave a comb that begins about this second to the step."""
        self.stepped_k = [*self.stepped_k, onset_k][-_MOST_STEPS:]

    def start_anew(self) -> None:
        """Forget the bursts: what comes does not follow them."""
        self.now, self.bursts, self.tick_k = None, [], None

    def go_back(self, known_until_k: int) -> None:
        """Forget all but what stands: what comes is in seconds that were there already."""
        self.start_anew()
        self.crossings, self.stepped_k = Crossings(), []
        self.known = self.hidden = None
        self.known_until_k = known_until_k

    def _told(self, series: str, k: int, level: float, config: Config) -> list[Change]:
        """Return a comb that is news, and the end of the one that stood until then."""
        combed, old = _combed(series, self.bursts, self.spacing, level, config), self.standing
        if combed is None:
            return []
        change, tick_k = combed
        if old is not None and _is_same(change.period_seconds, old.period_seconds):
            self.tick_k = tick_k
            self.calm_rows = min(self.calm_rows, round((k - tick_k) / self.spacing))
            return []
        steps = (config.scaled_one(change.after) - level) / config.reach(level)
        if self._is_known(change, tick_k, config) or self._was_so(k, change, steps):
            return []
        self.standing, self.tick_k = replace(change, raised_k=k), tick_k
        self.crossings.forget(change.onset_k)  # else it would be known when it comes back
        self.calm_rows = round((k - tick_k) / self.spacing)
        ended = [] if old is None else [replace(old, state="gone", gone_k=k)]
        return [*ended, self.standing]

    def _longest_gap(self) -> float:
        """Return how many seconds after a burst the next one may come and follow it: noise may hide ticks."""
        gaps = np.diff([first for first, *_ in self.bursts])
        period = min(float(np.median(gaps)) if gaps.size else 0.0, _REMEMBERED_SECONDS)
        return max(_SILENT_TICKS * period, _REMEMBERED_SECONDS)

    def _is_on_tick(self, k: int) -> bool:
        """Return whether a burst is the standing comb's, whose ticks follow it by a part when it is."""
        period = 0.0 if self.standing is None else self.standing.period_seconds or 0.0
        if not period:
            return False
        if self.tick_k is None:
            self.tick_k = float(k)
        tick_k = self.tick_k + period * round((k - self.tick_k) / period)
        reach = _comb.EARLY_ROWS * self.spacing + _comb.EARLY_RATIO * period
        is_hit = abs(k - tick_k) <= _LENIENT * reach
        if is_hit:
            self.tick_k = tick_k + _FOLLOWED * (k - tick_k)
        return is_hit

    def _is_known(self, change: Change, tick_k: float, config: Config) -> bool:
        """Return whether a comb was there from the start, or came with a step; note it when so.

        A collector's beat changes with its heap, and its pauses grow: about as high and about as often,
        not long after, is the same comb.
        """
        period, onset_k = change.period_seconds or 0.0, change.onset_k
        top = config.scaled_one(change.after)
        is_old = self.known_until_k is not None and onset_k <= self.known_until_k + period
        if is_old or any(
            -_STEP_SECONDS <= onset_k - step_k <= _STEP_SECONDS + period
            for step_k in self.stepped_k
        ):
            self.known = tick_k, period, top
        if self.known is None:
            return False
        last_k, known_period, known_top = self.known
        is_alike = (
            1.0 / _BEAT_RATIO <= period / known_period <= _BEAT_RATIO
            and top <= known_top + _BEAT_STEPS * config.reach(known_top)
            and tick_k <= last_k + _REMEMBERED_SECONDS
        )
        if not is_alike and not _is_same(period, known_period):
            return False
        self.known = tick_k, known_period, known_top
        return True

    def _was_so(self, k: int, change: Change, steps: float) -> bool:
        """Return whether the series rose as high, as often, before: noise hid that it was a comb."""
        if self.known_until_k is None:  # looking back, nobody is told
            return False
        every_rows = (change.period_seconds or 0.0) / self.spacing
        is_hidden = self.crossings.were_as_often(steps, every_rows, change.onset_k)
        if not is_hidden and self.hidden is not None:
            last_k, period, highest = self.hidden
            is_hidden = (
                _is_same(change.period_seconds, period)
                and steps <= _SAME_HEIGHT * highest
                and k <= last_k + _REMEMBERED_SECONDS
            )
            steps = highest  # it does not grow by so much time and again
        if is_hidden:
            self.hidden = k, change.period_seconds or 0.0, steps
        return is_hidden

    def _gone(self, k: int) -> list[Change]:
        change = self.standing
        if change is None or change.period_seconds is None:
            return []
        if self.calm_rows * self.spacing < _SILENT_TICKS * change.period_seconds:
            return []
        self.standing, self.bursts = None, []
        return [replace(change, state="gone", gone_k=k)]

    def to_state(self) -> dict[str, Any]:
        """Return the state for JSON."""
        return {**asdict(self), "crossings": self.crossings.to_state()}

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> Watch:
        """Return what `to_state` described, once through JSON."""
        now = state["now"]
        return cls(
            state["known_until_k"],
            state["stepped_k"],
            None if state["known"] is None else tuple(state["known"]),
            state["calm_rows"],
            state["tick_k"],
            None if now is None else _burst(now),
            state["bar"],
            [_burst(one) for one in state["bursts"]],
            change_of(state["standing"]),
            state["spacing"],
            Crossings.of(state["crossings"]),
            None if state["hidden"] is None else tuple(state["hidden"]),
        )


def words_of(change: Change) -> str:
    """Return `every 52.1 s, 3 s long`; "" for what is no comb."""
    if change.period_seconds is None or change.burst_seconds is None:
        return ""
    return f"every {change.period_seconds:.4g} s, {change.burst_seconds:.3g} s long"


def detect(series: Series, config: Config) -> list[Change]:
    """Return the combs of a whole series in order of their first burst; those that ended are `gone`."""
    spacing = int(np.median(np.diff(series.k))) if series.k.size > 1 else 1
    watch, recent = Watch(spacing=spacing), Recent()
    found: dict[int, Change] = {}
    y = config.scaled(series.values).tolist()
    for k, value in zip(series.k.tolist(), y, strict=True):
        for change in watch.take(series.name, k, value, recent, config):
            found[change.raised_k] = change
        recent.take(k, value)
    return list(found.values())


def _combed(
    series: str, bursts: Sequence[Burst], spacing: int, level: float, config: Config
) -> tuple[Change, float] | None:
    """Return the comb that bursts form, and the last tick that they hit; None when chance would do."""
    starts = np.array([first for first, _, _ in bursts], dtype=np.int64)
    comb = _comb.judged(starts / spacing)
    if comb is None:
        return None
    period = comb.period * spacing
    # there is one look a burst, not one a second
    threshold = config.threshold - log(max(1.0, float(np.diff(starts).mean())))
    if comb.surprise < threshold:
        return None
    hits = [burst for burst, is_hit in zip(bursts, comb.hits, strict=True) if is_hit]
    first = hits[0][0]
    change = Change(
        series=series,
        raised_k=first,
        onset_k=first,
        interval=(max(0, first - round(period)), first + _SLACK),
        before=config.unscaled(level),
        after=config.unscaled(float(np.median([top for _, _, top in hits]))),
        state="confirmed",
        confidence=config.confidence(comb.surprise),
        kind="spikes",
        period_seconds=round(period, 2),
        burst_seconds=float(np.median([seconds for _, seconds, _ in hits])),
    )
    return change, comb.tick * spacing


def _is_same(period: float | None, known: float | None) -> bool:
    if period is None or known is None:
        return False
    return abs(period - known) <= _SAME_PERIOD * known


def _burst(state: Sequence[Any]) -> Burst:
    first, seconds, top = state
    return int(first), int(seconds), float(top)
