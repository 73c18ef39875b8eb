"""Which partition a client without keys sends to: one for a while, then the next in an order of its own.

Clients that went through the partitions in one order would keep their distance for a whole run: as leaders
are placed in turn, two of them would meet at one broker in every slot, or in none.
"""

from __future__ import annotations

import numpy as np

STICKY_NS = 10_000_000  # so long one partition is kept, as by librdkafka itself: batches stay whole


class Walk:
    """The way of one client: a new order each round, in which every partition has one slot.

    Slots in which nothing is sent take no partition. They begin at another moment with each client, since
    who moves on ends a batch early.
    """

    def __init__(self, partitions: int, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self._order = np.arange(partitions)
        self._at = partitions  # in the order; at its end a new one is drawn
        self._begins_ns = int(self._rng.integers(STICKY_NS))
        self._slot: int | None = None
        self._partition = 0

    def until_ns(self, now_ns: int) -> int:
        """Return when the slot of an instant is over."""
        return now_ns - (now_ns - self._begins_ns) % STICKY_NS + STICKY_NS

    def partition(self, now_ns: int) -> int:
        """Return where what is sent in the slot of an instant goes; instants only ever rise."""
        slot = (now_ns - self._begins_ns) // STICKY_NS
        if slot != self._slot:
            self._slot = slot
            self._step()
        return self._partition

    def skip(self) -> int:
        """Leave the partition of this slot; return the one that takes its place."""
        self._step()
        return self._partition

    def _step(self) -> None:
        if self._at == self._order.size:
            self._rng.shuffle(self._order)
            self._at = 0
        self._partition = int(self._order[self._at])
        self._at += 1
