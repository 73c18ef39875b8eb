"""Spikes that come again after the same time: a roll of segments every 52 s, a checkpoint every 8.5 min.

Method:  a burst begins where a value lies both the smallest step and five robust sd above the median of the
         last minute, and ends after two rows below that. With each burst the last 24 are compared with pulse
         trains (`_comb`); one is reported when it is rarer than the threshold, and resolved after three ticks
         without a burst on them, or when one of another period is reported.
Assumes: bursts of at most 20 s or two rows, six rows to two hours apart, of which noise hides two in a row
         and a quarter of all at most; a minute is one of rows of a second. A pulse train that is there from
         the start of a watch is how the cluster is, no news.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import log
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtrc

from detectors.kinds.recent_rows import MINUTE, Recent
from detectors.minimum_effect import Config, ended
from soak.core.model import Change, Series

# --- Whether bursts keep a period: how many fall on the ticks of a pulse train, against chance.
# Method:  pulse trains through every pair of an early and a late burst; of those with a burst at most ticks,
# the one with the rarest number of hits, by the binomial law of bursts that come at any time. Every pulse
# train tried costs its share.

LEAST_BURSTS = 6
EARLY_ROWS, EARLY_RATIO = 1.0, 0.02  # and of a period: by how much a burst may be early or late
_LEAST_ROWS = 6.0
_ENDS = 3  # bursts at either end that may be no part of the pulse train
_LEAST_FILLED = 0.75  # of the ticks
_MOST_CHANCE = 0.5  # of a burst to hit a tick by chance


@dataclass(frozen=True, slots=True)
class PulseTrain:
    """A period in the unit of the times; `surprise`: -ln of the chance of one so sharp in random bursts."""

    period: float
    surprise: float
    hits: NDArray[np.bool_]  # which bursts are on its ticks
    tick: float  # the last of these


def judged(starts: NDArray[np.int64] | NDArray[np.float64]) -> PulseTrain | None:
    """Return the sharpest pulse train of bursts, in rows and in order; None when there is none."""
    n = starts.size
    if n < LEAST_BURSTS:
        return None
    times = starts.astype(np.float64)
    first, periods, ticks = _candidates(times)
    width = EARLY_ROWS + EARLY_RATIO * periods
    chance = (2.0 * width + 1.0) / periods
    place = (times[np.newaxis] - times[first][:, np.newaxis]) / periods[:, np.newaxis]
    tick = np.round(place)
    hits = np.abs(place - tick) * periods[:, np.newaxis] <= width[:, np.newaxis]
    inside = hits & (tick >= 0) & (tick <= ticks[:, np.newaxis])
    twice = inside[:, 1:] & inside[:, :-1] & (tick[:, 1:] == tick[:, :-1])
    filled = inside.sum(axis=1) - twice.sum(axis=1)
    usable = (periods >= _LEAST_ROWS) & (chance <= _MOST_CHANCE) & (filled > _LEAST_FILLED * ticks)
    if not usable.any():
        return None
    # a pulse train goes through two bursts; the others hit it by chance, so many of them or more
    rarity = bdtrc(hits.sum(axis=1) - 3, n - 2, np.minimum(chance, _MOST_CHANCE))
    at = int(np.argmin(np.where(usable, rarity, np.inf)))
    period, last = _fitted(times[hits[at]], float(periods[at]))
    return PulseTrain(period, -log(rarity[at] * periods.size), hits[at], last)


def _candidates(
    times: NDArray[np.float64],
) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
    """Return the burst that each pulse train goes through, its period, and its ticks up to a late burst."""
    n = times.size
    found = [
        (i, (times[j] - times[i]) / ticks, ticks)
        for i in range(_ENDS)
        for j in range(n - _ENDS, n)
        if j - i >= LEAST_BURSTS - 1
        for ticks in range(round(0.6 * (j - i)), round(1.3 * (j - i)) + 1)
    ]
    first, periods, ticks = zip(*found, strict=True)
    return np.array(first, np.int64), np.array(periods), np.array(ticks, np.float64)


def _fitted(times: NDArray[np.float64], period: float) -> tuple[float, float]:
    """Return the period and the last tick by least squares over the ticks that were hit."""
    tick = np.round((times - times[0]) / period)
    slope, start = np.polyfit(tick, times, 1)
    return float(slope), float(start + slope * tick[-1])


# --- How often a series rose so far above its level before: what was so all along is no news.
# Method:  each rise past one of 18 heights counts once, in blocks of two minutes at first. When there are
# eight, each two become one, up to 16 minutes; from then on the oldest goes. Heights are counted in
# smallest steps above the median of the last minute, so a new level is one rise, not many.
# Assumes: a row a second or fewer; what was not measured has no block.

HEIGHTS = 18
_LOG_RATIO = log(1.2)  # of a height to the one below it
_BLOCKS = 8
_SHORTEST, _LONGEST_CROSSINGS = 120, 960  # seconds
_MOST_CROSSINGS = 255
_PART_HEIGHT = 0.65  # of a rise, or the next height above that: as high as it
_PART_OFTEN = 0.4  # of how often it comes now
_PART_BLOCKS = 2 / 3


@dataclass(slots=True)
class _Block:
    first_k: int
    rows: int = 0
    counts: bytearray = field(default_factory=lambda: bytearray(HEIGHTS))


@dataclass(slots=True)
class Crossings:
    """The rises of one series in the hours before."""

    seconds: int = _SHORTEST  # of a block
    height: int = 0  # passed by the last row
    blocks: list[_Block] = field(default_factory=list)

    def take(self, k: int, steps: float) -> None:
        """Take a row that lies so many smallest steps above the level; NaN where that is not known."""
        if not self.blocks or k >= self.blocks[-1].first_k + self.seconds:
            self._begin(k)
        block, height = self.blocks[-1], _height(steps)
        block.rows += 1
        for at in range(self.height, height):
            block.counts[at] = min(_MOST_CROSSINGS, block.counts[at] + 1)
        self.height = height

    def were_as_often(self, steps: float, every_rows: float, before_k: int) -> bool:
        """True when rises so high were about as frequent in most blocks that ended before a second."""
        at = _height(_PART_HEIGHT * steps)
        if at >= HEIGHTS:  # higher than what is counted
            return False
        ended = self._ended(before_k)
        often = [
            block.counts[at] >= max(1.0, _PART_OFTEN * block.rows / every_rows) for block in ended
        ]
        return bool(ended) and sum(often) >= _PART_BLOCKS * len(ended)

    def forget(self, from_k: int) -> None:
        """Leave out the blocks that did not end before this second."""
        self.blocks = self._ended(from_k)

    def to_state(self) -> dict[str, Any]:
        """Return the state for JSON."""
        return {
            "seconds": self.seconds,
            "height": self.height,
            "blocks": [[one.first_k, one.rows] for one in self.blocks],
            "counts": b64encode(b"".join(one.counts for one in self.blocks)).decode(),
        }

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> Crossings:
        """Return what `to_state` described."""
        counts = bytearray(b64decode(state["counts"]))
        blocks = [
            _Block(first_k, rows, counts[at * HEIGHTS : (at + 1) * HEIGHTS])
            for at, (first_k, rows) in enumerate(state["blocks"])
        ]
        return cls(state["seconds"], state["height"], blocks)

    def _ended(self, by_k: int) -> list[_Block]:
        followed = zip(self.blocks, self.blocks[1:], strict=False)
        return [block for block, following in followed if following.first_k <= by_k]

    def _begin(self, k: int) -> None:
        if len(self.blocks) == _BLOCKS and self.seconds < _LONGEST_CROSSINGS:
            self.seconds *= 2
            self.blocks = [
                _joined(*self.blocks[at : at + 2]) for at in range(0, len(self.blocks), 2)
            ]
        self.blocks = [*self.blocks[-_BLOCKS + 1 :], _Block(k)]


def _joined(one: _Block, other: _Block) -> _Block:
    both = zip(one.counts, other.counts, strict=True)
    counts = bytearray(min(_MOST_CROSSINGS, left + right) for left, right in both)
    return _Block(one.first_k, one.rows + other.rows, counts)


def _height(steps: float) -> int:
    """Return how many of the heights lie below so many smallest steps, the first being one."""
    return min(HEIGHTS, 1 + int(log(steps) / _LOG_RATIO)) if steps >= 1.0 else 0


_SDS = 5.0
_CLEAR_SDS = 3.0  # a rise that is no noise, though it need not be a burst
_CALM = 2  # rows that end a burst
_LONGEST = 20  # seconds, or two rows
_MOST = 24  # bursts held against pulse trains
_SILENT_TICKS = 3.5
_SLACK = 3  # seconds
_SAME_PERIOD = 0.05
_BEAT_RATIO = 4 / 3  # faster or slower, a pulse train of about the height is the one that was there
_BEAT_STEPS = 1.7  # by so many smallest steps it may have grown: of 1.5 x, by a factor of 2
_REMEMBERED_SECONDS = 7200  # at least a burst; a pulse train that was so, or whose beat changes
_SAME_HEIGHT = 1.2  # in smallest steps above the level
_FOLLOWED = 0.25  # of how early or late a burst is: a period is never known exactly
_LENIENT = (
    1.5  # a burst of the standing pulse train may be so much earlier or later: ticks are less sure
)
_STEP_SECONDS = 60  # before a step and after it, in which a pulse train that begins is the step's
_MOST_STEPS = 4  # the newest, with which a pulse train may have come

Burst = tuple[int, int, float]
"""First second, seconds, and the highest value on the scale of judgement."""


@dataclass(slots=True)
class Watch:
    """The bursts of one series, as they come."""

    known_until_k: int | None = None  # a pulse train that is there by this second is no news
    stepped_k: list[int] = field(default_factory=list)  # nor is one that begins about a step
    known: tuple[float, float, float] | None = None  # of such a pulse train: last tick, period, top
    calm_rows: int = 0  # since the standing pulse train had a burst
    tick_k: float | None = None  # when it last had; None where any burst may be one, behind a gap
    now: Burst | None = None
    bar: float = 0.0  # what a value must pass to belong to it
    bursts: list[Burst] = field(default_factory=list)
    standing: Change | None = None
    spacing: int = 1  # seconds from row to row
    crossings: Crossings = field(default_factory=Crossings)  # while no pulse train stands
    # a pulse train that was so: when last, period, height in smallest steps above the level
    hidden: tuple[int, float, float] | None = None

    def take(self, series: str, k: int, y: float, recent: Recent, config: Config) -> list[Change]:
        """Take the next value, with the level before it; return a pulse train that is found, or its end."""
        changes = self._gone(k)
        if self.standing is None:
            rise = y - recent.level
            is_clear = rise > _CLEAR_SDS * recent.sd
            self.crossings.take(k, rise / config.reach(recent.level) if is_clear else 0.0)
        burst = None
        if self.now is not None and k > self.now[0] + self.now[1] + (_CALM - 1) * self.spacing:
            burst, self.now = self.now, None
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
        if burst is None or burst[1] > max(_LONGEST, 2 * self.spacing):
            return changes
        if self.bursts and burst[0] > self.bursts[-1][0] + self._longest_gap():
            self.bursts = []
        self.bursts = [*self.bursts, burst][-_MOST:]
        return changes + self._reported(series, k, recent.level, config)

    def note_step(self, onset_k: int) -> None:
        """Leave a pulse train that begins about this second to the step."""
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

    def _reported(self, series: str, k: int, level: float, config: Config) -> list[Change]:
        """Return a pulse train that is news, and the end of the one that stood until then."""
        found, old = _train_of(series, self.bursts, self.spacing, level, config), self.standing
        if found is None:
            return []
        change, tick_k = found
        if old is not None and _is_same(_period(change), _period(old)):
            self.tick_k = tick_k
            self.calm_rows = min(self.calm_rows, round((k - tick_k) / self.spacing))
            return []
        steps = (config.scaled_one(change.after) - level) / config.reach(level)
        if self._is_known(change, tick_k, config) or self._was_so(k, change, steps):
            return []
        self.standing, self.tick_k = replace(change, raised_k=k), tick_k
        self.crossings.forget(change.onset_k)  # else it would be known when it comes back
        self.calm_rows = round((k - tick_k) / self.spacing)
        before = [] if old is None else [ended(old, k)]
        return [*before, self.standing]

    def _longest_gap(self) -> float:
        """Return how many seconds after a burst the next one may come and follow it: noise may hide ticks."""
        gaps = np.diff([first for first, *_ in self.bursts])
        period = min(float(np.median(gaps)) if gaps.size else 0.0, _REMEMBERED_SECONDS)
        return max(_SILENT_TICKS * period, _REMEMBERED_SECONDS)

    def _is_on_tick(self, k: int) -> bool:
        """Return whether a burst is the standing train's, whose ticks follow it by a part when it is."""
        period = _period(self.standing)
        if not period:
            return False
        if self.tick_k is None:
            self.tick_k = float(k)
        tick_k = self.tick_k + period * round((k - self.tick_k) / period)
        reach = EARLY_ROWS * self.spacing + EARLY_RATIO * period
        is_hit = abs(k - tick_k) <= _LENIENT * reach
        if is_hit:
            self.tick_k = tick_k + _FOLLOWED * (k - tick_k)
        return is_hit

    def _is_known(self, change: Change, tick_k: float, config: Config) -> bool:
        """Return whether a pulse train was there from the start, or came with a step; note it when so.

        A collector's beat changes with its heap, and its pauses grow: about as high and about as often,
        not long after, is the same pulse train.
        """
        period, onset_k = _period(change), change.onset_k
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
        """Return whether the series rose as high, as often, before: noise hid that it was a pulse train."""
        if self.known_until_k is None:  # offline, where nothing is reported
            return False
        every_rows = _period(change) / self.spacing
        is_hidden = self.crossings.were_as_often(steps, every_rows, change.onset_k)
        if not is_hidden and self.hidden is not None:
            last_k, period, highest = self.hidden
            is_hidden = (
                _is_same(_period(change), period)
                and steps <= _SAME_HEIGHT * highest
                and k <= last_k + _REMEMBERED_SECONDS
            )
            steps = highest  # it does not grow by so much time and again
        if is_hidden:
            self.hidden = k, _period(change), steps
        return is_hidden

    def _gone(self, k: int) -> list[Change]:
        change = self.standing
        is_silent = self.calm_rows * self.spacing >= _SILENT_TICKS * _period(change)
        if change is None or not is_silent:
            return []
        self.standing, self.bursts = None, []
        return [ended(change, k)]

    def to_state(self) -> dict[str, Any]:
        """Return the state for JSON."""
        standing = self.standing and self.standing.to_row()
        return {**asdict(self), "standing": standing, "crossings": self.crossings.to_state()}

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> Watch:
        """Return what `to_state` described, once through JSON, which has lists for tuples."""
        tuples = {name: state[name] and tuple(state[name]) for name in ("known", "now", "hidden")}
        bursts = [tuple(one) for one in state["bursts"]]
        standing = state["standing"] and Change.from_row(state["standing"])
        crossings = Crossings.of(state["crossings"])
        read = {"bursts": bursts, "standing": standing, "crossings": crossings}
        return cls(**{**state, **tuples, **read})


