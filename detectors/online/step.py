"""The step detector of one source: all its series, row by row.

Method:  at each of 23 candidate onsets from 4 to some 360 rows ago the mean of the scores since is compared
         with the mean before (`window`). The squared contrast over its learnt variance gives a log
         likelihood ratio (`noise`), as in Siegmund and Venkatraman 1995 (doi:10.1214/aos/1176324466), but
         by Student's t, as the variance is itself estimated. The largest ratio of a series raises a
         candidate when it exceeds the threshold of the series (`threshold`). The candidate is confirmed
         when its onset lies `confirm` rows back and both the oldest and the newest third of the rows since
         show between a third and three times of the change, so that a burst is not taken for a level. Then
         the rows before the onset are forgotten, the noise and the threshold are not.
Assumes: the noise changes more slowly than the level. A slow drift is followed, not reported; a step that
         takes longer than six minutes to show is not seen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from detectors import minimum_effect
from detectors.level_shift import Config
from detectors.online import noise, onset, threshold, window
from detectors.online.constants import CONSTANTS
from detectors.online.onset import Onset
from detectors.online.state import CELL, ROWS, SLOTS, Floats, SourceState
from soak.core.model import Column
from soak.core.units import SECOND_NS

_ALL = slice(None)
_LEAST_PART = 3  # rows in a third
_NO_SERIES = np.zeros(0, np.int64)
_SMALL_ROWS = 60  # a shift below the minimum effect becomes the level after so many rows


Smallest = Callable[[Column], tuple[float, float]]
"""Returns the ratio of the smallest step of a series, and its least change in seconds if it is a latency."""
Following = Callable[[], Sequence[NDArray[np.float64]]]
"""Gives the rows that are likely to come next, where they are known: those of a batch."""


def unknown() -> Sequence[NDArray[np.float64]]:
    """Give no row."""
    return ()


@dataclass(frozen=True, slots=True)
class _Judged:
    """Rows of one cell that were judged together, as each would be alone; the first goes to slot `used`."""

    used: int
    given: list[bytes]  # the record of each
    y: Floats  # (rows, n)
    can_alarm: NDArray[np.bool_]  # (rows, n)
    squared: Floats  # (rows, onsets, n)
    known: NDArray[np.bool_]
    best: Floats  # (rows, n)
    exceeds: list[bool]  # of each, whether a series is above its threshold

    def place(self, used: int, record: NDArray[np.float64]) -> int | None:
        """Return which of the rows goes to a slot; None when it is of another record."""
        at = used - self.used
        return at if at < len(self.given) and self.given[at] == record.tobytes() else None


class Steps:
    """The series of one source; the constructor derives everything else from `state`.

    `watched` are the places of the first series in a record; the others are absent.
    """

    def __init__(
        self,
        state: SourceState,
        config: Config,
        watched: NDArray[np.int64],
        smallest: Smallest | None = None,
    ) -> None:
        """`smallest`: the smallest step of each series; by default that of `config`."""
        n = len(state.columns)
        self._watched = watched
        self.state = state
        self.names = tuple(column.name for column in state.columns)
        self.places = {name: i for i, name in enumerate(self.names)}
        of_all = config.smallest_step_ratio, config.smallest_step_seconds
        steps = [smallest(column) if smallest else of_all for column in state.columns]
        self._ratio, seconds = np.array(steps, np.float64).reshape(-1, 2).T
        self._least = minimum_effect.least_changes(state.columns, seconds)
        self._is_latency = minimum_effect.is_log(state.columns)
        self._log_rows = config.log_rows
        self._baseline = config.baseline // SECOND_NS
        self.confirm = config.confirm // SECOND_NS
        self._sums = window.Sums.empty(n)
        self._best = np.zeros(n, np.float32)
        self._can_alarm = np.zeros(n, np.bool_)
        self._exceeds = False
        self._judged: _Judged | None = None  # until what it follows from changes
        self._set_scale()
        self._noise = noise.judge(state.arrays, self._effect())
        window.add_up(self._sums, state.arrays, self._noise.unit, state.used, _ALL)

    def push(self, k: int, record: NDArray[np.float64], following: Following = unknown) -> None:
        """Take the values of second `k`; one that is not finite is no value.

        Of the records that are `following`, those of the same cell are judged along: they cost little more
        than one alone. If others come, they were in vain.
        """
        state, arrays = self.state, self.state.arrays
        judged = self._judged
        at = None if judged is None else judged.place(state.used, record)
        if judged is None or at is None:
            judged, at = self._judge(record, following), 0
        arrays.y[state.used], state.k[state.used] = judged.y[at], k
        state.used, state.rows = state.used + 1, state.rows + 1
        self._best, self._can_alarm = judged.best[at], judged.can_alarm[at]
        self._exceeds = judged.exceeds[at]
        threshold.learn(arrays, self._best, self._can_alarm)
        if state.used == SLOTS:
            noise.learn_variance(arrays, judged.squared[at], judged.known[at], self._noise)

    def _judge(self, first: NDArray[np.float64], following: Following) -> _Judged:
        """Judge a record, and of those that follow as many as are in the same cell and keep the scale."""
        values = self._rows([first])
        self._leave_log(values[0])
        if self.state.used == SLOTS:
            self._shift()
        used, arrays = self.state.used, self.state.arrays
        more = following()[: SLOTS - used - 1] if used + 1 < SLOTS else ()
        if more:
            values = np.concatenate([values, self._rows(more)])
            leaving = (self.is_log & (values <= 0.0)).any(
                axis=1
            )  # not the first: its series have left
            if leaving.any():
                values = values[: leaving.argmax()]
        y = values.astype(np.float32)
        np.log10(values, out=y, where=self.is_log & (values > 0.0), casting="same_kind")
        z, here = window.scores(y, arrays.center, self._noise.unit, arrays.clip)
        window.add_rows(self._sums, z, here, used)
        squared, known = window.contrasts(self._sums, np.arange(used + 1, used + 1 + len(y)))
        ratio = noise.log_ratio(squared, self._noise.spread, self._noise.freedom)
        ratio[~known] = 0.0
        best = ratio.max(axis=1)
        self._judged = _Judged(
            used=used,
            given=[record.tobytes() for record in (first, *more)[: len(y)]],
            y=y,
            can_alarm=here & (arrays.seen >= self._baseline),
            squared=squared,
            known=known,
            best=best,
            exceeds=(best > arrays.threshold).any(axis=1).tolist(),
        )
        return self._judged

    def _rows(self, records: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
        """Return the values of all series, NaN where there is none; (records, n)."""
        rows = np.full((len(records), len(self.names)), np.nan)
        rows[:, : self._watched.size] = np.array(records)[:, self._watched]
        rows[~np.isfinite(rows)] = np.nan
        return rows

    def exceeding(self) -> NDArray[np.int64]:
        """Return the series that may raise a candidate in this row."""
        arrays = self.state.arrays
        if not self._exceeds:
            arrays.is_muted.fill(0)
            return _NO_SERIES
        above = self._best > arrays.threshold
        arrays.is_muted *= above
        may_raise = self._can_alarm & above & (arrays.is_muted == 0)
        found: NDArray[np.int64] = may_raise.nonzero()[0]
        return found

    def is_above(self, i: int) -> bool:
        """True while the ratio of series `i` exceeds its threshold."""
        return bool(self._best[i] > self.state.arrays.threshold[i])

    def locate(self, i: int) -> Onset | None:
        """Return the most probable onset of series `i`, None without enough rows."""
        return onset.locate(
            self.state, i, self._sums, self._noise, logarithmic=bool(self.is_log[i])
        )

    def is_step(self, i: int, before: float, after: float) -> bool:
        """True when two levels of series `i` differ by the minimum effect."""
        floor = minimum_effect.FLOOR_SECONDS if self.is_log[i] else 0.0
        ratio, least = float(self._ratio[i]), float(self._least[i])
        return minimum_effect.smallest_steps(before, after, ratio, least, floor) >= 1.0

    def has_lasted(self, i: int, found: Onset) -> bool:
        """True when a step is `confirm` rows old, above the threshold, and still there."""
        if found.rows < self.confirm or found.ratio <= self.state.arrays.threshold[i]:
            return False
        third = max(_LEAST_PART, found.since.size // 3)
        change = found.y_after - found.y_before
        return change != 0.0 and all(
            CONSTANTS.stays <= (np.median(part) - found.y_before) / change <= 1.0 / CONSTANTS.stays
            for part in (found.since[:third], found.since[-third:])
        )

    def is_small(self, found: Onset) -> bool:
        """True when a shift that is no step is old enough to be the new level."""
        return found.rows >= _SMALL_ROWS

    def restart(self, i: int, found: Onset) -> None:
        """Forget the rows of series `i` before an onset: its level begins there."""
        state, arrays = self.state, self.state.arrays
        window.forget_before(arrays, i, found.age, state.used)
        arrays.peak[i] = arrays.below[i] = arrays.cluster_rows[i] = 0
        self._best[i] = 0.0
        rows = arrays.y[: state.used, i]
        if np.isfinite(rows).any():
            arrays.center[i] = np.nanmedian(rows)
        self._noise = noise.judge(arrays, self._effect())
        window.add_up(self._sums, arrays, self._noise.unit, state.used, np.array([i]))
        self._judged = None

    def learn_anew(self, at: NDArray[np.int64] | slice = _ALL) -> None:
        """Forget the levels of the series `at`, and keep their noise."""
        arrays = self.state.arrays
        arrays.y[:, at] = np.nan
        arrays.cell_count[:, at] = 0
        arrays.far[at] = arrays.far_rows[at] = 0
        arrays.peak[at] = arrays.below[at] = arrays.cluster_rows[at] = 0
        window.add_up(self._sums, arrays, self._noise.unit, self.state.used, at)
        self._judged = None

    def levels(self, places: Sequence[int], rows: int) -> list[float | None]:
        """Return the median of the newest rows of these series, each in its own unit.

        None where they have fewer than half of the values that so many rows have otherwise.
        """
        known = self.state.arrays.y[: self.state.used, places]
        newest, usual = np.sort(known[-rows:], axis=0), np.isfinite(known).mean(axis=0)  # NaN last
        counts = np.isfinite(newest).sum(axis=0)
        at, low, high = np.arange(len(places)), np.maximum(counts - 1, 0) // 2, counts // 2
        middles = (newest[low, at] + newest[np.minimum(high, len(newest) - 1), at]) / 2
        is_known = (counts >= _LEAST_PART) & (2 * counts >= min(rows, len(known)) * usual)
        return [
            minimum_effect.unscaled(float(middles[i]), logarithmic=bool(self.is_log[place]))
            if is_known[i]
            else None
            for i, place in enumerate(places)
        ]

    def second_of(self, rows: int) -> int:
        """Return the second of the row that is so many rows before the newest, or of the oldest one kept."""
        return int(self.state.k[max(0, self.state.used - 1 - rows)])

    def _shift(self) -> None:
        state, arrays = self.state, self.state.arrays
        noise.learn_outliers(arrays, self._noise.unit)
        window.shift(arrays, self._noise.unit)
        state.cell_k[1:] = state.cell_k[:-1].copy()
        state.cell_k[0] = state.k[0]
        state.k[:ROWS] = state.k[CELL:].copy()
        state.used = ROWS
        noise.learn_scale(arrays)
        self._noise = noise.judge(arrays, self._effect())
        noise.learn_clip(arrays, self._noise)
        threshold.set_thresholds(arrays, self._log_rows)
        window.add_up(self._sums, arrays, self._noise.unit, ROWS, _ALL)

    def _effect(self) -> NDArray[np.float64]:
        return minimum_effect.smallest_rises(
            self.state.arrays.center, self.is_log, self._least, self._ratio
        )

    def _set_scale(self) -> None:
        self.is_log = self._is_latency & (self.state.arrays.is_linear == 0)

    def _leave_log(self, values: NDArray[np.float64]) -> None:
        """Judge latencies with a value that has no logarithm on a linear scale from now on."""
        leaving = self.is_log & (values <= 0.0)
        if not leaving.any():
            return
        arrays, at = self.state.arrays, np.flatnonzero(leaving)
        arrays.is_linear[at] = 1
        center = np.where(arrays.seen[at] > 0, 10.0 ** arrays.center[at], 0.0)
        far_rows = np.maximum(arrays.far_rows[at], 1)
        arrays.y[:, at] = 10.0 ** arrays.y[:, at]
        arrays.cell[:, at] = 10.0 ** arrays.cell[:, at]
        arrays.far[at] = 10.0 ** (arrays.far[at] / far_rows) * arrays.far_rows[at]
        arrays.center[at] = center
        for size in (arrays.scale, arrays.grid):
            size[at] *= np.log(10.0) * center  # d(level) = level d(ln level)
        self._set_scale()
        self._noise = noise.judge(arrays, self._effect())
        window.add_up(self._sums, arrays, self._noise.unit, self.state.used, at)
