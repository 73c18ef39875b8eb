"""The quiet rows of a series (no change in them), and series of any length resampled from them.

Method:  stationary bootstrap (Politis and Romano 1994, doi:10.1080/01621459.1994.10476870). Blocks are
         `BLOCK_ROWS` long and a geometric number more, and never reach over a step that was cut out.
Assumes: what happens slower than a block is not kept: it comes back as jumps between blocks, so a series
         that wanders slowly looks worse than it is, never better.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from detectors.scale import FLOOR_SECONDS
from soak.core.model import Change, Series

BLOCK_ROWS = 120
LONG_GAP = 10  # missing seconds over which neighbours are no neighbours any more


@dataclass(frozen=True, slots=True)
class Quiet:
    """Stretches without a step, one after the other, all brought to one level; shape (n,) each."""

    series: str
    unit: str
    values: NDArray[np.float64]
    left: NDArray[np.int64]  # rows from each one on to the end of its stretch
    cut: int  # steps that were taken out

    @property
    def level(self) -> float:
        return float(np.median(self.values))


def quiet(series: Series, unit: str, changes: Sequence[Change]) -> Quiet:
    """Return what is left of a series without its steps and the rows that each may have begun in.

    Levels before and after a step become one: by a factor where the unit is seconds, else by a sum.
    Stretches shorter than a block are left out; so nothing may be left.
    """
    k, values = series.k, series.values
    keep = np.ones(k.size, np.bool_)
    edges = {0, k.size, *(int(row) + 1 for row in np.flatnonzero(np.diff(k) > LONG_GAP))}
    for change in changes:
        low, high = np.searchsorted(k, (change.interval[0], change.interval[1]))
        keep[low:high] = False
        edges.add(int(np.searchsorted(k, change.onset_k)))
    stretches = [values[a:b][keep[a:b]] for a, b in pairwise(sorted(edges))]
    stretches = [stretch for stretch in stretches if stretch.size >= BLOCK_ROWS]
    levelled = _levelled(stretches, is_log=unit == "seconds")
    left = [np.arange(stretch.size, 0, -1) for stretch in stretches]
    return Quiet(
        series.name,
        unit,
        np.concatenate([np.empty(0), *levelled]),
        np.concatenate([np.empty(0, np.int64), *left]),
        len(changes),
    )


def drawn(rng: np.random.Generator, source: Quiet, rows: int, copies: int) -> NDArray[np.float64]:
    """Return series of blocks drawn with replacement, shape (rows, copies)."""
    starts = np.flatnonzero(source.left >= BLOCK_ROWS)
    shape = (rows // BLOCK_ROWS + 1, copies)
    begin = rng.choice(starts, shape)
    length = BLOCK_ROWS - 1 + rng.geometric(1.0 / BLOCK_ROWS, shape)
    length = np.minimum(length, source.left[begin])
    shift = begin - (np.cumsum(length, axis=0) - length)
    made = np.empty((rows, copies))
    for copy in range(copies):
        places = np.repeat(shift[:, copy], length[:, copy])[:rows] + np.arange(rows)
        made[:, copy] = source.values[places]
    return made


def _levelled(
    stretches: Sequence[NDArray[np.float64]], *, is_log: bool
) -> list[NDArray[np.float64]]:
    if not stretches:
        return []
    level = float(np.median(np.concatenate(stretches)))
    if not is_log:
        return [stretch + (level - float(np.median(stretch))) for stretch in stretches]
    least = FLOOR_SECONDS
    return [
        stretch * max(level, least) / max(float(np.median(stretch)), least) for stretch in stretches
    ]
