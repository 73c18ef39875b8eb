"""Messages before they are sent: partition choice, keys, sequence numbers, headers and bodies, laid out in numpy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, Self

import numpy as np
from numpy.typing import NDArray

from soak.core import header
from soak.core.plan.load import Keys, Load
from soak.core.ports import Outgoing, Partitioner, Payload, Rows, Topics

STICKY_NS = 10_000_000  # so long one partition is kept, as by librdkafka itself: batches stay whole


class PartitionChoice:
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


# --- What messages consist of: a header, and a body of random bytes; laid out before they are sent.

POOL_BYTES = 16 * 2**20
MAX_BODIES = 4096
STAMPS_OFFSET = header.SIZE - 8 * len(header.STAMPED)  # where they begin

Ints = NDArray[np.int64]


class PreparedPayloads(Protocol):
    """Messages that lack only their last stamps."""

    def stamped(
        self, first: int, end: int, delay_ns: Ints, wall_ns: int
    ) -> tuple[Sequence[Payload], Rows | None]:
        """Return the payloads of some of them, and where they lie, with when they are sent."""
        ...


class PayloadWriter(Protocol):
    """Where one client lays out its messages."""

    @property
    def most(self) -> int:
        """Return how many can be laid out at once."""
        ...

    def lay(
        self, template: NDArray[np.void], sequence: Ints, intended_ns: Ints
    ) -> PreparedPayloads:
        """Lay out the next messages: `template` holds what is the same in all headers, shape (1,)."""
        ...


def payload_writers(pool: Sequence[bytes], most: int, clients: int = 1) -> list[PayloadWriter]:
    """Return for each client what lays out up to `most` messages, or fewer, with these bodies in turn.

    What one has laid out stays as it is until it lays out more, whatever the others do.
    """
    is_even = len({len(body) for body in pool}) == 1 and len(pool) >= max(most, clients)
    if not is_even:
        return [_MixedSizes(pool, most)] * clients
    return [_EqualSizes(pool[client::clients], most) for client in range(clients)]


class _EqualSizes:
    """Bodies of one size as rows of a matrix, into which headers are written; the rows are the payloads."""

    def __init__(self, pool: Sequence[bytes], most: int) -> None:
        self.most = min(most, len(pool))
        blank = bytes(header.SIZE)
        size = header.SIZE + len(pool[0])
        whole = bytearray().join(blank + body for body in pool)
        self.rows = np.frombuffer(whole, dtype=np.uint8).reshape(len(pool), size)
        self.views: list[Payload] = list(self.rows)  # made once: no object a message
        self.stamps = np.ndarray((len(pool), 4), "<i8", whole, STAMPS_OFFSET, (size, 8))
        self._heads = self.rows[:, :STAMPS_OFFSET]
        self._at = 0

    def lay(
        self, template: NDArray[np.void], sequence: Ints, intended_ns: Ints
    ) -> PreparedPayloads:
        count = sequence.size
        first = self._at if self._at + count <= len(self.rows) else 0
        self._at = end = first + count
        self._heads[first:end] = template.view(np.uint8)[:STAMPS_OFFSET]
        self.stamps[first:end, 0], self.stamps[first:end, 1] = sequence, intended_ns
        return _EqualSizesPrepared(self, first)


class _EqualSizesPrepared:
    __slots__ = ("_begin", "_pool")

    def __init__(self, pool: _EqualSizes, begin: int) -> None:
        self._pool = pool
        self._begin = begin

    def stamped(
        self, first: int, end: int, delay_ns: Ints, wall_ns: int
    ) -> tuple[Sequence[Payload], Rows | None]:
        pool, first, end = self._pool, self._begin + first, self._begin + end
        stamps = pool.stamps[first:end]
        stamps[:, 2], stamps[:, 3] = delay_ns, wall_ns
        return pool.views[first:end], Rows(pool.rows, first)


class _MixedSizes:
    """Bodies of several sizes, or of a size so large that there are few."""

    def __init__(self, pool: Sequence[bytes], most: int) -> None:
        self.most = most
        self._turn = len(pool)
        self._bodies = [*pool] * (most // len(pool) + 2)  # what is laid out is one slice of it
        self._at = 0

    def lay(
        self, template: NDArray[np.void], sequence: Ints, intended_ns: Ints
    ) -> PreparedPayloads:
        heads = np.repeat(template, sequence.size)
        heads["sequence"], heads["intended_mono_ns"] = sequence, intended_ns
        at = self._at
        self._at = (at + sequence.size) % self._turn
        return _MixedSizesPrepared(heads, self._bodies[at : at + sequence.size])


class _MixedSizesPrepared:
    __slots__ = ("_bodies", "_heads")

    def __init__(self, heads: NDArray[np.void], bodies_: Sequence[bytes]) -> None:
        self._heads = heads
        self._bodies = bodies_

    def stamped(
        self, first: int, end: int, delay_ns: Ints, wall_ns: int
    ) -> tuple[Sequence[Payload], Rows | None]:
        heads, size = self._heads[first:end], header.SIZE
        heads["delay_ns"], heads["sent_wall_ns"] = delay_ns, wall_ns
        raw = heads.tobytes()
        chosen = self._bodies[first:end]
        return [raw[i * size : i * size + size] + body for i, body in enumerate(chosen)], None


def message_bodies(load: Load, rng: np.random.Generator) -> list[bytes]:
    """Return what follows the header, to be used in turn: sizes by their shares, in random order.

    Random bytes, but for the compressible share of the whole message, so that a client's compression
    finds what the plan says and no repetition between messages of a batch.
    """
    sizes = np.array([size for size, _ in load.sizes])
    shares = np.array([share for _, share in load.sizes]) / sum(s for _, s in load.sizes)
    count = int(np.clip(POOL_BYTES / load.mean_size, len(sizes), MAX_BODIES))
    # The nearest whole numbers of each size, largest remainders first.
    exact = shares * count
    whole = np.floor(exact).astype(np.int64)
    for at in np.argsort(whole - exact)[: count - int(whole.sum())]:
        whole[at] += 1
    chosen = rng.permutation(np.repeat(sizes, np.maximum(whole, 1)))
    made = []
    for size in chosen.tolist():
        left = size - header.SIZE
        same = min(left, round(size * load.compressible))
        made.append(rng.bytes(left - same) + bytes(same))
    return made


# --- Lays out messages before they are due: partition, key, sequence number, header and body, in numpy.

MAX_BLOCK_MESSAGES = 256
PARTITION_PAUSE_NS = 10_000_000  # so long a partition whose queue was full is left out

_CANDIDATES_PER_MESSAGE = 4  # so many turns for one, where some are passed over


class Block:
    """Messages of one client in the order in which they are due; all but when they are sent is laid out.

    Arrays have shape (n,); the first `sent` of them have gone.
    """

    __slots__ = ("client", "intended_ns", "key", "laid", "partition", "sent", "sequence", "stream")

    def __init__(
        self,
        client: int,
        partition: Sequence[int],
        key: Sequence[bytes] | None,
        stream: Ints,  # client x partitions + partition
        sequence: Ints,
        intended_ns: Ints,
        laid: PreparedPayloads,
    ) -> None:
        self.client = client
        self.partition = partition
        self.key = key
        self.stream = stream
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
        epoch: int,
        boot: int,
        broker: Partitioner,
        run: int = 0,
    ) -> None:
        rng = np.random.default_rng(instances[0])
        self._total = topics.total
        self._templates = [header.headers(1, one, epoch, boot, run) for one in instances]
        self._next = np.zeros(len(instances) * topics.total, dtype=np.int64)
        self._payloads = payload_writers(
            message_bodies(load, rng), MAX_BLOCK_MESSAGES, len(instances)
        )
        self._walks = [PartitionChoice(topics.total, instance) for instance in instances]
        self._left_out = [_PausedPartitions(topics.total) for _ in instances]
        self._keyed: list[_KeyChoice] = []
        if load.keys.kind != "none":
            known = _KeySet(load.keys, topics, broker)
            self._keyed = [
                _KeyChoice(known, rng, one / len(instances)) for one in range(len(instances))
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
            partition, stream = [at] * count, np.full(count, first + at)
        else:
            at_many, key = self._keyed[client].choose(
                count, left_out.mask if left_out.until_ns else None
            )
            count = at_many.size
            partition, stream = at_many.tolist(), first + at_many
            sequence = self._number(stream)
        due_ns = due_ns[:count]
        laid = payloads.lay(self._templates[client], sequence, due_ns)
        return Block(client, partition, key, stream, sequence, due_ns, laid)

    def drop(self, block: Block) -> None:
        """Give the numbers and the turn of what is left of a client's newest block to its next one."""
        np.subtract.at(self._next, block.stream[block.sent :], 1)
        if self._keyed:
            self._keyed[block.client].give_back(block.left)

    def leave_out(self, client: int, partition: int, now_ns: int) -> bool:
        """Send nothing to a partition whose queue is full for a while; False where that leaves none."""
        left_out = self._left_out[client]
        is_new = left_out.add(partition, now_ns + PARTITION_PAUSE_NS)
        return is_new and len(left_out.until_ns) < self._total

    def _number(self, stream: Ints) -> Ints:
        """Return the next sequence number of each message in its lane, in order."""
        order = np.argsort(stream, kind="stable")
        streams, length = np.unique(stream, return_counts=True)
        starts = np.repeat(np.cumsum(length) - length, length)
        rank = np.empty(stream.size, dtype=np.int64)
        rank[order] = np.arange(stream.size) - starts
        sequence: Ints = self._next[stream] + rank
        self._next[streams] += length
        return sequence


class _PausedPartitions:
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


class _KeySet:
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


class _KeyChoice:
    """Draws the keys of one client, which begins this share of the way through them."""

    def __init__(self, known: _KeySet, rng: np.random.Generator, begin: float) -> None:
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
            self._next,
            self._next + (count if is_left_out is None else _CANDIDATES_PER_MESSAGE * count),
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
