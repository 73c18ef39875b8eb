"""The last rows of all series of one source, sums of the rows before, and what a panel needs of both.

Rows are seconds that counted: untrusted ones, gaps and planned phases never become rows. The last `ROWS`
are kept; older ones as means of `CELL` rows. What is added up row by row are integers, so it resumes bit
for bit and never drifts.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from detectors import _measure, _memory, _spread
from detectors._cells import CELL, CELLS, Cells
from detectors._measure import Step
from detectors._memory import SCALES, Memory
from detectors._spread import Spread
from detectors._windows import AFTER, BEFORE, BEFORE_CELLS, LONG, ROWS, SHORT
from soak.core.model import Change, Column

RELEARN_ROWS = 30
YOUNG_ROWS, YOUNG_RELEARN_ROWS = 60, 5  # a new level is learnt more often
MOST_ABSENT = 256  # series kept without a column
LEAST_BEFORE = 10  # rows before a candidate start
_MEMORY_ROWS = 300  # the spread forgets that slowly, also across alarms
_LONG_MEMORY_ROWS = 10_000  # and the correlation, which takes longer to judge
_LEAST_FREEDOM = 150.0  # what is known of scores before any are seen: they are bounded
PARTS = 1000.0  # a score of 1 as an integer
_NARROW = int(_spread.NARROW * PARTS)
_DOUBT_ROWS = 120.0  # that long windows need to know of means of minutes
_TYPICAL = np.array(20.0)  # rows, of whose mean the clip of long windows is made
_LAST = SHORT.size  # place of the whole ring among the sums of short windows
_SUMMED = np.concatenate([SHORT, [ROWS], LONG, [ROWS]])  # each kind ends with the whole ring


@dataclass(frozen=True, slots=True)
class Pending:
    """A raised change that waits for its confirmation; rows are counted from the source's first."""

    raised_k: int
    raised_row: int
    onset_row: int
    onset_k: int
    before: float
    after: float


@dataclass(slots=True)
class Book:
    """What is known about one series beside its rows."""

    pending: Pending | None = None
    standing: list[Change] = field(default_factory=list)  # confirmed and not gone


def _none() -> NDArray[np.float64]:
    return np.zeros(0)


def _memories(n: int) -> Memory:
    return Memory(np.ones(n), np.zeros(n), np.full(n, 0.5), np.zeros(n))


@dataclass(slots=True)
class Block:
    """All arrays have the series last; `y` and `k` are rings of `ROWS` rows."""

    names: tuple[str, ...]
    columns: tuple[Column, ...]  # those of the last record, then those absent
    last_k: int
    inc: int
    y: NDArray[np.float32]
    k: NDArray[np.int64]
    rows: int
    cells: Cells
    spread: Spread
    stale: NDArray[np.bool_]  # rows were taken out since the level was learnt
    edge_k: int  # no row before this second
    phase: str
    books: dict[str, Book] = field(default_factory=dict)
    absent: dict[str, int] = field(default_factory=dict)  # series and when last there, oldest first
    # derived
    logarithmic: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, np.bool_))
    least: NDArray[np.float64] = field(default_factory=_none)
    unit: NDArray[np.float64] = field(default_factory=_none)  # a score of 1 on the series' scale
    plain: NDArray[np.float64] = field(default_factory=_none)  # 1: no bursts, independent rows
    narrow_limit: NDArray[np.float64] = field(default_factory=_none)  # of a score
    wide_limit: NDArray[np.float64] = field(default_factory=_none)
    narrow: NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))
    wide: NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))
    here: NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))
    sums: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    counts: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    older: NDArray[np.float64] = field(
        default_factory=_none
    )  # scores of cells, newest first, summed
    older_counts: NDArray[np.float64] = field(default_factory=_none)
    noise: NDArray[np.float64] = field(default_factory=_none)  # of the contrast of each window
    freedom: NDArray[np.float64] = field(default_factory=_none)  # degrees of it
    narrow_memory: Memory = field(default_factory=lambda: _memories(0))
    wide_memory: Memory = field(default_factory=lambda: _memories(0))

    @property
    def total(self) -> NDArray[np.int64]:
        """Return how many rows each series has in the ring, shape (n,)."""
        total: NDArray[np.int64] = self.counts[-1]
        return total


def empty(columns: tuple[Column, ...]) -> Block:
    n = len(columns)
    return Block(
        names=tuple(column.name for column in columns),
        columns=columns,
        last_k=-(2**62),
        inc=0,
        y=np.full((ROWS, n), np.nan, dtype=np.float32),
        k=np.zeros(ROWS, dtype=np.int64),
        rows=0,
        cells=Cells.empty(n),
        spread=Spread.empty(n),
        stale=np.zeros(n, np.bool_),
        edge_k=-(2**62),
        phase="",
    )


