"""Scores of the rows of a block, their sums over windows, and the likelihood ratios that these give.

What is added up row by row are integers, so it resumes bit for bit and never drifts.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from detectors import _measure, _memory, _spread, _swing, exceedance_rate
from detectors._block import Block, memories
from detectors._measure import Step
from detectors._memory import Memory
from detectors._spread import Spread
from detectors._windows import AFTER, BEFORE, BEFORE_CELLS, CELLS, LONG, ROWS, SHORT

LEAST_BEFORE = 10  # rows before a candidate start
MEMORY_ROWS = 300  # the spread forgets that slowly, also across alarms
PARTS = 1000.0  # a score of 1 as an integer
LAST = SHORT.size  # place of the whole ring among the sums of short windows
SUMMED = np.concatenate([SHORT, [ROWS], LONG, [ROWS]])  # each kind ends with the whole ring
_EDGES = SHORT.size + LONG.size  # place of the starts before the ring
OLDER = np.concatenate([np.arange(AFTER.size - _EDGES), BEFORE_CELLS])
"""So many whole cells are added up: after each start before the ring, then before each that is not short."""
_LEAST_FREEDOM = 150.0  # what is known of scores before any are seen: they are bounded
_DOUBT_ROWS = 120.0  # that long windows need to know of means of minutes
_TYPICAL = np.array(20.0)  # rows, of whose mean the clip of long windows is made


def begin(block: Block, step: Step) -> None:
    """Make all of a block that follows from what it keeps, for columns that it may not have had."""
    block.logarithmic = _measure.is_log(block.columns)
    block.least = _measure.least(block.columns, step)
    n = len(block.names)
    block.place = {name: i for i, name in enumerate(block.names)}
    block.narrow, block.wide, block.here = (np.zeros((ROWS, n), np.int32) for _ in range(3))
    block.sums = np.zeros((SUMMED.size, n), np.int64)
    block.counts = np.zeros_like(block.sums)
    block.rough, block.pairs = np.zeros(n, np.int64), np.zeros(n, np.int64)
    block.usual_pair = np.ones(n)
    block.older, block.older_counts = np.zeros((OLDER.size, n)), np.zeros((OLDER.size, n))
    block.noise, block.freedom = np.ones((AFTER.size, n)), np.ones((AFTER.size, n))
    block.moved = np.zeros((AFTER.size, n))
    block.unit, block.calm, block.tied = np.ones(n), np.zeros(n), np.ones(n)
    block.narrow_limit, block.wide_limit = np.full(n, _spread.NARROW), np.full(n, _spread.WIDE)
    block.narrow_memory, block.wide_memory = memories(n), memories(n)
    rescore(block, np.arange(n), step)


def least_sd(block: Block, at: NDArray[np.int64], step: Step) -> NDArray[np.float64]:
    """Return the least sd that these series are scored with."""
    center = block.spread.center[at]
    return _measure.sd_floor(center, block.logarithmic[at], block.least[at], step)


def rescore(block: Block, at: NDArray[np.int64], step: Step) -> None:
    """Make scores, sums and noise of these series anew, with what was learnt of them."""
    spread, floor = block.spread.take(at), least_sd(block, at, step)
    block.unit[at] = np.maximum(0.5 * (spread.down + spread.up), floor)
    _judge(block, at, step)
    z = _spread.scores(block.y[:, at], spread, floor)
    here = np.isfinite(z)
    block.here[:, at] = here
    block.narrow[:, at] = clipped(z, block.narrow_limit[at])
    block.wide[:, at] = clipped(z, block.wide_limit[at])
    newest_first = (block.rows - 1 - np.arange(ROWS)) % ROWS
    columns = np.ix_(newest_first, at)
    short, long = np.split(SUMMED - 1, [LAST + 1])
    block.sums[: LAST + 1, at] = _running(block.narrow[columns])[short]
    wide, is_here = block.wide[columns], block.here[columns]
    block.sums[LAST + 1 :, at] = _running(wide)[long]
    block.counts[:, at] = _running(is_here)[SUMMED - 1]
    _swing.recount(block, at, wide, is_here)
    _add_up(block, at)


def _running(scores: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return running sums over the rows of a ring, which 32 bits hold."""
    return np.cumsum(scores, axis=0, dtype=np.int32)


