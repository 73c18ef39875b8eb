"""What the online detector does on noise like this: how often it errs, and how small a step it sees.

Method:  series made of blocks of the quiet seconds (`_quiet`) go through the very `Panel`. False alarms are
         counted at rates that are high enough to count, and extended to the set one (`_rate_fit`). Then steps
         of many sizes are put in, and from which size on 90 % are confirmed in time is found (`_seen_fit`).
Assumes: the quiet seconds are typical. Each series is judged by itself: alarms that come together are one
         finding and are counted apart here. It speaks of steps, and of the tails that are steps of p99.9
         alone: blocks of minutes hold no drift of hours and no comb, and no counts of slow messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from detectors import scale
from detectors.calibration.extrapolation import Ratio, Rung, extended, size_seen
from detectors.calibration.quiet_rows import BLOCK_ROWS, Quiet, drawn
from detectors.level_shift import Config
from detectors.online.panel import Panel
from detectors.scale import FLOOR_SECONDS
from soak.core.model import Change, Column
from soak.core.series import series_name
from soak.core.units import SECOND_NS

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
    """The level before a step, and the nearest above it that is told in time; None: none of those tried.

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
    delays = np.full(len(many) * _SIZES * copies, np.inf)
    for row, column, change in _said(config, tables, many):
        if row >= _LEAD_ROWS and change.state == "confirmed" and _is_the_step(change):
            delays[column] = min(delays[column], row - _LEAD_ROWS + 1)
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
    states = [change.state for _, _, change in _said(short, tables, many)]
    seconds = float(RUN_ROWS * copies * len(many))
    return Rung(allowed_seconds, seconds, states.count("warning"), states.count("confirmed"))


def _said(
    config: Config, tables: Sequence[NDArray[np.float64]], many: Sequence[Quiet]
) -> list[tuple[int, int, Change]]:
    """Return row, column and change of everything that a panel of all tables side by side says."""
    units = [one.unit for one, table in zip(many, tables, strict=True) for _ in table[0]]
    columns = [Column("x", (("i", str(i)),), unit) for i, unit in enumerate(units)]
    places = {series_name("s", column.name): i for i, column in enumerate(columns)}
    panel, said = Panel(config), []
    for row, values in enumerate(np.hstack(tables)):
        changes = panel.update("s", columns, row, values, True, "soak")
        said += [(row, places[change.series], change) for change in changes]
    return said


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
    step = scale.Step(config.smallest_step_ratio, config.smallest_step_seconds)
    column = [Column("x", unit=one.unit)]
    levels = np.array([level], np.float32)
    effect = scale.minimum_effect(levels, scale.is_log(column), scale.least(column, step), step)
    return float(effect[0])


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