def adopt(block: Block, columns: tuple[Column, ...], step: Step, since_k: int) -> Block:
    """Return the block for these columns: known series keep their rows, others start empty.

    A series without a column is kept after them, absent, if it was there at `since_k` or later: a probe
    that starts anew may not know all of its columns in its first second.
    """
    columns, absent = _with_absent(block, columns, since_k)
    names = tuple(column.name for column in columns)
    if names != block.names:
        fresh = empty(columns)
        place = {name: i for i, name in enumerate(block.names)}
        new = [i for i, name in enumerate(names) if name in place]
        old = np.array([place[names[i]] for i in new], dtype=np.int64)
        to = np.array(new, dtype=np.int64)
        fresh.y[:, to] = block.y[:, old]
        fresh.spread.put(to, block.spread.take(old))
        fresh.cells.put(to, block.cells, old)
        fresh.stale[to] = block.stale[old]
        known = {name: book for name, book in block.books.items() if name in names}
        block = replace(
            block,
            names=names,
            y=fresh.y,
            cells=fresh.cells,
            spread=fresh.spread,
            stale=fresh.stale,
            books=known,
        )
    block.columns, block.absent = columns, absent
    block.logarithmic = _measure.is_log(columns)
    block.least = _measure.least(columns, step)
    n = len(names)
    block.narrow, block.wide, block.here = (np.zeros((ROWS, n), np.int32) for _ in range(3))
    block.sums = np.zeros((_SUMMED.size, n), np.int64)
    block.counts = np.zeros_like(block.sums)
    block.older, block.older_counts = np.zeros((CELLS + 1, n)), np.zeros((CELLS + 1, n))
    block.noise, block.freedom = np.ones((AFTER.size, n)), np.ones((AFTER.size, n))
    block.unit, block.plain = np.ones(n), np.zeros(n)
    block.narrow_limit, block.wide_limit = np.full(n, _spread.NARROW), np.full(n, _spread.WIDE)
    block.narrow_memory, block.wide_memory = _memories(n), _memories(n)
    rescore(block, np.arange(n), step)
    return block


def _with_absent(
    block: Block, columns: tuple[Column, ...], since_k: int
) -> tuple[tuple[Column, ...], dict[str, int]]:
    present = {column.name for column in columns}
    seen = {column.name: block.absent.get(column.name, block.last_k) for column in block.columns}
    left = sorted(
        (seen[column.name], column.name, column)
        for column in block.columns
        if column.name not in present and seen[column.name] >= since_k
    )[-MOST_ABSENT:]
    whole = (*columns, *(column for _, _, column in left))
    return whole, {name: last_k for last_k, name, _ in left}


def _floor(block: Block, at: NDArray[np.int64], step: Step) -> NDArray[np.float64]:
    center = block.spread.center[at]
    return _measure.sd_floor(center, block.logarithmic[at], block.least[at], step)


def rescore(block: Block, at: NDArray[np.int64], step: Step) -> None:
    """Make scores, sums and noise of these series anew, with what was learnt of them."""
    spread, floor = block.spread.take(at), _floor(block, at, step)
    block.unit[at] = np.maximum(0.5 * (spread.down + spread.up), floor)
    _judge(block, at, step)
    z = _spread.scores(block.y[:, at], spread, floor)
    here = np.isfinite(z)
    block.here[:, at] = here
    block.narrow[:, at] = _clipped(z, block.narrow_limit[at])
    block.wide[:, at] = _clipped(z, block.wide_limit[at])
    newest_first = (block.rows - 1 - np.arange(ROWS)) % ROWS
    columns = np.ix_(newest_first, at)
    short, long = np.split(_SUMMED - 1, [_LAST + 1])
    block.sums[: _LAST + 1, at] = np.cumsum(block.narrow[columns], axis=0)[short]
    block.sums[_LAST + 1 :, at] = np.cumsum(block.wide[columns], axis=0)[long]
    block.counts[:, at] = np.cumsum(block.here[columns], axis=0)[_SUMMED - 1]
    _add_up(block, at)


def _clipped(z: NDArray[np.float64], limit: NDArray[np.float64] | float) -> NDArray[np.int32]:
    """Return scores as integers, 0 where there is none."""
    score = np.clip(np.where(np.isfinite(z), z, 0.0), -limit, limit)
    return np.rint(score * PARTS).astype(np.int32)


