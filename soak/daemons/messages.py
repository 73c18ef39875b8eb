"""Lays out messages before they are due: partition, key, sequence number, header and body, in numpy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import numpy as np
from numpy.typing import NDArray

from soak.core import header
from soak.core.plan_load import Keys, Load
from soak.core.ports import Outgoing, Partitioner, Topics
from soak.daemons.payloads import Laid, bodies, payloads_of
from soak.daemons.walk import Walk

LARGEST_BLOCK = 256
LEFT_OUT_NS = 10_000_000  # so long a partition whose queue was full is left out

_LOOK_AHEAD = 4  # so many turns for one, where some are passed over

Ints = NDArray[np.int64]


class Block:
    """Messages of one client in the order in which they are due; all but when they are sent is laid out.

    Arrays have shape (n,); the first `sent` of them have gone.
    """

    __slots__ = ("client", "intended_ns", "key", "laid", "lane", "partition", "sent", "sequence")

    def __init__(
        self,
        client: int,
        partition: Sequence[int],
        key: Sequence[bytes] | None,
        lane: Ints,  # client x partitions + partition
        sequence: Ints,
        intended_ns: Ints,
        laid: Laid,
    ) -> None:
        self.client = client
        self.partition = partition
        self.key = key
        self.lane = lane
        self.sequence = sequence
        self.intended_ns = intended_ns
        self.laid = laid
        self.sent = 0

    @property
    def left(self) -> int:
        return self.intended_ns.size - self.sent

    def stamped(self, delay_ns: Ints, wall_ns: int, token: int) -> Outgoing:
        """Return the next messages, one for each delay; their payloads are good until the next call."""
        first, end = self.sent, self.sent + delay_ns.size
        payload, rows = self.laid.stamped(first, end, delay_ns, wall_ns)
        key = None if self.key is None else self.key[first:end]
        return Outgoing(self.partition[first:end], payload, token, key, rows)


class Messages:
    """One process's messages: every client numbers its own, by partition, from 0."""

    def __init__(
        self,
        load: Load,
        topics: Topics,
        instances: Sequence[int],
        inc: int,
        boot: int,
        broker: Partitioner,
        run: int = 0,
    ) -> None:
        rng = np.random.default_rng(instances[0])
        self._total = topics.total
        self._templates = [header.headers(1, one, inc, boot, run) for one in instances]
        self._next = np.zeros(len(instances) * topics.total, dtype=np.int64)
        self._payloads = payloads_of(bodies(load, rng), LARGEST_BLOCK, len(instances))
        self._walks = [Walk(topics.total, instance) for instance in instances]
        self._left_out = [_LeftOut(topics.total) for _ in instances]
        self._keyed: list[_Keyed] = []
        if load.keys.kind != "none":
            known = _Known(load.keys, topics, broker)
            self._keyed = [
                _Keyed(known, rng, one / len(instances)) for one in range(len(instances))
            ]

    @property
    def next_sequences(self) -> Ints:
        """Return the next sequence number of each lane, shape (clients x partitions,)."""
        return self._next

    def block(self, client: int, due_ns: Ints, now_ns: int) -> Block:
        """Lay out what is due before the client's partition changes; at least one, at most LARGEST_BLOCK.

        Partitions that were left out have no part in it, unless there are no others. `due_ns`, shape (n,),
        says when its next messages are due. Its next block is laid out when this one is sent, or has been
        dropped.
        """
        payloads, walk = self._payloads[client], self._walks[client]
        left_out = self._left_out[client].at(now_ns)
        due_ns = due_ns[: payloads.most]
        count = max(1, int(np.searchsorted(due_ns, walk.until_ns(now_ns))))
        first = client * self._total
        key: Sequence[bytes] | None = None
        partition: Sequence[int]
        if not self._keyed:
            at = walk.partition(now_ns)
            for _ in left_out.until_ns:
                at = walk.skip() if left_out.mask[at] else at
            begin = int(self._next[first + at])
            sequence = np.arange(begin, begin + count)
            self._next[first + at] = begin + count
            partition, lane = [at] * count, np.full(count, first + at)
        else:
            at_many, key = self._keyed[client].choose(
                count, left_out.mask if left_out.until_ns else None
            )
            count = at_many.size
            partition, lane = at_many.tolist(), first + at_many
            sequence = self._number(lane)
        due_ns = due_ns[:count]
        laid = payloads.lay(self._templates[client], sequence, due_ns)
        return Block(client, partition, key, lane, sequence, due_ns, laid)

    def drop(self, block: Block) -> None:
        """Give the numbers and the turn of what is left of a client's newest block to its next one."""
        np.subtract.at(self._next, block.lane[block.sent :], 1)
        if self._keyed:
            self._keyed[block.client].give_back(block.left)

    def leave_out(self, client: int, partition: int, now_ns: int) -> bool:
        """Send nothing to a partition whose queue is full for a while; False where that leaves none."""
        left_out = self._left_out[client]
        is_new = left_out.add(partition, now_ns + LEFT_OUT_NS)
        return is_new and len(left_out.until_ns) < self._total

    def _number(self, lane: Ints) -> Ints:
        """Return the next sequence number of each message in its lane, in order."""
        order = np.argsort(lane, kind="stable")
        lanes, length = np.unique(lane, return_counts=True)
        starts = np.repeat(np.cumsum(length) - length, length)
        rank = np.empty(lane.size, dtype=np.int64)
        rank[order] = np.arange(lane.size) - starts
        sequence: Ints = self._next[lane] + rank
        self._next[lanes] += length
        return sequence


