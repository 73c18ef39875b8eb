"""Of one journal file, the seconds in which the load did not come through: few, so all are kept."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from soak.core.model import Column

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class LoadDigest:
    """Seconds ascend; of a source that neither sends nor reads all three are empty."""

    silent: Ints  # nothing was acknowledged, or nothing received
    standing: Ints  # messages were due, and none was acknowledged
    short: Ints  # rows of second, messages missed, messages failed: where there were any


def load_digest(columns: tuple[Column, ...], k: Ints, values: Floats) -> LoadDigest:
    """Return what became of the load second by second; `values`: a row a column, a column a record.

    A second has two records where its daemon was started again in it.
    """
    place = {column.name: at for at, column in enumerate(columns)}
    seconds, which = np.unique(k, return_inverse=True)

    def counts(name: str) -> Ints:
        if name not in place:
            return np.zeros(seconds.size, np.int64)
        measured = np.nan_to_num(values[place[name]])
        return np.bincount(which, measured, seconds.size).astype(np.int64)

    none = np.empty(0, np.int64)
    if "received_messages" in place:
        silent = seconds[counts("received_messages") == 0]
        return LoadDigest(silent, none, none.reshape(0, 3))
    if not {"sent_messages", "acked_messages"} <= place.keys():
        return LoadDigest(none, none, none.reshape(0, 3))
    missed, failed = counts("missed_messages"), counts("failed_messages")
    is_silent = counts("acked_messages") == 0
    was_due = counts("sent_messages") + missed > 0
    short = np.stack([seconds, missed, failed], axis=1)
    return LoadDigest(seconds[is_silent], seconds[is_silent & was_due], short[missed + failed > 0])
