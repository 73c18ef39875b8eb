"""The last rows of all series of one source, means of the rows before, and what was learnt of both.

Rows are seconds that counted: untrusted ones, gaps and planned phases never become rows. The last `ROWS`
are kept; older ones as means of `CELL` rows. What follows from these (`_scores`) is no part of the state.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from detectors._memory import Memory
from detectors._spread import Spread
from detectors._windows import ROWS, Cells
from soak.core.model import Change, Column


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


def memories(n: int) -> Memory:
    """Return the memory of series of which nothing is known."""
    return Memory(np.ones(n), np.zeros(n), np.full(n, 0.5), np.zeros(n))


@dataclass(slots=True)
class Block:
    """All arrays have the series last; `y` and `k` are rings of `ROWS` rows."""

    names: tuple[str, ...]
    columns: tuple[Column, ...]  # those of the last record, then those absent
    last_k: int
    epoch: int
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
    left: dict[str, list[Change]] = field(default_factory=dict)  # what stood of series forgotten
    # derived
    place: dict[str, int] = field(default_factory=dict)  # of each name, in the arrays
    logarithmic: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, np.bool_))
    least: NDArray[np.float64] = field(default_factory=_none)
    unit: NDArray[np.float64] = field(default_factory=_none)  # a score of 1 on the series' scale
    calm: NDArray[np.float64] = field(default_factory=_none)  # 0 to 1: how far noise does not burst
    tied: NDArray[np.float64] = field(default_factory=_none)  # of `_excursions`
    narrow_limit: NDArray[np.float64] = field(default_factory=_none)  # of a score
    wide_limit: NDArray[np.float64] = field(default_factory=_none)
    narrow: NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))
    wide: NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))
    here: NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))
    sums: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    counts: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    rough: NDArray[np.int64] = field(
        default_factory=lambda: np.zeros(0, np.int64)
    )  # squared differences of neighbouring wide scores in the ring, added up
    pairs: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))  # so many
    usual_pair: NDArray[np.float64] = field(default_factory=_none)  # what one of them usually is
    older: NDArray[np.float64] = field(
        default_factory=_none
    )  # picked sums of cells, in the order of `_scores.OLDER`
    older_counts: NDArray[np.float64] = field(default_factory=_none)
    noise: NDArray[np.float64] = field(default_factory=_none)  # of the contrast of each window
    freedom: NDArray[np.float64] = field(default_factory=_none)  # degrees of it
    moved: NDArray[np.float64] = field(
        default_factory=_none
    )  # score of each window by `_slope` alone
    narrow_memory: Memory = field(default_factory=lambda: memories(0))
    wide_memory: Memory = field(default_factory=lambda: memories(0))

    @property
    def total(self) -> NDArray[np.int64]:
        """Return how many rows each series has in the ring, shape (n,)."""
        total: NDArray[np.int64] = self.counts[-1]
        return total

    def close_books(self) -> None:
        """Keep no book that says nothing, so that what is resumed has the same ones in the same order."""
        self.books = {
            name: book for name, book in self.books.items() if book.pending or book.standing
        }


def empty(columns: tuple[Column, ...]) -> Block:
    n = len(columns)
    return Block(
        names=tuple(column.name for column in columns),
        columns=columns,
        last_k=-(2**62),
        epoch=0,
        y=np.full((ROWS, n), np.nan, dtype=np.float32),
        k=np.zeros(ROWS, dtype=np.int64),
        rows=0,
        cells=Cells.empty(n),
        spread=Spread.empty(n),
        stale=np.zeros(n, np.bool_),
        edge_k=-(2**62),
        phase="",
    )


def ordered(block: Block) -> NDArray[np.int64]:
    """Return the places in the ring that are in use, oldest first."""
    first = max(0, block.rows - ROWS)
    return np.arange(first, block.rows) % ROWS


def is_full(block: Block) -> NDArray[np.bool_]:
    """True for series of which a value has left the ring."""
    cells = block.cells
    older: NDArray[np.bool_] = (cells.count > 0) | (cells.counts > 0).any(axis=0)
    return older
