"""What was sent and not yet acknowledged, in numpy arrays: a slot a message, no object a message."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from soak.core.ports import Acks

_FIELDS = np.dtype(
    [("partition", "i8"), ("sequence", "i8"), ("intended_ns", "i8"), ("sent_ns", "i8")]
)


@dataclass(frozen=True, slots=True)
class Settled:
    """Messages that were acknowledged or failed; arrays of shape (n,). `offset` is -1 for failed."""

    partition: NDArray[np.int64]
    sequence: NDArray[np.int64]
    offset: NDArray[np.int64]
    latency_ns: NDArray[np.int64]  # from the intended time
    service_ns: NDArray[np.int64]  # from the actual send


class InFlight:
    """A ring that doubles when its oldest message is still open; token = running number of the send."""

    def __init__(self, capacity: int = 1 << 14) -> None:
        self._slots = np.zeros(capacity, dtype=_FIELDS)
        self._is_open = np.zeros(capacity, dtype=np.bool_)
        self._next = 0
        self.count = 0

    def add(self, partition: int, sequence: int, intended_ns: int, sent_ns: int) -> int:
        """Note one message that is about to be sent; return its token."""
        token = self._next
        slot = token % self._slots.size
        if self._is_open[slot]:
            self._grow()
            slot = token % self._slots.size
        self._slots[slot] = (partition, sequence, intended_ns, sent_ns)
        self._is_open[slot] = True
        self._next += 1
        self.count += 1
        return token

    def take_back(self) -> None:
        """Forget the newest message: the client did not take it."""
        self._next -= 1
        self._is_open[self._next % self._slots.size] = False
        self.count -= 1

    def settle(self, acks: Acks) -> Settled:
        """Return what these delivery reports are about, and free the slots."""
        slot = acks.token % self._slots.size
        row = self._slots[slot]
        self._is_open[slot] = False
        self.count -= acks.token.size
        return Settled(
            partition=row["partition"],
            sequence=row["sequence"],
            offset=acks.offset,
            latency_ns=acks.at_mono_ns - row["intended_ns"],
            service_ns=acks.at_mono_ns - row["sent_ns"],
        )

    def _grow(self) -> None:
        old = self._slots.size
        tokens = np.arange(self._next - old, self._next)
        slots, is_open = np.zeros(old * 2, dtype=_FIELDS), np.zeros(old * 2, dtype=np.bool_)
        slots[tokens % (old * 2)] = self._slots[tokens % old]
        is_open[tokens % (old * 2)] = self._is_open[tokens % old]
        self._slots, self._is_open = slots, is_open