def words_of(change: Change) -> str:
    """Return `every 52.1 s, 3 s long`; "" for what is no pulse train."""
    if change.period_seconds is None or change.burst_seconds is None:
        return ""
    return f"every {change.period_seconds:.4g} s, {change.burst_seconds:.3g} s long"


def detect(series: Series, config: Config) -> list[Change]:
    """Return the pulse trains of a whole series in order of first bursts; those that ended are `gone`."""
    spacing = int(np.median(np.diff(series.k))) if series.k.size > 1 else 1
    watch, recent = Watch(spacing=spacing), Recent()
    found: dict[int, Change] = {}
    y = config.scaled(series.values).tolist()
    for k, value in zip(series.k.tolist(), y, strict=True):
        for change in watch.take(series.name, k, value, recent, config):
            found[change.raised_k] = change
        recent.take(k, value)
    return list(found.values())


def _train_of(
    series: str, bursts: Sequence[Burst], spacing: int, level: float, config: Config
) -> tuple[Change, float] | None:
    """Return the pulse train that bursts form, and the last tick that they hit; None when chance would do."""
    starts = np.array([first for first, _, _ in bursts], dtype=np.int64)
    train = judged(starts / spacing)
    if train is None:
        return None
    period = train.period * spacing
    # there is one look a burst, not one a second
    threshold = config.threshold - log(max(1.0, float(np.diff(starts).mean())))
    if train.surprise < threshold:
        return None
    hits = [burst for burst, is_hit in zip(bursts, train.hits, strict=True) if is_hit]
    first = hits[0][0]
    change = Change(
        series=series,
        raised_k=first,
        onset_k=first,
        interval=(max(0, first - round(period)), first + _SLACK),
        before=config.unscaled(level),
        after=config.unscaled(float(np.median([top for _, _, top in hits]))),
        state="confirmed",
        confidence=config.confidence(train.surprise),
        kind="spikes",
        period_seconds=round(period, 2),
        burst_seconds=float(np.median([seconds for _, seconds, _ in hits])),
    )
    return change, train.tick * spacing


def _period(train: Change | None) -> float:
    return 0.0 if train is None else train.period_seconds or 0.0


def _is_same(period: float, known: float) -> bool:
    return abs(period - known) <= _SAME_PERIOD * known
