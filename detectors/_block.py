"""The last rows of all series of one source, and the running sums that a panel needs of them.

Rows are seconds that counted: untrusted ones, gaps and planned phases never become rows. The sums are
integers, so they resume bit for bit and never drift.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from detectors import _measure, _spread
from detectors._glr import WINDOWS, mean_factor
from detectors._measure import Step
from detectors._spread import Spread
from soak.core.model import Change, Column

ROWS = 320  # remembered: the longest window and 128 rows before it
RELEARN_ROWS = 30
MOST_ABSENT = 256  # series kept without a column
_MEMORY_ROWS = 300  # the spread forgets that slowly, also across alarms
_LONG_MEMORY_ROWS = 1200  # and the correlation over minutes, which takes longer to judge
PARTS = 1000.0  # a score of 1 as an integer


@dataclass(frozen=True, slots=True)
class Pending:
    """A raised change that waits for its confirmation; rows are counted from the source's first."""

    raised_k: int
    raised_row: int
    onset_row: int
    before: float
    after: float


@dataclass(slots=True)
class Book:
    """What is known about one series beside its rows."""

    pending: Pending | None = None
    standing: list[Change] = field(default_factory=list)  # confirmed and not gone


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
    spread: Spread
    used: Spread  # what the scores in the ring were made with
    stale: NDArray[np.bool_]  # rows were taken out since the level was learnt
    edge_k: int  # no row before this second
    phase: str
    books: dict[str, Book] = field(default_factory=dict)
    absent: dict[str, int] = field(default_factory=dict)  # series and when last there, oldest first
    # derived
    logarithmic: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, np.bool_))
    least: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    factor: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    q: NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))
    here: NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))
    sums: NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))
    counts: NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))

    @property
    def total(self) -> NDArray[np.int32]:
        """Return how many rows each series has in the ring, shape (n,)."""
        total: NDArray[np.int32] = self.counts[-1]
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
        spread=Spread.empty(n),
        used=Spread.empty(n),
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
        fresh.y[:, new] = block.y[:, old]
        to = np.array(new, dtype=np.int64)
        fresh.spread.put(to, block.spread.take(old))
        fresh.used.put(to, block.used.take(old))
        fresh.stale[to] = block.stale[old]
        known = {name: book for name, book in block.books.items() if name in names}
        block = replace(
            block,
            names=names,
            y=fresh.y,
            spread=fresh.spread,
            used=fresh.used,
            stale=fresh.stale,
            books=known,
        )
    block.columns, block.absent = columns, absent
    block.logarithmic = _measure.is_log(columns)
    block.least = _measure.least(columns, step)
    n = len(names)
    block.q, block.here = np.zeros((ROWS, n), np.int32), np.zeros((ROWS, n), np.int32)
    block.sums = np.zeros((WINDOWS.size + 1, n), np.int32)
    block.counts, block.factor = np.zeros_like(block.sums), np.ones(block.sums.shape)
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


def rescore(block: Block, at: NDArray[np.int64], step: Step) -> None:
    """Make scores and sums of these series anew, over the whole ring, with the spread in use."""
    used = block.used.take(at)
    floor = _measure.sd_floor(used.center, block.logarithmic[at], block.least[at], step)
    z = _spread.scores(block.y[:, at], used, floor)
    here = np.isfinite(z)
    ends = np.append(WINDOWS, ROWS)
    block.here[:, at] = here
    block.q[:, at] = np.rint(np.where(here, z, 0.0) * PARTS)
    block.factor[:, at] = mean_factor(used.memory(), ends[:, np.newaxis])
    newest_first = (block.rows - 1 - np.arange(ROWS)) % ROWS
    columns = np.ix_(newest_first, at)
    block.sums[:, at] = np.cumsum(block.q[columns], axis=0)[ends - 1]
    block.counts[:, at] = np.cumsum(block.here[columns], axis=0)[ends - 1]