def _judge(block: Block, at: NDArray[np.int64], step: Step) -> None:
    """Make anew how much the contrast of each window varies by itself."""
    spread, floor = block.spread.take(at), _floor(block, at, step)
    # where the floor counts, the noise is as large as it says
    sd = np.maximum(0.5 * (spread.down + spread.up), floor)
    least = (floor / sd) ** 2
    calm = _spread.calm(spread, floor)
    # the scores of short windows are as wide as those of long ones where noise is calm
    blend = spread.narrow + calm * (spread.wide[:3] - spread.narrow)
    narrow = _memory.fit(np.append(blend, spread.wide[3:], axis=0), spread.seen, least)
    wide = _memory.fit(spread.wide, spread.seen, least, _DOUBT_ROWS)
    for name in Memory.__slots__:
        getattr(block.narrow_memory, name)[at] = getattr(narrow, name)
        getattr(block.wide_memory, name)[at] = getattr(wide, name)
    together = _memory.of_mean(narrow, _TYPICAL) / narrow.variance
    wide_limit = (_spread.WIDE + calm * (_spread.CALM - _spread.WIDE)) * np.sqrt(together)
    block.wide_limit[at] = wide_limit
    block.narrow_limit[at] = _spread.NARROW + calm * (wide_limit - _spread.NARROW)
    # the more rows hang together, the more is to be known of how they do
    block.plain[at] = calm * wide.variance / _memory.of_mean(wide, SCALES[-1])
    after = AFTER[:, np.newaxis]
    before = np.clip(spread.span - after, LEAST_BEFORE, BEFORE[:, np.newaxis])
    for memory, part in ((narrow, slice(None, _LAST)), (wide, slice(_LAST, None))):
        block.noise[part, at] = _memory.of_contrast(memory, after[part], before[part])
        block.freedom[part, at] = _freedom(spread, memory, after[part])


