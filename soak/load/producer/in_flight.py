"""Messages that were sent and not yet acknowledged, in numpy arrays: one row a message, no Python object."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from soak.core.ports import FAILED_OFFSET, Acks

MAX_NEW = 4096
_NEVER_NS = 2**63 - 1
_FIELDS = np.dtype([("stream", "i8"), ("sequence", "i8"), ("intended_ns", "i8"), ("sent_ns", "i8")])


@dataclass(frozen=True, slots=True)
class Settled:
    """Messages that were acknowledged or have failed; arrays of shape (n,). `offset` is -1 for failed."""

    stream: NDArray[np.int64]  # client x partitions + partition
    sequence: NDArray[np.int64]
    offset: NDArray[np.int64]
    latency_ns: NDArray[np.int64]  # from the intended time
    service_ns: NDArray[np.int64]  # from the actual send


class SentRows(Protocol):
    """Messages in the order in which they are sent; arrays of shape (n,)."""

    @property
    def stream(self) -> NDArray[np.int64]: ...
    @property
    def sequence(self) -> NDArray[np.int64]: ...
    @property
    def intended_ns(self) -> NDArray[np.int64]: ...


@dataclass(slots=True)
class _NewRows:
    """Rows `first` to `end - 1`."""

    rows: SentRows
    first: int
    end: int


class InFlight:
    """A ring of open messages, found by token (the running number of the send); it doubles when half full.

    A few messages that stay open while thousands pass them move to a dictionary, so that the ring stays
    as large as the number in flight. Added messages are copied into the ring together, on the next call that
    needs it.
    """

    def __init__(self, capacity: int = 1 << 14) -> None:
        self._slots = np.zeros(capacity, dtype=_FIELDS)
        self._is_open = np.zeros(capacity, dtype=np.bool_)
        self._overtaken: dict[int, NDArray[np.void]] = {}  # by token
        self._new: list[_NewRows] = []
        self._new_sizes: list[int] = []  # of each send
        self._new_sent_ns: list[int] = []
        self._new_messages = 0
        self.next_token = 0
        self.count = 0

    @property
    def capacity(self) -> int:
        """Return how many messages the ring holds."""
        return self._slots.size

    def add(self, rows: SentRows, first: int, end: int, sent_ns: int) -> None:
        """Add messages that are about to be sent, with tokens from `next_token` on; `rows` is not copied."""
        last = self._new[-1] if self._new else None
        if last is not None and last.rows is rows and last.end == first:
            last.end = end
        else:
            self._new.append(_NewRows(rows, first, end))
        size = end - first
        self._new_sizes.append(size)
        self._new_sent_ns.append(sent_ns)
        self._new_messages += size
        self.next_token += size
        self.count += size
        if self._new_messages >= MAX_NEW:
            self._insert_new()

    def remove_newest(self, count: int) -> None:
        """Remove the newest messages: the client did not accept them."""
        self._insert_new()
        self.next_token -= count
        at = np.arange(self.next_token, self.next_token + count) % self._slots.size
        self._is_open[at] = False
        self.count -= count

    def settle(self, acks: Acks) -> Settled:
        """Remove the messages of these delivery reports and return them."""
        self._insert_new()
        slot = acks.token % self._slots.size
        row = self._slots[slot]
        if self._overtaken:
            is_overtaken = np.array(
                [token in self._overtaken for token in acks.token.tolist()], dtype=np.bool_
            )
            for at in np.flatnonzero(is_overtaken).tolist():
                row[at] = self._overtaken.pop(int(acks.token[at]))
            slot = slot[~is_overtaken]
        self._is_open[slot] = False
        self.count -= acks.token.size
        return Settled(
            stream=row["stream"],
            sequence=row["sequence"],
            offset=acks.offset,
            latency_ns=acks.at_mono_ns - row["intended_ns"],
            service_ns=acks.at_mono_ns - row["sent_ns"],
        )

    def oldest_ns(self) -> int | None:
        """Return the earliest intended time of the messages in flight; None when there are none."""
        self._insert_new()
        if not self.count:
            return None
        overtaken = [int(row["intended_ns"]) for row in self._overtaken.values()]
        ring = self._slots["intended_ns"][self._is_open]
        return min([*overtaken, int(ring.min(initial=_NEVER_NS))])

    def fail_all(self, at_mono_ns: int) -> Settled:
        """Remove all messages that are still in flight and return them as failed, oldest first."""
        self._insert_new()
        ring = np.arange(self.next_token - self._slots.size, self.next_token)
        inside = ring[self._is_open[ring % self._slots.size]]
        token = np.concatenate([np.array(sorted(self._overtaken), dtype=np.int64), inside])
        failed, at = np.full(token.size, FAILED_OFFSET), np.full(token.size, at_mono_ns)
        return self.settle(Acks(token, failed, at))

    def _insert_new(self) -> None:
        """Copy the added messages into their slots."""
        if not self._new:
            return
        new, size = self._new, self._new_messages
        sent_ns = np.repeat(self._new_sent_ns, self._new_sizes)
        self._new, self._new_sizes, self._new_sent_ns, self._new_messages = [], [], [], 0
        first = self.next_token - size
        tokens = np.arange(first, self.next_token)
        while size > self._slots.size or self._is_too_full(tokens):
            self._grow(first)
        at = tokens % self._slots.size
        self._move_overtaken(tokens[self._is_open[at]] - self._slots.size)
        slots = self._slots
        for name in ("stream", "sequence", "intended_ns"):
            parts = [getattr(one.rows, name)[one.first : one.end] for one in new]
            slots[name][at] = np.concatenate(parts)
        slots["sent_ns"][at] = sent_ns
        self._is_open[at] = True

    def _is_too_full(self, tokens: NDArray[np.int64]) -> bool:
        """Return whether slots of these tokens are open, and more than half of the ring is."""
        before = self.count - tokens.size - len(self._overtaken)
        is_taken = self._is_open[tokens % self._slots.size].any()
        return bool(is_taken) and before > self._slots.size // 2

    def _move_overtaken(self, tokens: NDArray[np.int64]) -> None:
        slots = tokens % self._slots.size
        for token, slot in zip(tokens.tolist(), slots.tolist(), strict=True):
            self._overtaken[token] = self._slots[slot].copy()
        self._is_open[slots] = False

    def _grow(self, next_token: int) -> None:
        """Double the ring; its newest message is the one before `next_token`."""
        old = self._slots.size
        tokens = np.arange(next_token - old, next_token)
        slots, is_open = np.zeros(old * 2, dtype=_FIELDS), np.zeros(old * 2, dtype=np.bool_)
        slots[tokens % (old * 2)] = self._slots[tokens % old]
        is_open[tokens % (old * 2)] = self._is_open[tokens % old]
        self._slots, self._is_open = slots, is_open