def clipped(z: NDArray[np.float64], limit: NDArray[np.float64] | float) -> NDArray[np.int32]:
    """Return scores as integers, 0 where there is none."""
    score = np.where(np.isfinite(z), z, 0.0)
    np.clip(score, -limit, limit, out=score)
    score *= PARTS
    return np.rint(score, out=score).astype(np.int32)


def _judge(block: Block, at: NDArray[np.int64], step: Step) -> None:
    """Make anew how much the contrast of each window varies by itself."""
    spread, floor = block.spread.take(at), least_sd(block, at, step)
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
    block.usual_pair[at] = 2.0 * PARTS**2 * spread.wide[0]
    block.calm[at], block.tied[at] = calm, exceedance_rate.how_tied(wide)
    after = AFTER[:, np.newaxis]
    before = np.clip(spread.span - after, LEAST_BEFORE, BEFORE[:, np.newaxis])
    block.moved[:, at] = 0.5 * (after + before) * block.cells.slope.a_row()[at] / block.unit[at]
    for memory, part in ((narrow, slice(None, LAST)), (wide, slice(LAST, None))):
        block.noise[part, at] = _memory.of_contrast(memory, after[part], before[part])
        block.freedom[part, at] = _freedom(spread, memory, after[part])


def _freedom(spread: Spread, memory: Memory, after: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the degrees of freedom of the noise of each window."""
    factor = _memory.of_mean(memory, after) / memory.variance
    rows = np.maximum(spread.seen[0], 1.0)
    few = np.clip(0.6 * spread.rows, 1.0, MEMORY_ROWS)
    freedom: NDArray[np.float64] = _LEAST_FREEDOM / factor**2 + 1.0 / (
        (1.0 + factor) / rows + 1.0 / few
    )
    return freedom


def _add_up(block: Block, at: NDArray[np.int64]) -> None:
    level, count = block.cells.newest_first(at)
    count = count.astype(np.float64)
    z = np.where(count > 0.0, (level - block.spread.center[at]) / block.unit[at], 0.0)
    limit = block.wide_limit[at]
    for sums, each in (
        (block.older, np.clip(z, -limit, limit) * count),
        (block.older_counts, count),
    ):
        whole = np.zeros((CELLS + 1, at.size))
        np.cumsum(each, axis=0, out=whole[1:])
        sums[:, at] = whole[OLDER]


def ratios(block: Block) -> NDArray[np.float64]:
    """Return the log likelihood ratio of each candidate start and series, (starts, n).

    Worked out in place: of a panel of 500 each array more would be new memory from the kernel, every second.
    """
    cells, sums, counts = block.cells, block.sums / PARTS, block.counts
    rest = cells.count * (cells.mean() - block.spread.center) / block.unit
    after, m, before, n = np.empty((4, *block.noise.shape))
    _fill(after, before, sums, sums[-1] + rest + block.older)
    _fill(m, n, counts, counts[-1] + cells.count + block.older_counts)
    enough = (m >= SHORT[0]) & (n >= LEAST_BEFORE)
    m, n = np.maximum(m, 1.0, out=m), np.maximum(n, 1.0, out=n)
    after /= m
    before /= n
    after -= before
    after -= block.moved
    after *= after
    noise = np.divide(1.0, m, out=m)
    noise += np.divide(1.0, n, out=n)
    noise *= block.noise
    noise *= _swing.larger(block)
    after /= noise
    return np.where(enough, logarithm(after, block.freedom), 0.0)


def _fill(
    after: NDArray[np.float64],
    before: NDArray[np.float64],
    windows: NDArray[np.float64] | NDArray[np.int64],
    back: NDArray[np.float64],
) -> None:
    """Put in what is from each start on and what it is compared with, of `SUMMED` and `OLDER`."""
    after[:LAST], after[LAST:_EDGES] = windows[:LAST], windows[LAST + 1 : -1]
    after[_EDGES:] = back[: AFTER.size - _EDGES]
    before[:LAST], before[LAST:] = windows[LAST], back[AFTER.size - _EDGES :]
    before -= after


def logarithm(squared: NDArray[np.float64], freedom: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the log likelihood ratio of a squared contrast whose noise was itself judged from data."""
    ratio: NDArray[np.float64] = 0.5 * freedom * np.log1p(squared / freedom)
    return ratio
