"""What the rows of a block teach of level, spread and correlation of its series, and when."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from detectors import _memory, _spread, _swing
from detectors._block import Block, ordered
from detectors._measure import Step
from detectors._memory import SCALES
from detectors._scores import MEMORY_ROWS, PARTS, least_sd, rescore
from detectors._windows import CELL, ROWS

RELEARN_ROWS = 30
YOUNG_ROWS, YOUNG_RELEARN_ROWS = 60, 5  # a new level is learnt more often
_SLOWER = 3.0  # times the memory of the spread, as far as noise is known to swing
_LONG_MEMORY_ROWS = 10_000  # the correlation is forgotten that slowly, as it takes long to judge
_NARROW = int(_spread.NARROW * PARTS)


def relearn(block: Block, due: NDArray[np.bool_], step: Step) -> None:
    """Judge level and spread of the series `due` from the ring, and score anew."""
    at = np.flatnonzero(due)
    y = block.y[np.ix_(ordered(block), at)]
    known = block.spread.take(at)
    center, down, up, count = _spread.levels(y)
    is_first = known.rows == 0
    block.cells.clear(at[is_first])  # their levels were not known yet
    fresh = np.where(count < YOUNG_ROWS, YOUNG_RELEARN_ROWS, RELEARN_ROWS)
    # where noise is known to swing its size now is that of the ring, and the spread may take its time
    memory = MEMORY_ROWS * (1.0 + _SLOWER * _swing.share(known))
    weight = np.where(is_first, 1.0, fresh / memory)
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
    _spread.learn_far(spread, _spread.scores(newest, spread, least_sd(block, at, step)))
    spread.seen[:3] += many
    block.spread.put(at, spread)
    rescore(block, at, step)


def learn_cells(block: Block) -> None:
    """Learn how means of two cells vary, from the newest four."""
    level, count = block.cells.newest_first(np.arange(len(block.names)))
    enough = (count[:4] >= CELL // 2).all(axis=0) & (block.spread.rows > 0)
    level = np.where(enough, level[:4].astype(np.float64), 0.0)
    apart = 0.5 * (level[0] + level[1] - level[2] - level[3]) / block.unit
    expected = _memory.of_contrast(block.wide_memory, SCALES[-1], SCALES[-1]) / SCALES[-1]
    half = np.minimum(0.5 * apart**2, 9.0 * expected)
    seen, known = block.spread.seen, block.spread.wide
    _swing.learn(block, CELL, enough)  # before what is usual is learnt
    weight = np.where(enough, CELL / np.minimum(seen[-1] + CELL, _LONG_MEMORY_ROWS), 0.0)
    known[-1] += weight * (half - known[-1])
    seen[-1] += np.where(enough, CELL, 0.0)
