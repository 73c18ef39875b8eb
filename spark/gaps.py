"""A span of seconds of a run of which something must be said: nothing was recorded, or nothing came."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class Gap:
    """Seconds [from_k, to_k) of one source; an empty span marks a place or a moment."""

    source: str
    from_k: int
    to_k: int
    why: str


def runs(numbers: np.ndarray[Any, np.dtype[np.int64]]) -> list[tuple[int, int]]:
    """Return the first and last number of each run of consecutive ones."""
    if numbers.size == 0:
        return []
    breaks = np.flatnonzero(np.diff(numbers) != 1)
    first = numbers[np.concatenate([[0], breaks + 1])]
    last = numbers[np.concatenate([breaks, [numbers.size - 1]])]
    return [(int(a), int(b)) for a, b in zip(first, last, strict=True)]
