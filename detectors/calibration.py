"""What the online detector does on noise like this: how often it errs, and how small a step it sees.

Method:  series made of blocks of the quiet seconds (`drawn`) go through the very `Panel`. False alarms are
         counted at rates that are high enough to count, and extended to the set one (`extended`). Then steps
         of many sizes are put in, and from which size on 90 % are confirmed in time is found (`size_seen`).
Assumes: the quiet seconds are typical. Each series is judged by itself: alarms that come together are one
         finding and are counted apart here. It speaks of steps, and of the tails that are steps of p99.9
         alone: blocks of minutes hold no drift of hours and no pulse train, and no counts of slow messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from math import log

import numpy as np
from numpy.typing import NDArray

from detectors import minimum_effect
from detectors.level_shift import Config
from detectors.minimum_effect import FLOOR_SECONDS
from detectors.online.panel import Panel
from detectors.online.state import CELL
from soak.core.model import Change, Column, Series
from soak.core.series import series_name
from soak.core.units import SECOND_NS

BLOCK_ROWS = 120
LONG_GAP = 10  # missing seconds over which neighbours are no neighbours any more
LEAST_ROWS = 5 * BLOCK_ROWS
"""Fewer quiet rows of a series say nothing."""
KIND = "step"
"""The kind of change that this speaks of."""
PROBABILITY = 0.9
MONTH_NS = 30 * 86_400 * SECOND_NS
SHORTEST_SECONDS = 300  # between two false alarms, of the rates that are counted
_LADDER = tuple(SHORTEST_SECONDS * 4**i for i in range(5))
_LEAST_ALLOWED = 40  # alarms, for a rate to be worth counting
RUN_ROWS = 1800
_LEAD_ROWS = 400  # before a step
_NEAR_ROWS = 60  # to it, at most, of the interval of a change that is the step
_SIZES = 14
_LEAST_COPIES = 2  # of each size
_SMALLEST_SD, _LARGEST_SD = 0.1, 8.0  # sizes tried, in standard deviations of a second
_LARGEST_STEPS = 8.0  # and in smallest steps, on the scale of the series
_TAILS = (0.15, 0.85)
_GAUSS = 2.07  # standard deviations between these two quantiles


@dataclass(frozen=True, slots=True)
class FalseAlarms:
    """What was counted, and what it comes to at the set rate."""

    rungs: tuple[Rung, ...]
    ratio: Ratio


@dataclass(frozen=True, slots=True)
class Power:
    """The level before a step, and the nearest above it that is reported in time; None: none of those tried.

    Steps of a time are factors, so of a level that is not above zero nothing `is_known`.
    """

    series: str
    unit: str
    before: float
    after: tuple[float | None, ...]  # one for each time

    @property
    def is_known(self) -> bool:
        return self.unit != "seconds" or self.before > 0.0

    def ratio(self, at: int) -> float | None:
        after = self.after[at]
        return None if after is None or self.before <= 0.0 else after / self.before


def false_alarms(many: Sequence[Quiet], config: Config, *, values: int, seed: int) -> FalseAlarms:
    """Return what is to be expected of series like these, which `values` values in all are made of.

    Raises:
        ValueError: a series has fewer than `LEAST_ROWS` quiet rows.
    """
    _check(many)
    rng = np.random.default_rng([seed, 1])
    set_seconds = config.false_alarms / SECOND_NS * config.panel_size
    per_rung = values // len(_LADDER)
    steps = [one for one in _LADDER if one <= set_seconds and per_rung / one >= _LEAST_ALLOWED]
    rungs = [_counted(rng, many, config, one, per_rung) for one in steps or _LADDER[:1]]
    return FalseAlarms(tuple(rungs), extended(rungs, set_seconds))


def power(
    many: Sequence[Quiet],
    config: Config,
    within_rows: Sequence[int],
    *,
    values: int,
    seed: int,
) -> list[Power]:
    """Return for each series the smallest step up that is confirmed within so many rows.

    Raises:
        ValueError: a series has fewer than `LEAST_ROWS` quiet rows.
    """
    _check(many)
    rng = np.random.default_rng([seed, 2])
    rows = _LEAD_ROWS + max(within_rows)
    copies = max(_LEAST_COPIES, values // (rows * len(many) * _SIZES))
    sizes = [_sizes(one, config) for one in many]
    tables = []
    for one, tried in zip(many, sizes, strict=True):
        table = drawn(rng, one, rows, _SIZES * copies)
        shift = np.repeat(tried, copies)
        after = table[_LEAD_ROWS:]
        table[_LEAD_ROWS:] = after * 10.0**shift if _is_log(one) else after + shift
        tables.append(table)
    whole, units = np.hstack(tables), _units(tables, many)
    delays = np.full(len(units), np.inf)
    for limit in sorted(set(within_rows)):  # each series is judged by itself; the reported are done
        open_ = np.flatnonzero(np.isinf(delays))
        some = whole[: _LEAD_ROWS + limit, open_]
        for row, column, change in _changes(config, some, [units[i] for i in open_]):
            if row >= _LEAD_ROWS and change.state == "confirmed" and _is_the_step(change):
                delays[open_[column]] = min(delays[open_[column]], row - _LEAD_ROWS + 1)
    found = []
    for one, tried, delay in zip(many, sizes, np.split(delays, len(many)), strict=True):
        tries = delay.reshape(_SIZES, copies)
        seen = [size_seen(tried, tries <= limit, PROBABILITY) for limit in within_rows]
        after_steps = tuple(None if size is None else _moved(one, size) for size in seen)
        power = Power(one.series, one.unit, one.level, after_steps)
        found.append(power if power.is_known else replace(power, after=(None,) * len(seen)))
    return found


def least_values(series: int, within_rows: int) -> int:
    """Return how many values `power` of so many series is made of at least."""
    return (_LEAD_ROWS + within_rows) * series * _SIZES * _LEAST_COPIES


def _is_the_step(change: Change) -> bool:
    low, high = change.interval
    is_near = low - _NEAR_ROWS <= _LEAD_ROWS <= high + _NEAR_ROWS
    return is_near and change.after > change.before


def _counted(
    rng: np.random.Generator,
    many: Sequence[Quiet],
    config: Config,
    allowed_seconds: int,
    values: int,
) -> Rung:
    lead = config.baseline // SECOND_NS
    copies = max(1, values // ((RUN_ROWS + lead) * len(many)))
    tables = [drawn(rng, one, RUN_ROWS + lead, copies) for one in many]
    short = replace(config, false_alarms=allowed_seconds * SECOND_NS, panel_size=1)
    changes = _changes(short, np.hstack(tables), _units(tables, many))
    states = [change.state for _, _, change in changes]
    seconds = float(RUN_ROWS * copies * len(many))
    return Rung(allowed_seconds, seconds, states.count("warning"), states.count("confirmed"))


def _units(tables: Sequence[NDArray[np.float64]], many: Sequence[Quiet]) -> list[str]:
    """Return the unit of each column of the tables side by side."""
    return [one.unit for one, table in zip(many, tables, strict=True) for _ in table[0]]


def _changes(
    config: Config, whole: NDArray[np.float64], units: Sequence[str]
) -> list[tuple[int, int, Change]]:
    """Return row, column and change of everything that a panel of these columns reports."""
    columns = [Column("x", (("i", str(i)),), unit) for i, unit in enumerate(units)]
    places = {series_name("s", column.name): i for i, column in enumerate(columns)}
    panel, found, rows = Panel(config), [], list(whole)
    for row, values in enumerate(rows):
        following = partial(rows.__getitem__, slice(row + 1, row + CELL))
        changes = panel.update("s", columns, row, values, True, "soak", following=following)
        found += [(row, places[change.series], change) for change in changes]
    return found


def _sizes(one: Quiet, config: Config) -> NDArray[np.float64]:
    y = np.log10(np.maximum(one.values, FLOOR_SECONDS)) if _is_log(one) else one.values
    low, high = np.quantile(y, _TAILS)
    sd = float(high - low) / _GAUSS
    smallest = _smallest_step(one, float(np.median(y)), config)
    return np.geomspace(
        max(smallest, _SMALLEST_SD * sd), max(_LARGEST_STEPS * smallest, _LARGEST_SD * sd), _SIZES
    )


def _smallest_step(one: Quiet, level: float, config: Config) -> float:
    """Return the smallest step up from a level, both on the scale of the series."""
    column = [Column("x", unit=one.unit)]
    least = minimum_effect.least_changes(column, config.smallest_step_seconds)
    levels, is_log = np.array([level], np.float32), minimum_effect.is_log(column)
    ratio = np.array([config.smallest_step_ratio])
    rises = minimum_effect.smallest_rises(levels, is_log, least, ratio)
    return float(rises[0])


def _moved(one: Quiet, size: float) -> float:
    return float(one.level * 10.0**size) if _is_log(one) else one.level + size


def _is_log(one: Quiet) -> bool:
    return one.unit == "seconds"


def _check(many: Sequence[Quiet]) -> None:
    for one in many:
        if one.values.size < LEAST_ROWS:
            raise ValueError(f"{one.series}: {one.values.size} quiet rows, at least {LEAST_ROWS}")
    if not many:
        raise ValueError("no series")


# --- The quiet rows of a series (no change in them), and series of any length resampled from them.
# Method:  stationary bootstrap (Politis and Romano 1994, doi:10.1080/01621459.1994.10476870). Blocks are
# `BLOCK_ROWS` long and a geometric number more, and never reach over a step that was cut out.
# Assumes: what happens slower than a block is not kept: it comes back as jumps between blocks, so a series
# whose level moves slowly looks worse than it is, never better.


@dataclass(frozen=True, slots=True)
class Quiet:
    """Stretches without a step, one after the other, all brought to one level; shape (n,) each."""

    series: str
    unit: str
    values: NDArray[np.float64]
    left: NDArray[np.int64]  # rows from each one on to the end of its stretch
    cut: int  # steps that were taken out

    @property
    def level(self) -> float:
        return float(np.median(self.values))


def quiet(series: Series, unit: str, changes: Sequence[Change]) -> Quiet:
    """Return what is left of a series without its steps and the rows that each may have begun in.

    Levels before and after a step become one: by a factor where the unit is seconds, else by a sum.
    Stretches shorter than a block are left out; so nothing may be left.
    """
    k, values = series.k, series.values
    keep = np.ones(k.size, np.bool_)
    edges = {0, k.size, *(int(row) + 1 for row in np.flatnonzero(np.diff(k) > LONG_GAP))}
    for change in changes:
        low, high = np.searchsorted(k, (change.interval[0], change.interval[1]))
        keep[low:high] = False
        edges.add(int(np.searchsorted(k, change.onset_k)))
    stretches = [values[a:b][keep[a:b]] for a, b in pairwise(sorted(edges))]
    stretches = [stretch for stretch in stretches if stretch.size >= BLOCK_ROWS]
    levelled = _levelled(stretches, is_log=unit == "seconds")
    left = [np.arange(stretch.size, 0, -1) for stretch in stretches]
    return Quiet(
        series.name,
        unit,
        np.concatenate([np.empty(0), *levelled]),
        np.concatenate([np.empty(0, np.int64), *left]),
        len(changes),
    )


def drawn(rng: np.random.Generator, source: Quiet, rows: int, copies: int) -> NDArray[np.float64]:
    """Return series of blocks drawn with replacement, shape (rows, copies)."""
    starts = np.flatnonzero(source.left >= BLOCK_ROWS)
    shape = (rows // BLOCK_ROWS + 1, copies)
    begin = rng.choice(starts, shape)
    length = BLOCK_ROWS - 1 + rng.geometric(1.0 / BLOCK_ROWS, shape)
    length = np.minimum(length, source.left[begin])
    shift = begin - (np.cumsum(length, axis=0) - length)
    made = np.empty((rows, copies))
    for copy in range(copies):
        places = np.repeat(shift[:, copy], length[:, copy])[:rows] + np.arange(rows)
        made[:, copy] = source.values[places]
    return made


def _levelled(
    stretches: Sequence[NDArray[np.float64]], *, is_log: bool
) -> list[NDArray[np.float64]]:
    if not stretches:
        return []
    level = float(np.median(np.concatenate(stretches)))
    if not is_log:
        return [stretch + (level - float(np.median(stretch))) for stretch in stretches]
    least = FLOOR_SECONDS
    return [
        stretch * max(level, least) / max(float(np.median(stretch)), least) for stretch in stretches
    ]


# --- Measured false-alarm rates extrapolated to rates that cannot be counted.

_SLOPE_SD = 0.2
_HEIGHTS = np.linspace(-9.0, 6.0, 601)  # log of the ratio at the middle of what was counted
_SLOPES = np.linspace(-0.9, 0.9, 241)
_INTERVAL = (0.025, 0.5, 0.975)


@dataclass(frozen=True, slots=True)
class Rung:
    """What came in `seconds` of series without a change, when one in `allowed_seconds` was allowed."""

    allowed_seconds: float
    seconds: float
    warned: int
    confirmed: int

    @property
    def allowed(self) -> float:
        return self.seconds / self.allowed_seconds


@dataclass(frozen=True, slots=True)
class Ratio:
    """False alarms that come, over those that were allowed: the middle, and what holds 95 %."""

    low: float
    middle: float
    high: float

    def of(self, allowed: float) -> tuple[float, float, float]:
        """Return how many come where `allowed` were allowed."""
        return self.low * allowed, self.middle * allowed, self.high * allowed


def extended(rungs: Sequence[Rung], allowed_seconds: float) -> Ratio:
    """Return the ratio of confirmed alarms at a rate that may be far from all that were counted."""
    times = np.array([log(rung.allowed_seconds) for rung in rungs])
    allowed = np.array([rung.allowed for rung in rungs])
    counts = np.array([rung.confirmed for rung in rungs])
    middle = float(np.average(times, weights=allowed))
    heights, slopes = _HEIGHTS[:, np.newaxis], _SLOPES[np.newaxis, :]
    odds = heights / 2.0 - (slopes / _SLOPE_SD) ** 2 / 2.0  # half: Jeffreys' for a Poisson rate
    for time, share, count in zip(times, allowed, counts, strict=True):
        line = heights + slopes * (time - middle)
        odds = odds + count * line - share * np.exp(line)
    weights = np.exp(odds - odds.max()).ravel()
    there = (heights + slopes * (log(allowed_seconds) - middle)).ravel()
    order = np.argsort(there)
    held = np.cumsum(weights[order]) / weights.sum()
    low, half, high = (float(np.exp(there[order[np.searchsorted(held, p)]])) for p in _INTERVAL)
    return Ratio(low, half, high)


# --- The size from which on a step is seen with a probability, from tries at several sizes.
# Method:  logistic curve in the log of the size, most likely on a grid.
# Assumes: larger steps are seen more often.

_WIDTHS = np.geomspace(0.01, 0.5, 12)  # of the curve, in the log of the size
_PLACES = 200


def size_seen(
    sizes: NDArray[np.float64], seen: NDArray[np.bool_], probability: float
) -> float | None:
    """Return the size; the smallest tried where that is enough, None where the largest is not.

    `seen` has the tries of each size in a row, shape (sizes, tries).
    """
    x = np.log(sizes)
    reach = x[-1] - x[0]
    middles = np.linspace(x[0] - reach, x[-1] + reach, _PLACES)[:, np.newaxis, np.newaxis]
    curve = (x - middles) / _WIDTHS[np.newaxis, :, np.newaxis]
    hits = seen.sum(axis=1)
    likely = -(
        hits * np.logaddexp(0.0, -curve) + (seen.shape[1] - hits) * np.logaddexp(0.0, curve)
    ).sum(axis=2)
    at, width = np.unravel_index(int(np.argmax(likely)), likely.shape)
    found = float(middles[at, 0, 0]) + float(_WIDTHS[width]) * log(probability / (1 - probability))
    return None if found > x[-1] else float(np.exp(max(found, x[0])))
