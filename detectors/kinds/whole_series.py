"""Which kind each change of a whole series is: steps that a drift or spikes tell better are theirs.

A step is sharp when the 20 rows on either side of it already differ by most of what its two levels do.
Sharp steps are levelled out before drift and tails are looked for; a step that is not sharp and lies within
a drift of its direction, or on a tick of spikes, is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from detectors.kinds import drift, spikes, tail
from detectors.minimum_effect import Config
from soak.core.model import Change, Series
from soak.core.ports import Each, each_here

_ROWS = 20
_SHARP = 0.6
_NEAR = 120  # a tail so near to a step is the step's
_ANY = 1.0 + 1e-9  # a ratio that hardly says anything
_LATE = 3  # rows from a tick to the edge of its burst


def changes_of_series(series: Series, steps: Sequence[Change], config: Config) -> list[Change]:
    """Return steps, drifts, spikes and tails of one series, in order of their onset."""
    y = config.scaled(series.values)
    places = [int(np.searchsorted(series.k, step.onset_k)) for step in steps]
    jumps = _jumps(y, places)
    sizes = np.array(
        [config.scaled_one(step.after) - config.scaled_one(step.before) for step in steps]
    )
    is_sharp = jumps * np.sign(sizes) >= _SHARP * np.abs(sizes)
    moved = _moved(y.size, places, np.where(is_sharp, jumps, 0.0))
    flat = _flattened(series, y, moved, config)
    drifts = _at_level(drift.detect, flat, moved, config)
    trains = spikes.detect(series, config)
    kept = [
        step
        for step, sharp in zip(steps, is_sharp, strict=True)
        if sharp or not (_is_in(step, drifts) or _is_on_tick(step, trains))
    ]
    tails = [
        one
        for one in _at_level(tail.detect, flat, moved, config)
        if all(abs(one.onset_k - step.onset_k) > _NEAR for step in kept)
        and not _is_in(one, drifts, either=True)
    ]
    return sorted([*kept, *drifts, *trains, *tails], key=lambda change: change.onset_k)


def _changes_of(wanted: tuple[Series, Sequence[Change], Config]) -> list[Change]:
    return changes_of_series(*wanted)


def changes_of_many(
    many: Sequence[tuple[Series, Config]],
    steps: Sequence[tuple[Change, ...]],
    each: Each = each_here,
) -> list[tuple[Change, ...]]:
    """Return the same of series that were cut together, in order of onset.

    A step keeps the series in which no other kind describes it better; each of the other kinds stands alone.
    """
    wanted = [
        (series, [one for step in steps for one in step if one.series == series.name], config)
        for series, config in many
    ]
    every = [change for found in each(_changes_of, wanted) for change in found]
    known = set(every)
    kept = [tuple(change for change in step if change in known) for step in steps]
    others = [(change,) for change in every if change.kind != "step"]
    return sorted([*filter(None, kept), *others], key=lambda changes: changes[0].onset_k)


def _jumps(y: NDArray[np.float64], places: Sequence[int]) -> NDArray[np.float64]:
    """Return how far the medians just before and just after each place differ; 0 at the very ends."""
    edges = [0, *places, y.size]
    jumps = []
    for before, at, after in zip(edges, places, edges[2:], strict=False):
        left, right = y[max(before, at - _ROWS) : at], y[at : min(after, at + _ROWS)]
        jumps.append(float(np.median(right) - np.median(left)) if left.size and right.size else 0.0)
    return np.array(jumps)


def _moved(rows: int, places: Sequence[int], jumps: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return by how much all jumps up to each row have moved the level; one after the last moves none."""
    moved = np.zeros(rows + 1)
    np.add.at(moved, np.array(places, dtype=np.int64), jumps)
    return np.cumsum(moved)[:rows]


def _flattened(
    series: Series, y: NDArray[np.float64], moved: NDArray[np.float64], config: Config
) -> Series:
    """Return the series without what moved its level: at the one that it began with."""
    if not np.any(moved):
        return series
    values = y - moved if config.scale == "linear" else 10.0 ** (y - moved)
    return Series(series.name, series.k, values)


def _at_level(
    detect: Callable[[Series, Config], list[Change]],
    flat: Series,
    moved: NDArray[np.float64],
    config: Config,
) -> list[Change]:
    """Return what is found in a flattened series, at the levels that it really had.

    These must differ by the smallest step, not those at the level that it began with.
    """
    if not np.any(moved):
        return detect(flat, config)
    found = []
    ratio = config.smallest_step_ratio if config.scale == "log" else _ANY
    anything = replace(config, smallest_step_seconds=0.0, smallest_step_ratio=ratio)
    for one in detect(flat, anything):
        by = float(moved[min(int(np.searchsorted(flat.k, one.onset_k)), moved.size - 1)])
        before, after = (
            config.unscaled(config.scaled_one(level) + by) for level in (one.before, one.after)
        )
        if config.is_worth(before, after):
            found.append(replace(one, before=before, after=after))
    return found


def _is_in(change: Change, drifts: Sequence[Change], *, either: bool = False) -> bool:
    """True within a drift of the same direction, or of any."""
    return any(
        one.interval[0] <= change.onset_k <= one.raised_k
        and (either or one.direction == change.direction)
        for one in drifts
    )


def _is_on_tick(step: Change, trains: Sequence[Change]) -> bool:
    for train in trains:
        period, burst = train.period_seconds or 0.0, train.burst_seconds or 0.0
        last = step.onset_k if train.resolved_k is None else train.resolved_k
        since = step.onset_k - train.onset_k
        if period and train.onset_k - _LATE <= step.onset_k <= last:
            after = (since + _LATE) % period
            if after <= burst + 2 * _LATE:
                return True
    return False