class _LeftOut:
    """Partitions that one client sends nothing to, and until when; `mask` has all, shape (partitions,)."""

    def __init__(self, partitions: int) -> None:
        self.until_ns: dict[int, int] = {}
        self.mask = np.zeros(partitions, dtype=np.bool_)

    def at(self, now_ns: int) -> Self:
        """Let those in again whose time is over."""
        for partition in [one for one, until_ns in self.until_ns.items() if until_ns <= now_ns]:
            del self.until_ns[partition]
            self.mask[partition] = False
        return self

    def add(self, partition: int, until_ns: int) -> bool:
        """Return whether it was not there yet."""
        is_new = partition not in self.until_ns
        self.until_ns[partition], self.mask[partition] = until_ns, True
        return is_new


class _Known:
    """The keys and how often each comes; the partition of each is known from the start."""

    def __init__(self, keys: Keys, topics: Topics, broker: Partitioner) -> None:
        self.kind = keys.kind
        self.names = [f"key-{number}".encode() for number in range(keys.count)]
        self.partition = np.array(
            [broker.partition_of(name, topics.partitions) for name in self.names], dtype=np.int64
        )
        weights = np.arange(1, keys.count + 1, dtype=np.float64) ** -keys.exponent
        self.cumulated = np.cumsum(weights) / weights.sum()
        self.topics = topics


class _Keyed:
    """Draws the keys of one client, which begins this share of the way through them."""

    def __init__(self, known: _Known, rng: np.random.Generator, begin: float) -> None:
        self._known = known
        self._rng = rng
        self._next = int(begin * len(known.names)) * len(known.topics.names)
        self._turn = np.zeros(0, dtype=np.int64)  # of what was chosen last

    def choose(self, count: int, is_left_out: NDArray[np.bool_] | None) -> tuple[Ints, list[bytes]]:
        """Return running partition numbers and keys, at least one of each; topics take turns.

        Turns of partitions that are left out, of all, are passed over, as far as others come soon.
        """
        known, names, topics = self._known, self._known.names, self._known.topics
        turn = np.arange(
            self._next, self._next + (count if is_left_out is None else _LOOK_AHEAD * count)
        )
        if known.kind == "round_robin":
            # The same key goes to every topic before the next one comes.
            number = turn // len(topics.names) % len(names)
        elif known.kind == "random":
            number = self._rng.integers(len(names), size=turn.size)
        else:
            number = np.searchsorted(known.cumulated, self._rng.random(turn.size), side="right")
            number = np.minimum(number, len(names) - 1)
        partition = turn % len(topics.names) * topics.partitions + known.partition[number]
        if is_left_out is not None:
            is_open = ~is_left_out[partition]
            kept = np.flatnonzero(is_open if is_open.any() else ~is_open)[:count]
            turn, number, partition = turn[kept], number[kept], partition[kept]
        self._turn = turn
        self._next = int(turn[-1]) + 1
        return partition, [names[at] for at in number.tolist()]

    def give_back(self, count: int) -> None:
        """Have the last turns again: what only blocks had that were dropped would never be sent."""
        if count:
            self._next = int(self._turn[-count])
