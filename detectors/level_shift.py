"""Level shifts of all series of one run and shard, as they happen.

Method:  per source the last 128 trusted seconds of each series, and means of 40 seconds over half an hour
         before; latencies on log10; scores against the median, both sides by their own sd (15 and 85 %
         quantiles, long memory), never as if noise were below the smallest step, clipped at 2 for starts of
         the last half minute, and the wider for earlier ones the more rows hang together; all of them wide
         where noise is known not to burst, and believed sooner if nor does it hang together. Over 25 starts
         up to five minutes ago the likelihood ratio of two unknown levels (after Siegmund and Venkatraman
         1995, doi:10.1214/aos/1176324466), with the noise of means learnt from how neighbouring means differ.
         The threshold follows how often each series passes a lower one. An exact scan dates the onset.
Assumes: noise that an AR(1), independent noise and a slow wandering describe within minutes. A slow drift
         is followed, not reported; steps that take longer than five minutes to show are not seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import ceil, exp, inf, log

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict
from pydantic.dataclasses import dataclass

from detectors import (
    _block,
    _codec,
    _learning,
    _measure,
    _rows,
    _scores,
    exceedance_rate,
    minimum_effect,
)
from detectors._block import Block, Book, Pending
from detectors._measure import Step, is_step, is_undone, is_watched, unscaled
from detectors._onset import Onset, locate
from detectors._windows import AFTER, ROWS
from detectors.minimum_effect import threshold_of
from soak.core.model import Change, Column
from soak.core.series import series_name
from soak.core.units import SECOND_NS, Duration, PerDuration

_NEW_LEVEL_ROWS = _scores.LEAST_BEFORE  # after an alarm or a long gap, before the next one
_LEAST_BASELINE, _MOST_BASELINE = 20, 160
_SMALL_ROWS = 60  # a shift below the smallest step is taken for the new level after so long
_LONG_GAP = 600
_EDGE = 5  # seconds after a phase edge that teach nothing
_GONE_ROWS = 30
_NEWEST_ROWS = 3
_CALM_SOONER = 0.2  # of `confirm`
_NEARER = 0.5
_STAYS = 1.0 / 3.0  # of the raised change, so that a burst is not confirmed by the noise after it
_ABSENT_SECONDS = 600  # for which a series without a column keeps its level
_MOST_STANDING = 12  # changes of one series that may still go away
_DAY = 86_400


@dataclass(frozen=True, kw_only=True, config=ConfigDict(extra="forbid"))
class Config:
    """What the user may set; the threshold follows from the first two."""

    false_alarms: PerDuration = 30 * _DAY * SECOND_NS  # mean time between two, over the whole panel
    panel_size: int = 100  # series that the false alarms are shared by
    smallest_step_ratio: float = 1.5  # larger level over smaller, least worth reporting
    smallest_step_seconds: float = 0.001  # and the least change of a latency
    baseline: Duration = 120 * SECOND_NS  # trusted time before the first alarm
    confirm: Duration = 10 * SECOND_NS  # for which a new level must have lasted, in calm noise 4/5

    def __post_init__(self) -> None:
        if self.false_alarms < 60 * SECOND_NS:
            raise ValueError("false_alarms: at most 1 per 1min")
        if self.panel_size < 1:
            raise ValueError("panel_size: at least 1")
        if not 1.0 < self.smallest_step_ratio < inf:  # nor what is no number
            raise ValueError("smallest_step_ratio must be a finite number above 1")
        if not 0.0 <= self.smallest_step_seconds < inf:
            raise ValueError("smallest_step_seconds must be finite and not negative")
        if not _LEAST_BASELINE <= self.baseline // SECOND_NS <= _MOST_BASELINE:
            raise ValueError(f"baseline: 20s to {_MOST_BASELINE}s")
        if not 1 <= self.confirm // SECOND_NS <= 60:  # noqa: PLR2004 - the bound in the message
            raise ValueError("confirm: 1s to 60s")

    @property
    def threshold(self) -> float:
        """Return the log likelihood ratio at which a series raises an alarm."""
        return threshold_of(self.false_alarms / SECOND_NS, self.panel_size)

    @property
    def minimum_effect(self) -> minimum_effect.Config:
        """Return the minimum effect of kinds other than steps, the same online and offline."""
        return minimum_effect.Config(
            threshold=self.threshold,
            smallest_step_ratio=self.smallest_step_ratio,
            smallest_step_seconds=self.smallest_step_seconds,
        )


class Panel:
    """The state of all series of one run and shard."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._step = Step(config.smallest_step_ratio, config.smallest_step_seconds)
        self._baseline = config.baseline // SECOND_NS
        self._confirm = config.confirm // SECOND_NS
        self._threshold = config.threshold
        self._blocks: dict[str, Block] = {}
        self._columns: dict[str, tuple[Sequence[Column], NDArray[np.int64]]] = {}

    def update(
        self,
        source: str,
        columns: Sequence[Column],
        k: int,
        values: NDArray[np.float64],
        valid: bool,  # noqa: FBT001 - a fact about the record
        phase: str,
        *,
        epoch: int = 0,
    ) -> list[Change]:
        """Take the next second of one source; return what it raised, confirmed, withdrew or ended.

        A second not after the last one of its source and start (`epoch`) changes nothing. A new start may
        count from an earlier second, after a clock was set back: its levels are learnt anew.
        """
        known = self._blocks.get(source)
        if known is not None and (epoch, k) <= (known.epoch, known.last_k):
            return []
        block, watched, changes = self._adopted(source, columns, k)
        gap, block.last_k, block.epoch = k - block.last_k, k, epoch
        if gap > _LONG_GAP or gap <= 0:
            changes += self._start_anew(source, block, k)
        if phase != block.phase:
            if block.phase:
                block.edge_k = k + _EDGE
            block.phase = phase
        if phase != "soak" or k < block.edge_k or not valid:
            return changes
        taken = np.full(len(block.columns), np.nan)
        taken[: watched.size] = np.asarray(values, dtype=np.float64)[watched]
        _rows.push(block, k, _measure.scaled(taken, block.logarithmic), self._step)
        ratios = _scores.ratios(block)
        best = ratios.max(axis=0)
        can_alarm = self._can_alarm(block)
        exceedance_rate.learn(block.spread, best, can_alarm)
        near = np.flatnonzero(can_alarm & (best > self._threshold - exceedance_rate.MOST_SPARED))
        changes += self._raise(source, block, k, near[best[near] > self._thresholds(block, near)])
        changes += self._settle(source, block, ratios)
        self._relearn(block, best)
        if block.books and block.rows % _EDGE == 0:
            changes += self._ended(block, k)
        return changes

    def to_bytes(self) -> bytes:
        """Return the whole state; the same later records give the same changes bit for bit."""
        return _codec.encode(self._blocks)

    @classmethod
    def from_bytes(cls, blob: bytes, config: Config) -> Panel:
        """Return the panel that `to_bytes` described.

        Raises:
            ValueError: the bytes are not of this version.
        """
        panel = cls(config)
        panel._blocks = _codec.decode(blob)
        return panel

    def _adopted(
        self, source: str, columns: Sequence[Column], k: int
    ) -> tuple[Block, NDArray[np.int64], list[Change]]:
        """Return the block for these columns, which of them it follows, and what was given up."""
        seen, since_k = self._columns.get(source), k - _ABSENT_SECONDS
        if seen is not None and (seen[0] is columns or seen[0] == columns):
            block = self._blocks[source]
            if not block.absent or min(block.absent.values()) >= since_k:
                return block, seen[1], []
        watched = np.array([i for i, column in enumerate(columns) if is_watched(column)], np.int64)
        chosen = tuple(columns[i] for i in watched)
        old = self._blocks.get(source) or _block.empty(chosen)
        new = _rows.adopt(old, chosen, self._step, since_k)
        self._blocks[source], self._columns[source] = new, (columns, watched)
        lost = [
            _withdrawn(source, name, book.pending)
            for name, book in old.books.items()
            if book.pending is not None and name not in new.books
        ]
        return new, watched, lost

    def _start_anew(self, source: str, block: Block, k: int) -> list[Change]:
        """Forget the levels and keep the spreads."""
        changes = []
        for name, book in block.books.items():
            if book.pending is not None:
                changes.append(_withdrawn(source, name, book.pending))
            book.pending = None
        block.close_books()
        block.y[:] = np.nan
        block.cells.clear(np.arange(len(block.columns)))
        block.edge_k = min(block.edge_k, k)
        block.absent = {name: min(last_k, k) for name, last_k in block.absent.items()}
        _scores.rescore(block, np.arange(len(block.columns)), self._step)
        return changes

    def _thresholds(self, block: Block, at: NDArray[np.int64]) -> NDArray[np.float64]:
        return exceedance_rate.thresholds(self._threshold, block.spread, block.tied, block.calm, at)

    def _can_alarm(self, block: Block) -> NDArray[np.bool_]:
        is_here = block.here[(block.rows - 1) % ROWS] > 0  # an absent series has no news
        is_free = (block.spread.rows >= self._baseline) & ~block.stale & ~self._waiting(block)
        can_alarm: NDArray[np.bool_] = is_here & is_free
        return can_alarm

    def _raise(self, source: str, block: Block, k: int, at: NDArray[np.int64]) -> list[Change]:
        found = (self._raised(source, block, int(i), k) for i in at)
        return [change for change in found if change is not None]

    def _waiting(self, block: Block) -> NDArray[np.bool_]:
        waiting = np.zeros(len(block.names), np.bool_)
        for name, book in block.books.items():
            waiting[block.place[name]] = book.pending is not None
        return waiting

    def _relearn(self, block: Block, best: NDArray[np.float64]) -> None:
        is_known = block.spread.rows > 0
        is_young = block.total < _learning.YOUNG_ROWS
        is_time = np.logical_or(is_young, block.rows % _learning.RELEARN_ROWS == 0)
        is_time &= block.rows % _learning.YOUNG_RELEARN_ROWS == 0
        enough = block.total >= np.where(is_known, _NEW_LEVEL_ROWS, self._baseline)
        # many values may be missing, or the baseline be longer than the ring
        enough |= ~is_known & (block.total >= ROWS // 4) & _block.is_full(block)
        # not while a change may be building up: level and spread would swallow it
        is_quiet = best < self._threshold / 2.0
        due = block.stale | ~is_known | (is_time & is_quiet)
        due &= enough & ~self._waiting(block)
        if due.any():
            _learning.relearn(block, due, self._step)
        # a new level may have another noise: while it is young, each row teaches several times; later
        # noise that was underrated must be able to grow while it looks like a change
        teaches = is_known & is_time & ~block.stale & (is_quiet | ~is_young)
        _learning.learn_noise(block, np.flatnonzero(teaches), self._step)

    def _raised(self, source: str, block: Block, i: int, k: int) -> Change | None:
        found = locate(block, i, block.rows)
        if found is None:
            return None
        if not self._is_step(block, i, found.before, found.after):
            if found.rows_after >= _SMALL_ROWS:
                _rows.forget(block, i, 0, found.row, self._step)
            return None
        book = block.books.setdefault(block.names[i], Book())
        book.pending = Pending(k, block.rows - 1, found.row, found.k, found.before, found.after)
        return self._change(source, block, i, k, found)

    def _settle(self, source: str, block: Block, ratios: NDArray[np.float64]) -> list[Change]:
        changes = []
        for name, book in block.books.items():
            if book.pending is None:
                continue
            i, pending = block.place[name], book.pending
            threshold = self._thresholds(block, np.array([i]))[0]
            rows = self._lasting(block, i)
            is_above = bool(ratios[rows <= AFTER, i].max() > threshold)
            change = self._confirmed(source, block, i, pending, rows) if is_above else None
            if change is not None:
                book.pending = None
                # of a stair the first step is the last to end
                book.standing = [*book.standing[: _MOST_STANDING - 1], change]
                changes.append(change)
            elif self._is_over(block, i, pending):
                book.pending = None
                changes.append(_withdrawn(source, name, pending))
        if changes:
            block.close_books()
        return changes

    def _is_over(self, block: Block, i: int, pending: Pending) -> bool:
        """True when a warning had its time; a burst is taken out of the level's rows."""
        since = self._since(block, i, pending.raised_row + 1)
        if since.size >= self._confirm:
            stop = pending.raised_row + 1
            _rows.forget(block, i, pending.onset_row, stop, self._step)
            return True
        return block.rows - pending.raised_row > ROWS // 2  # hardly any values since

    def _since(self, block: Block, i: int, row: int) -> NDArray[np.float32]:
        rows = np.arange(max(row, block.rows - ROWS), block.rows)
        since = block.y[rows % ROWS, i]
        known: NDArray[np.float32] = since[np.isfinite(since)]
        return known

    def _lasting(self, block: Block, i: int) -> int:
        """Return the rows that a new level must last: fewer where noise is known not to burst."""
        return ceil(self._confirm * (1.0 - _CALM_SOONER * float(block.calm[i])))

    def _has_lasted(
        self, since: NDArray[np.float32], pending: Pending, rows: int, *, logarithmic: bool
    ) -> bool:
        """True after `confirm`, or fewer rows from the first on that is nearer to the new level.

        The onset itself may be dated some rows early by noise, and a stall would seem to last.
        """
        if since.size < rows or since.size >= self._confirm:
            return since.size >= rows
        own = 10.0**since if logarithmic else since
        is_nearer = (own - pending.before) / (pending.after - pending.before) >= _NEARER
        return bool(is_nearer[: since.size - rows + 1].any())

    def _confirmed(
        self, source: str, block: Block, i: int, pending: Pending, rows: int
    ) -> Change | None:
        """Return the change if its level has lasted, as a whole and in its newest third."""
        logarithmic = bool(block.logarithmic[i])
        since = self._since(block, i, pending.onset_row)
        if not self._has_lasted(since, pending, rows, logarithmic=logarithmic):
            return None
        change = pending.after - pending.before
        newest = since[-max(_NEWEST_ROWS, since.size // 3) :]
        for part in (since, newest):
            level = unscaled(float(np.median(part)), logarithmic=logarithmic)
            is_kept = (level - pending.before) / change >= _STAYS
            if not (is_kept and self._is_step(block, i, pending.before, level)):
                return None
        found = locate(block, i, pending.raised_row + 1)
        if found is None:
            return None
        told = self._change(source, block, i, pending.raised_k, found)
        _rows.forget(block, i, 0, found.row, self._step)
        return replace(told, state="confirmed")

    def _ended(self, block: Block, k: int) -> list[Change]:
        changes = []
        for name, book in block.books.items():
            if not book.standing or book.pending is not None:
                continue
            i = block.place[name]
            newest = block.y[_block.ordered(block)[-_GONE_ROWS:], i]
            newest = newest[np.isfinite(newest)]
            if newest.size < _GONE_ROWS // 2:
                continue
            level = unscaled(float(np.median(newest)), logarithmic=bool(block.logarithmic[i]))
            gone = [change for change in book.standing if self._is_back(block, i, change, level)]
            book.standing = [change for change in book.standing if change not in gone]
            changes += [replace(change, state="gone", resolved_k=k) for change in gone]
        if changes:
            block.close_books()
        return changes

    def _is_back(self, block: Block, i: int, change: Change, level: float) -> bool:
        """True when a level is back where a change began, or beyond: of steps up a stair all are gone."""
        if is_undone(change.before, change.after, level, logarithmic=bool(block.logarithmic[i])):
            return True
        is_nearer = abs(level - change.before) < abs(level - change.after)
        return is_nearer and not self._is_step(block, i, change.before, level)

    def _is_step(self, block: Block, i: int, before: float, after: float) -> bool:
        return is_step(
            before,
            after,
            logarithmic=bool(block.logarithmic[i]),
            least_change=float(block.least[i]),
            step=self._step,
        )

    def _change(self, source: str, block: Block, i: int, raised_k: int, found: Onset) -> Change:
        # odds against one change a day over the panel, beforehand
        surprise = found.ratio - log(_DAY * self._config.panel_size)
        return Change(
            series=series_name(source, block.names[i]),
            raised_k=raised_k,
            onset_k=found.k,
            interval=found.span,
            before=found.before,
            after=found.after,
            state="warning",
            confidence=min(0.9999, 1.0 / (1.0 + exp(-max(-50.0, min(50.0, surprise))))),
        )


def _withdrawn(source: str, name: str, pending: Pending) -> Change:
    """Return the last word on a warning that was not confirmed."""
    return Change(
        series=series_name(source, name),
        raised_k=pending.raised_k,
        onset_k=pending.onset_k,
        interval=(pending.onset_k, pending.onset_k),
        before=pending.before,
        after=pending.after,
        state="withdrawn",
        confidence=0.0,
    )