def _freedom(spread: Spread, memory: Memory, after: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the degrees of freedom of the noise of each window."""
    factor = _memory.of_mean(memory, after) / memory.variance
    rows = np.maximum(spread.seen[0], 1.0)
    few = np.clip(0.6 * spread.rows, 1.0, _MEMORY_ROWS)
    freedom: NDArray[np.float64] = _LEAST_FREEDOM / factor**2 + 1.0 / (
        (1.0 + factor) / rows + 1.0 / few
    )
    return freedom


def _add_up(block: Block, at: NDArray[np.int64]) -> None:
    level, count = block.cells.newest_first(at)
    count = count.astype(np.float64)
    z = np.where(count > 0.0, (level - block.spread.center[at]) / block.unit[at], 0.0)
    limit = block.wide_limit[at]
    block.older[1:, at] = np.cumsum(np.clip(z, -limit, limit) * count, axis=0)
    block.older_counts[1:, at] = np.cumsum(count, axis=0)


def push(block: Block, k: int, y: NDArray[np.float32], step: Step) -> None:
    """Add one row; the oldest of the ring goes into the cells."""
    every = np.arange(len(block.names))
    z = _spread.scores(y, block.spread, _floor(block, every, step))
    here = np.isfinite(z).astype(np.int32)
    at = block.rows % ROWS
    if block.rows >= ROWS:
        level = block.spread.center + block.unit * (block.wide[at] / PARTS)
        if block.cells.add(int(block.k[at]), level, block.here[at]):
            _learn_far(block)
            rescore(block, every, step)
    narrow, wide = _clipped(z, block.narrow_limit), _clipped(z, block.wide_limit)
    leaving = (block.rows - _SUMMED) % ROWS
    short, long = np.split(leaving, [_LAST + 1])
    block.sums[: _LAST + 1] += narrow - block.narrow[short]
    block.sums[_LAST + 1 :] += wide - block.wide[long]
    block.counts += here - block.here[leaving]
    block.narrow[at], block.wide[at] = narrow, wide
    block.y[at], block.here[at], block.k[at] = y, here, k
    block.rows += 1


def _learn_far(block: Block) -> None:
    """Learn how means of two cells vary, from the newest four."""
    level, count = block.cells.newest_first(np.arange(len(block.names)))
    enough = (count[:4] >= CELL // 2).all(axis=0) & (block.spread.rows > 0)
    level = np.where(enough, level[:4].astype(np.float64), 0.0)
    apart = 0.5 * (level[0] + level[1] - level[2] - level[3]) / block.unit
    expected = _memory.of_contrast(block.wide_memory, SCALES[-1], SCALES[-1]) / SCALES[-1]
    half = np.minimum(0.5 * apart**2, 9.0 * expected)
    seen, known = block.spread.seen, block.spread.wide
    weight = np.where(enough, CELL / np.minimum(seen[-1] + CELL, _LONG_MEMORY_ROWS), 0.0)
    known[-1] += weight * (half - known[-1])
    seen[-1] += np.where(enough, CELL, 0.0)


def ratios(block: Block) -> NDArray[np.float64]:
    """Return the log likelihood ratio of each candidate start and series, (starts, n)."""
    cells, sums, counts = block.cells, block.sums / PARTS, block.counts
    rest = cells.count * (cells.mean() - block.spread.center) / block.unit
    back = sums[-1] + rest + block.older  # as far as so many whole cells
    back_count = counts[-1] + cells.count + block.older_counts
    edges, ring = AFTER.size - SHORT.size - LONG.size, np.full(SHORT.size, _LAST)
    after = np.concatenate([sums[:_LAST], sums[_LAST + 1 : -1], back[:edges]])
    m = np.concatenate([counts[:_LAST], counts[_LAST + 1 : -1], back_count[:edges]])
    before = np.concatenate([sums[ring], back[BEFORE_CELLS]]) - after
    n = np.concatenate([counts[ring], back_count[BEFORE_CELLS]]) - m
    enough = (m >= SHORT[0]) & (n >= LEAST_BEFORE)
    m, n = np.maximum(m, 1.0), np.maximum(n, 1.0)
    squared = (after / m - before / n) ** 2 / ((1.0 / m + 1.0 / n) * block.noise)
    return np.where(enough, logarithm(squared, block.freedom), 0.0)


def logarithm(squared: NDArray[np.float64], freedom: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the log likelihood ratio of a squared contrast whose noise was itself judged from data."""
    ratio: NDArray[np.float64] = 0.5 * freedom * np.log1p(squared / freedom)
    return ratio


def ordered(block: Block) -> NDArray[np.int64]:
    """Return the places in the ring that are in use, oldest first."""
    first = max(0, block.rows - ROWS)
    return np.arange(first, block.rows) % ROWS


def is_full(block: Block) -> NDArray[np.bool_]:
    """True for series of which a value has left the ring."""
    cells = block.cells
    older: NDArray[np.bool_] = (cells.count > 0) | (cells.counts > 0).any(axis=0)
    return older


def relearn(block: Block, due: NDArray[np.bool_], step: Step) -> None:
    """Judge level and spread of the series `due` from the ring, and score anew."""
    at = np.flatnonzero(due)
    y = block.y[np.ix_(ordered(block), at)]
    known = block.spread.take(at)
    center, down, up, count = _spread.levels(y)
    is_first = known.rows == 0
    block.cells.clear(at[is_first])  # their levels were not known yet
    fresh = np.where(count < YOUNG_ROWS, YOUNG_RELEARN_ROWS, RELEARN_ROWS)
    weight = np.where(is_first, 1.0, fresh / _MEMORY_ROWS)
    # after rows were taken out the noise may be another: a larger one is believed at once
    is_stale = block.stale[at]
    new = replace(
        known,
        center=center,
        down=known.down
        + np.where(is_stale & (down > known.down), 1.0, weight) * (down - known.down),
        up=known.up + np.where(is_stale & (up > known.up), 1.0, weight) * (up - known.up),
        rows=known.rows + np.where(is_first, count, fresh),
        span=count + block.cells.total(at),
    )
    block.spread.put(at, new)
    block.stale[at] = False
    rescore(block, at, step)
    learn_noise(block, at[is_first], step, ROWS)


def learn_noise(block: Block, at: NDArray[np.int64], step: Step, fresh: int = RELEARN_ROWS) -> None:
    """Learn how means of few rows vary, from those that end in the newest `fresh` rows.

    A step counts while it passes, and little: noise that was underrated must be able to grow while it
    looks like a step.
    """
    if at.size == 0:
        return
    columns = np.ix_(ordered(block), at)
    spread, scales, here = block.spread.take(at), SCALES[:3, np.newaxis], block.here[columns] > 0
    always_clipped = np.clip(block.narrow, -_NARROW, _NARROW)  # also where more is let through
    for known, score, memory in (
        (spread.narrow, always_clipped, block.narrow_memory),
        (spread.wide, block.wide, block.wide_memory),
    ):
        z = np.where(here, score[columns] / PARTS, np.nan)
        expected = _memory.of_contrast(memory.take(at), scales, scales) / scales
        half, many = _spread.neighbours(z, fresh, np.where(spread.seen[:3] > 0.0, expected, np.inf))
        weight = many / np.clip(spread.seen[:3] + many, 1.0, _LONG_MEMORY_ROWS)
        known[:3] += weight * (half - known[:3])
    newest = block.y[np.ix_(ordered(block)[-fresh:], at)]
    _spread.learn_far(spread, _spread.scores(newest, spread, _floor(block, at, step)))
    spread.seen[:3] += many
    block.spread.put(at, spread)
    rescore(block, at, step)


def forget(block: Block, series: int, first: int, stop: int, step: Step) -> None:
    """Take rows `first` to `stop` of one series, counted from the source's first, out of what is kept."""
    rows = np.arange(max(first, block.rows - ROWS), stop)
    block.y[rows % ROWS, series] = np.nan
    block.cells.forget(series, first, stop)
    block.stale[series] = True
    rescore(block, np.array([series]), step)