def push(block: Block, k: int, y: NDArray[np.float32], step: Step) -> None:
    """Add one row, dropping the oldest."""
    floor = _measure.sd_floor(block.used.center, block.logarithmic, block.least, step)
    z = _spread.scores(y, block.used, floor)
    present = np.isfinite(z)
    here = present.astype(np.int32)
    q = np.rint(np.where(present, z, 0.0) * PARTS).astype(np.int32)
    leaving = (block.rows - np.append(WINDOWS, ROWS)) % ROWS
    block.sums += q - block.q[leaving]
    block.counts += here - block.here[leaving]
    at = block.rows % ROWS
    block.y[at], block.q[at], block.here[at], block.k[at] = y, q, here, k
    block.rows += 1


def ratios(block: Block, least_before: int) -> NDArray[np.float64]:
    """Return the largest log likelihood ratio of each series over the candidate windows, (n,)."""
    after, total = block.counts[:-1], block.counts[-1]
    before = total - after
    whole = block.sums[-1]
    enough = (after >= WINDOWS[0]) & (before >= least_before)
    m, n = np.maximum(after, 1), np.maximum(before, 1)
    contrast = (block.sums[:-1] / m - (whole - block.sums[:-1]) / n) / PARTS
    # the rows before are many: their factor is that of the whole ring
    noise = block.factor[:-1] / m + block.factor[-1] / n
    ratio = np.where(enough, contrast**2 / (2.0 * block.used.variance * noise), 0.0)
    best: NDArray[np.float64] = ratio.max(axis=0)
    return best


def ordered(block: Block) -> NDArray[np.int64]:
    """Return the places in the ring that are in use, oldest first."""
    first = max(0, block.rows - ROWS)
    return np.arange(first, block.rows) % ROWS


def relearn(block: Block, due: NDArray[np.bool_], step: Step) -> None:
    """Judge level, spread and correlation of the series `due` from the ring, and score anew."""
    at = np.flatnonzero(due)
    y = block.y[np.ix_(ordered(block), at)]
    known = block.spread.take(at)
    center, down, up, count = _spread.levels(y)
    weight = np.where(known.rows > 0, RELEARN_ROWS / _MEMORY_ROWS, 1.0)
    rows = known.rows + np.where(known.rows > 0, RELEARN_ROWS, count)
    kept = replace(
        known,
        center=center,
        down=known.down + weight * (down - known.down),
        up=known.up + weight * (up - known.up),
        rows=rows,
    )
    # after rows were taken out the noise may be another: a larger one is believed at once
    anew = block.stale[at]
    used = replace(
        kept,
        down=np.where(anew, np.maximum(kept.down, down), kept.down),
        up=np.where(anew, np.maximum(kept.up, up), kept.up),
    )
    floor = _measure.sd_floor(center, block.logarithmic[at], block.least[at], step)
    variance, neighbour, blocks = _spread.moments(_spread.scores(y, used, floor))
    slowly = np.where(
        count >= ROWS // 2, RELEARN_ROWS / np.clip(rows, RELEARN_ROWS, _LONG_MEMORY_ROWS), 0.0
    )
    kept.variance = known.variance + weight * (variance - known.variance)
    kept.neighbour = known.neighbour + weight * (neighbour - known.neighbour)
    kept.blocks = known.blocks + slowly * (blocks - known.blocks)
    used.variance, used.neighbour, used.blocks = kept.variance, kept.neighbour, kept.blocks
    block.spread.put(at, kept)
    block.used.put(at, used)
    block.stale[at] = False
    rescore(block, at, step)


def forget(block: Block, series: int, first: int, stop: int, step: Step) -> None:
    """Take rows `first` to `stop` of one series, counted from the source's first, out of the ring."""
    rows = np.arange(max(first, block.rows - ROWS), stop)
    block.y[rows % ROWS, series] = np.nan
    block.stale[series] = True
    rescore(block, np.array([series]), step)
