"""Level shifts of all series of one run and shard, as they happen.

Method:  per source the last 320 trusted seconds of each series; latencies on log10; scores against a
         running median, both sides by their own sd (10 and 90 % quantiles, long memory), never below a
         third of the smallest step, clipped at 3. Over 14 candidate windows of 4 to 192 seconds the
         likelihood ratio of two unknown levels, its variance that of AR(1) scores (after Siegmund and
         Venkatraman 1995, doi:10.1214/aos/1176324466). Threshold log(seconds between false alarms)
         + log(series) + 0.3; an exact scan over all starts dates the onset.
Assumes: noise that an AR(1) describes within minutes. A slow drift is followed, not reported; steps
         that take longer than about two minutes to show above the noise are not seen.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import replace
from math import exp, log

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict
from pydantic.dataclasses import dataclass

from detectors import _block, _codec, _measure
from detectors._block import PARTS, ROWS, Block, Book, Pending
from detectors._glr import WINDOWS, interval, scan
from detectors._measure import Step, is_step, is_watched, unscaled
from soak.core.model import Change, Column
from soak.core.units import SECOND_NS, Duration, PerDuration

_NEW_LEVEL_ROWS = 20  # after an alarm or a long gap, before the next one
_SMALL_ROWS = 60  # a shift below the smallest step is taken for the new level after so long
_LONG_GAP = 600
_EDGE = 5  # seconds after a phase edge that teach nothing
_GONE_ROWS = 30
_STAYS = 1.0 / 3.0  # of the raised change, so that a burst is not confirmed by the noise after it
_ABSENT_SECONDS = 600  # for which a series without a column keeps its level
_MOST_STANDING = 4  # changes of one series that may still go away
_DAY = 86_400


@dataclass(frozen=True, kw_only=True, config=ConfigDict(extra="forbid"))
class Config:
    """What the user may set; the threshold follows from the first two."""

    false_alarms: PerDuration = 30 * _DAY * SECOND_NS  # mean time between two, over the whole panel
    panel_size: int = 100  # series that the false alarms are shared by
    smallest_step_ratio: float = 1.5  # larger level over smaller, least worth reporting
    smallest_step_seconds: float = 0.001  # and the least change of a latency
    baseline: Duration = 120 * SECOND_NS  # trusted time before the first alarm
    confirm: Duration = 10 * SECOND_NS  # time after the raise whose median must stay beyond

    def __post_init__(self) -> None:
        if self.false_alarms < 60 * SECOND_NS:
            raise ValueError("false_alarms: at most 1 per 1min")
        if self.panel_size < 1:
            raise ValueError("panel_size: at least 1")
        if self.smallest_step_ratio <= 1.0:
            raise ValueError("smallest_step_ratio: above 1")
        if self.smallest_step_seconds < 0.0:
            raise ValueError("smallest_step_seconds: not negative")
        if not _NEW_LEVEL_ROWS <= self.baseline // SECOND_NS <= ROWS // 2:
            raise ValueError(f"baseline: 20s to {ROWS // 2}s")
        if not 1 <= self.confirm // SECOND_NS <= 60:  # noqa: PLR2004 - the bound in the message
            raise ValueError("confirm: 1s to 60s")

    @property
    def threshold(self) -> float:
        """Return the log likelihood ratio at which a series raises an alarm."""
        return log(self.false_alarms / SECOND_NS) + log(self.panel_size) + 0.3


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
        trusted: bool,  # noqa: FBT001 - a fact about the record
        phase: str,
        *,
        inc: int = 0,
    ) -> list[Change]:
        """Take the next second of one source; return what it raised, confirmed, withdrew or ended.

        A second not after the last one of its source and start (`inc`) changes nothing. A new start may
        count from an earlier second, after a clock was set back: its levels are learnt anew.
        """
        known = self._blocks.get(source)
        if known is not None and (inc, k) <= (known.inc, known.last_k):
            return []
        block, watched, changes = self._adopted(source, columns, k)
        gap, block.last_k, block.inc = k - block.last_k, k, inc
        if gap > _LONG_GAP or gap <= 0:
            changes += self._start_anew(source, block, k)
        if phase != block.phase:
            if block.phase:
                block.edge_k = k + _EDGE
            block.phase = phase
        if phase != "soak" or k < block.edge_k or not trusted:
            return changes
        taken = np.full(len(block.columns), np.nan)
        taken[: watched.size] = np.asarray(values, dtype=np.float64)[watched]
        _block.push(block, k, _measure.scaled(taken, block.logarithmic), self._step)
        changes += self._settle(source, block)
        changes += self._raise(source, block, k)
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
        new = _block.adopt(old, chosen, self._step, since_k)
        self._blocks[source], self._columns[source] = new, (columns, watched)
        lost = [
            _withdrawn(source, old, name, book.pending)
            for name, book in old.books.items()
            if book.pending is not None and name not in new.books
        ]
        return new, watched, lost

    def _start_anew(self, source: str, block: Block, k: int) -> list[Change]:
        """Forget the levels and keep the spreads."""
        changes = []
        for name, book in block.books.items():
            if book.pending is not None:
                changes.append(_withdrawn(source, block, name, book.pending))
            book.pending = None
        block.y[:] = np.nan
        block.edge_k = min(block.edge_k, k)
        block.absent = {name: min(last_k, k) for name, last_k in block.absent.items()}
        _block.rescore(block, np.arange(len(block.columns)), self._step)
        return changes

    def _raise(self, source: str, block: Block, k: int) -> list[Change]:
        waiting = np.zeros(len(block.names), np.bool_)
        for name, book in block.books.items():
            waiting[block.names.index(name)] = book.pending is not None
        best = _block.ratios(block, _NEW_LEVEL_ROWS)
        is_here = block.here[(block.rows - 1) % ROWS] > 0  # an absent series has no news
        is_free = (block.spread.rows > 0) & ~block.stale & ~waiting
        crossed = is_free & is_here & (best > self._threshold)
        changes = []
        for i in np.flatnonzero(crossed):
            change = self._raised(source, block, int(i), k)
            if change is not None:
                changes.append(change)
                waiting[i] = True
        self._relearn(block, waiting, best)
        return changes

    def _relearn(self, block: Block, waiting: NDArray[np.bool_], best: NDArray[np.float64]) -> None:
        known = block.spread.rows > 0
        enough = block.total >= np.where(known, _NEW_LEVEL_ROWS, self._baseline)
        due = block.stale | ~known
        if block.rows % _block.RELEARN_ROWS == 0:
            # not while a change may be building up: the spread would swallow it
            due |= best < self._threshold / 2.0
        due &= enough & ~waiting
        if due.any():
            _block.relearn(block, due, self._step)

    def _raised(self, source: str, block: Block, i: int, k: int) -> Change | None:
        found = self._located(block, i, block.rows)
        if found is None:
            return None
        if not self._is_step(block, i, found.before, found.after):
            if found.rows.size - found.start >= _SMALL_ROWS:
                _block.forget(block, i, 0, found.onset_row, self._step)
            return None
        book = block.books.setdefault(block.names[i], Book())
        book.pending = Pending(k, block.rows - 1, found.onset_row, found.before, found.after)
        return self._change(source, block, i, k, found)

    def _settle(self, source: str, block: Block) -> list[Change]:
        changes = []
        for name, book in list(block.books.items()):
            if book.pending is None:
                continue
            i, pending = block.names.index(name), book.pending
            if block.rows - pending.onset_row > ROWS // 2:  # hardly any values since the raise
                book.pending = None
                changes.append(_withdrawn(source, block, name, pending))
                continue
            since = block.y[np.arange(pending.raised_row + 1, block.rows) % ROWS, i]
            since = since[np.isfinite(since)]
            if since.size < self._confirm:
                continue
            book.pending = None
            changes += self._settled(source, block, i, pending, float(np.median(since)))
        return changes

    def _settled(
        self, source: str, block: Block, i: int, pending: Pending, level: float
    ) -> list[Change]:
        logarithmic = bool(block.logarithmic[i])
        after = unscaled(level, logarithmic=logarithmic)
        found = self._located(block, i, pending.raised_row + 1)
        stays = (after - pending.before) / (pending.after - pending.before) >= _STAYS
        if found is None or not (stays and self._is_step(block, i, pending.before, after)):
            # a burst is taken out of the level's rows
            _block.forget(block, i, pending.onset_row, pending.raised_row + 1, self._step)
            return [_withdrawn(source, block, block.names[i], pending)]
        change = replace(self._change(source, block, i, pending.raised_k, found), state="confirmed")
        _block.forget(block, i, 0, found.onset_row, self._step)
        book = block.books[block.names[i]]
        book.standing = [*book.standing, change][-_MOST_STANDING:]
        return [change]

    def _ended(self, block: Block, k: int) -> list[Change]:
        changes = []
        for name, book in block.books.items():
            if not book.standing or book.pending is not None:
                continue
            i = block.names.index(name)
            newest = block.y[_block.ordered(block)[-_GONE_ROWS:], i]
            newest = newest[np.isfinite(newest)]
            if newest.size < _GONE_ROWS // 2:
                continue
            level = unscaled(float(np.median(newest)), logarithmic=bool(block.logarithmic[i]))
            gone = [change for change in book.standing if self._is_back(block, i, change, level)]
            book.standing = [change for change in book.standing if change not in gone]
            changes += [replace(change, state="gone", gone_k=k) for change in gone]
        return changes

    def _is_back(self, block: Block, i: int, change: Change, level: float) -> bool:
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

    def _located(self, block: Block, i: int, end_row: int) -> _Found | None:
        """Return the most probable start before `end_row`, or None when there is too little."""
        places = _block.ordered(block)
        here = block.here[places, i] > 0
        rows = (np.arange(block.rows - places.size, block.rows))[here]
        if rows.size < _NEW_LEVEL_ROWS + int(WINDOWS[0]):
            return None
        spread = block.used.take(np.array([i]))
        scores = block.q[places, i][here] / PARTS
        ratio = scan(
            scores,
            float(spread.variance[0]),
            spread.memory(),
            _NEW_LEVEL_ROWS,
            int(WINDOWS[0]),
        )
        ratio[rows >= end_row] = 0.0
        start = int(np.argmax(ratio))
        if ratio[start] <= 0.0:
            return None
        values, logarithmic = block.y[places, i][here], bool(block.logarithmic[i])
        low, high = interval(ratio)
        return _Found(
            rows=rows,
            start=start,
            span=(int(block.k[rows[low] % ROWS]), int(block.k[rows[high] % ROWS])),
            ratio=float(ratio[start]),
            before=unscaled(float(np.median(values[:start])), logarithmic=logarithmic),
            after=unscaled(float(np.median(values[start:])), logarithmic=logarithmic),
        )

    def _change(self, source: str, block: Block, i: int, raised_k: int, found: _Found) -> Change:
        # odds against one change a day over the panel, beforehand
        surprise = found.ratio - log(_DAY * self._config.panel_size)
        return Change(
            series=f"{source}|{block.names[i]}",
            raised_k=raised_k,
            onset_k=int(block.k[found.onset_row % ROWS]),
            interval=found.span,
            before=found.before,
            after=found.after,
            state="warning",
            confidence=min(0.9999, 1.0 / (1.0 + exp(-max(-50.0, min(50.0, surprise))))),
        )


def _withdrawn(source: str, block: Block, name: str, pending: Pending) -> Change:
    """Return the last word on a warning that was not confirmed."""
    onset_k = int(block.k[pending.onset_row % ROWS])
    return Change(
        series=f"{source}|{name}",
        raised_k=pending.raised_k,
        onset_k=onset_k,
        interval=(onset_k, onset_k),
        before=pending.before,
        after=pending.after,
        state="withdrawn",
        confidence=0.0,
    )


@dataclasses.dataclass(frozen=True, slots=True)
class _Found:
    rows: NDArray[np.int64]  # those with a value, counted from the source's first
    start: int  # index of the onset in `rows`
    span: tuple[int, int]
    ratio: float
    before: float
    after: float

    @property
    def onset_row(self) -> int:
        return int(self.rows[self.start])
