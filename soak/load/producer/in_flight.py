"""Messages that were sent and not yet acknowledged, in numpy arrays."""

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
    """Messages that were acknowledged or failed; arrays of shape (n,). `offset` is -1 for failed."""

    stream: NDArray[np.int64]
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
    """A ring that doubles when half of it is open; token = running number of the send.

    The few that stay open while thousands pass them are kept aside: the ring is as large as what is out,
    however long one message hangs. What is added is entered when somebody asks for it: all that was
    sent since the last time in one go.
    """

    def __init__(self, capacity: int = 1 << 14) -> None:
        self._slots = np.zeros(capacity, dtype=_FIELDS)
        self._is_open = np.zeros(capacity, dtype=np.bool_)
        self._aside: dict[int, NDArray[np.void]] = {}
        self._new: list[_NewRows] = []
        self._new_sizes: list[int] = []  # of each send, and when it was
        self._new_sent_ns: list[int] = []
        self._new_messages = 0
        self.next_token = 0
        self.count = 0

    @property
    def capacity(self) -> int:
        """Return how many messages the ring holds."""
        return self._slots.size

    def add(self, rows: SentRows, first: int, end: int, sent_ns: int) -> None:
        """Note messages about to be sent, which have the tokens from `next_token` on; the rows are kept."""
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
            self._enter()

    def take_back(self, count: int) -> None:
        """Forget the newest messages: the client did not take them."""
        self._enter()
        self.next_token -= count
        at = np.arange(self.next_token, self.next_token + count) % self._slots.size
        self._is_open[at] = False
        self.count -= count

    def settle(self, acks: Acks) -> Settled:
        """Return what these delivery reports are about, and free the slots."""
        self._enter()
        slot = acks.token % self._slots.size
        row = self._slots[slot]
        if self._aside:
            apart = np.array(
                [token in self._aside for token in acks.token.tolist()], dtype=np.bool_
            )
            for at in np.flatnonzero(apart).tolist():
                row[at] = self._aside.pop(int(acks.token[at]))
            slot = slot[~apart]
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
        """Return when the message was due that has been out for longest; None when nothing is out."""
        self._enter()
        if not self.count:
            return None
        aside = [int(one["intended_ns"]) for one in self._aside.values()]
        ring = self._slots["intended_ns"][self._is_open]
        return min([*aside, int(ring.min(initial=_NEVER_NS))])

    def give_up(self, at_mono_ns: int) -> Settled:
        """Return all that is still out as failed, oldest first, and free the slots."""
        self._enter()
        ring = np.arange(self.next_token - self._slots.size, self.next_token)
        inside = ring[self._is_open[ring % self._slots.size]]
        token = np.concatenate([np.array(sorted(self._aside), dtype=np.int64), inside])
        failed, at = np.full(token.size, FAILED_OFFSET), np.full(token.size, at_mono_ns)
        return self.settle(Acks(token, failed, at))

    def _enter(self) -> None:
        """Give the messages that were added their slots."""
        if not self._new:
            return
        new, size = self._new, self._new_messages
        sent_ns = np.repeat(self._new_sent_ns, self._new_sizes)
        self._new, self._new_sizes, self._new_sent_ns, self._new_messages = [], [], [], 0
        first = self.next_token - size
        tokens = np.arange(first, self.next_token)
        while size > self._slots.size or self._has_no_room(tokens):
            self._grow(first)
        at = tokens % self._slots.size
        self._put_aside(tokens[self._is_open[at]] - self._slots.size)
        slots = self._slots
        for name in ("stream", "sequence", "intended_ns"):
            parts = [getattr(one.rows, name)[one.first : one.end] for one in new]
            slots[name][at] = np.concatenate(parts)
        slots["sent_ns"][at] = sent_ns
        self._is_open[at] = True

    def _has_no_room(self, tokens: NDArray[np.int64]) -> bool:
        """Return whether slots for these are open, and too many to put those aside."""
        before = self.count - tokens.size - len(self._aside)
        is_taken = self._is_open[tokens % self._slots.size].any()
        return bool(is_taken) and before > self._slots.size // 2

    def _put_aside(self, tokens: NDArray[np.int64]) -> None:
        slots = tokens % self._slots.size
        for token, slot in zip(tokens.tolist(), slots.tolist(), strict=True):
            self._aside[token] = self._slots[slot].copy()
        self._is_open[slots] = False

    def _grow(self, next_token: int) -> None:
        """Double the ring, whose newest entry is the one before `next_token`."""
        old = self._slots.size
        tokens = np.arange(next_token - old, next_token)
        slots, is_open = np.zeros(old * 2, dtype=_FIELDS), np.zeros(old * 2, dtype=np.bool_)
        slots[tokens % (old * 2)] = self._slots[tokens % old]
        is_open[tokens % (old * 2)] = self._is_open[tokens % old]
        self._slots, self._is_open = slots, is_open
