"""Messages that came in many small batches, looked at in one go: numpy costs the same for one as for all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from soak.core.ports import Batch, Heads


@dataclass(frozen=True, slots=True)
class Lot:
    """Messages in order of arrival; arrays of shape (n,), each message with the time when it came."""

    heads: Heads
    partition: NDArray[np.int64]  # running numbers
    offset: NDArray[np.int64]
    at_mono_ns: NDArray[np.int64]
    at_wall_ns: NDArray[np.int64]


def lot_of(batches: Sequence[Batch]) -> Lot:
    """Return the messages of at least one batch together."""
    sizes = [len(batch.heads) for batch in batches]
    at_mono_ns = np.concatenate([_came(batch) for batch in batches])
    wall_ahead_ns = np.repeat([batch.at_wall_ns - batch.at_mono_ns for batch in batches], sizes)
    return Lot(
        heads=_heads([batch.heads for batch in batches]),
        partition=np.concatenate([batch.partition for batch in batches]),
        offset=np.concatenate([batch.offset for batch in batches]),
        at_mono_ns=at_mono_ns,
        at_wall_ns=at_mono_ns + wall_ahead_ns,
    )


def split(batch: Batch, edge_ns: int) -> tuple[Batch, Batch]:
    """Return what came before an instant, and what came from it on or is known of the whole batch."""
    first = int(np.searchsorted(_came(batch), edge_ns))
    before, after = (
        replace(
            batch,
            heads=batch.heads[rows],
            partition=batch.partition[rows],
            offset=batch.offset[rows],
            came_mono_ns=None if batch.came_mono_ns is None else batch.came_mono_ns[rows],
        )
        for rows in (slice(first), slice(first, None))
    )
    return replace(before, redelivered=0), after


def _came(batch: Batch) -> NDArray[np.int64]:
    if batch.came_mono_ns is not None:
        return batch.came_mono_ns
    return np.full(len(batch.heads), batch.at_mono_ns, dtype=np.int64)


def _heads(parts: Sequence[Heads]) -> Heads:
    arrays = [part for part in parts if isinstance(part, np.ndarray)]
    if len(arrays) == len(parts):
        return np.concatenate(arrays)
    return list(chain.from_iterable(parts))
