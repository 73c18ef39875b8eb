"""Rows that come into a block and go out of it, and series that come and go with their columns."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from detectors import _spread, _swing
from detectors._block import Block, Book, empty
from detectors._learning import learn_cells
from detectors._measure import Step
from detectors._scores import LAST, PARTS, SUMMED, begin, clipped, least_sd, rescore
from detectors._windows import ROWS
from soak.core.model import Change, Column

MOST_ABSENT = 256  # series kept without a column
MOST_LEFT = 64  # of those forgotten, whose changes are kept


def adopt(block: Block, columns: tuple[Column, ...], step: Step, since_k: int) -> Block:
    """Return the block for these columns: known series keep their rows, others start empty.

    A series without a column is kept after them, absent, if it was there at `since_k` or later: a probe
    that starts anew may not know all of its columns in its first second. Of one that is forgotten the
    standing changes are kept, and are its own again when it comes back.
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
        books, left = _shelved(block, names)
        block = replace(
            block,
            names=names,
            y=fresh.y,
            cells=fresh.cells,
            spread=fresh.spread,
            stale=fresh.stale,
            books=books,
            left=left,
        )
    block.columns, block.absent = columns, absent
    begin(block, step)
    return block


def _with_absent(
    block: Block, columns: tuple[Column, ...], since_k: int
) -> tuple[tuple[Column, ...], dict[str, int]]:
    present = {column.name for column in columns}
    seen = {column.name: block.absent.get(column.name, block.last_k) for column in block.columns}
    away = [
        column
        for column in block.columns
        if column.name not in present and seen[column.name] >= since_k
    ]
    # those that have been away as long stay as they are, also when a panel that was stored comes here again
    left = sorted(away, key=lambda column: seen[column.name])[-MOST_ABSENT:]
    return (*columns, *left), {column.name: seen[column.name] for column in left}


def _shelved(
    block: Block, names: tuple[str, ...]
) -> tuple[dict[str, Book], dict[str, list[Change]]]:
    """Return the books of these series, and what stands of the others, the longest away first."""
    known = {name: book for name, book in block.books.items() if name in names}
    back = {name: Book(standing=block.left[name]) for name in names if name in block.left}
    left = {name: changes for name, changes in block.left.items() if name not in names}
    for name, book in block.books.items():
        if name not in names and book.standing:
            left[name] = book.standing
    return {**known, **back}, dict(list(left.items())[-MOST_LEFT:])


def push(block: Block, k: int, y: NDArray[np.float32], step: Step) -> None:
    """Add one row; the oldest of the ring goes into the cells."""
    every = np.arange(len(block.names))
    z = _spread.scores(y, block.spread, least_sd(block, every, step))
    here = np.isfinite(z).astype(np.int32)
    at = block.rows % ROWS
    if block.rows >= ROWS:
        level = block.spread.center + block.unit * (block.wide[at] / PARTS)
        if block.cells.add(int(block.k[at]), level, block.here[at]):
            learn_cells(block)
            rescore(block, every, step)
    narrow, wide = clipped(z, block.narrow_limit), clipped(z, block.wide_limit)
    leaving = (block.rows - SUMMED) % ROWS
    short, long = np.split(leaving, [LAST + 1])
    block.sums[: LAST + 1] += narrow - block.narrow[short]
    block.sums[LAST + 1 :] += wide - block.wide[long]
    block.counts += here - block.here[leaving]
    _swing.push(block, wide, here)
    block.narrow[at], block.wide[at] = narrow, wide
    block.y[at], block.here[at], block.k[at] = y, here, k
    block.rows += 1


def forget(block: Block, series: int, first: int, stop: int, step: Step) -> None:
    """Take rows `first` to `stop` of one series, counted from the source's first, out of what is kept."""
    rows = np.arange(max(first, block.rows - ROWS), stop)
    block.y[rows % ROWS, series] = np.nan
    block.cells.forget(series, first, stop)
    block.stale[series] = True
    rescore(block, np.array([series]), step)
