"""Messages before they are sent: partitions, keys, sequence numbers and payloads, laid out in numpy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, Self

import numpy as np
from numpy.typing import NDArray

from soak.core import header
from soak.core.plan.load import Keys, Load
from soak.core.ports import Outgoing, Partitioner, Payload, Rows, Topics

MAX_BLOCK_MESSAGES = 256
STICKY_NS = (
    10_000_000  # a partition is kept for so long, as librdkafka does, so that batches fill up
)
PARTITION_PAUSE_NS = (
    10_000_000  # nothing is sent to a partition for so long after its queue was full
)
POOL_BYTES = 16 * 2**20
MAX_BODIES = 4096
STAMPS_OFFSET = header.SIZE - 8 * len(header.STAMPED)  # of the stamps in a header, in bytes

_CANDIDATES_PER_MESSAGE = 4  # keys that are drawn for one message while partitions are paused

Ints = NDArray[np.int64]


class Block:
    """Messages of one client in order of their due times, complete but for the time of the send.

    Arrays have shape (n,); the first `sent` messages have been sent.
    """

    __slots__ = (
        "client",
        "intended_ns",
        "key",
        "partition",
        "payloads",
        "sent",
        "sequence",
        "stream",
    )

    def __init__(
        self,
        client: int,
        partition: Sequence[int],
        key: Sequence[bytes] | None,
        stream: Ints,  # client x partitions + partition
        sequence: Ints,
        intended_ns: Ints,
        payloads: PreparedPayloads,
    ) -> None:
        self.client = client
        self.partition = partition
        self.key = key
        self.stream = stream
        self.sequence = sequence
        self.intended_ns = intended_ns
        self.payloads = payloads
        self.sent = 0

    @property
    def remaining(self) -> int:
        return self.intended_ns.size - self.sent

    def stamped(self, delay_ns: Ints, wall_ns: int, token: int) -> Outgoing:
        """Return the next messages, one for each delay; their payloads are valid until the next call."""
        first, end = self.sent, self.sent + delay_ns.size
        payload, rows = self.payloads.stamped(first, end, delay_ns, wall_ns)
        key = None if self.key is None else self.key[first:end]
        return Outgoing(self.partition[first:end], payload, token, key, rows)


class Messages:
    """The messages of one process: every client numbers its own, by partition, from 0."""

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
        self._choices = [PartitionChoice(topics.total, instance) for instance in instances]
        self._paused = [_PausedPartitions(topics.total) for _ in instances]
        self._keyed: list[_KeyChoice] = []
        if load.keys.kind != "none":
            keys = _KeySet(load.keys, topics, broker)
            self._keyed = [
                _KeyChoice(keys, rng, one / len(instances)) for one in range(len(instances))
            ]

    @property
    def next_sequences(self) -> Ints:
        """Return the next sequence number of each producer stream, shape (clients x partitions,)."""
        return self._next

    def block(self, client: int, due_ns: Ints, now_ns: int) -> Block:
        """Lay out the messages that are due before the client changes its partition, 1 to MAX_BLOCK_MESSAGES.

        `due_ns`, shape (n,), holds the due times of the client's next messages. Paused partitions get none,
        unless all are paused. Call it again when the block is sent or dropped.
        """
        payloads, choice = self._payloads[client], self._choices[client]
        paused = self._paused[client].at(now_ns)
        due_ns = due_ns[: payloads.max_messages]
        count = max(1, int(np.searchsorted(due_ns, choice.until_ns(now_ns))))
        first = client * self._total
        key: Sequence[bytes] | None = None
        partition: Sequence[int]
        if not self._keyed:
            at = choice.partition(now_ns)
            for _ in paused.until_ns:
                at = choice.skip() if paused.mask[at] else at
            begin = int(self._next[first + at])
            sequence = np.arange(begin, begin + count)
            self._next[first + at] = begin + count
            partition, stream = [at] * count, np.full(count, first + at)
        else:
            at_many, key = self._keyed[client].choose(
                count, paused.mask if paused.until_ns else None
            )
            count = at_many.size
            partition, stream = at_many.tolist(), first + at_many
            sequence = self._number(stream)
        due_ns = due_ns[:count]
        prepared = payloads.prepare(self._templates[client], sequence, due_ns)
        return Block(client, partition, key, stream, sequence, due_ns, prepared)

    def drop(self, block: Block) -> None:
        """Give the sequence numbers and keys of unsent messages back; `block` is the client's newest."""
        np.subtract.at(self._next, block.stream[block.sent :], 1)
        if self._keyed:
            self._keyed[block.client].give_back(block.remaining)

    def pause_partition(self, client: int, partition: int, now_ns: int) -> bool:
        """Send nothing to a partition for a while, because its queue is full.

        Returns False if it was paused already, or no partition is open any more.
        """
        paused = self._paused[client]
        is_new = paused.add(partition, now_ns + PARTITION_PAUSE_NS)
        return is_new and len(paused.until_ns) < self._total

    def _number(self, stream: Ints) -> Ints:
        """Return the next sequence number of each message in its stream, in order."""
        order = np.argsort(stream, kind="stable")
        streams, length = np.unique(stream, return_counts=True)
        starts = np.repeat(np.cumsum(length) - length, length)
        rank = np.empty(stream.size, dtype=np.int64)
        rank[order] = np.arange(stream.size) - starts
        sequence: Ints = self._next[stream] + rank
        self._next[streams] += length
        return sequence


class PartitionChoice:
    """Chooses partitions for one client without keys: a new random order each round, 10 ms a partition.

    Slots in which nothing is sent use up no partition. Each client has its own order and begins at another
    moment. With one order for all, clients would keep their distance for a whole run: two of them would
    always or never send to the same broker, because leaders are assigned in turn.
    """

    def __init__(self, partitions: int, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self._order = np.arange(partitions)
        self._at = partitions  # position in the order; at its end a new one is drawn
        self._begins_ns = int(self._rng.integers(STICKY_NS))
        self._slot: int | None = None
        self._partition = 0

    def until_ns(self, now_ns: int) -> int:
        """Return when the slot that holds an instant ends."""
        return now_ns - (now_ns - self._begins_ns) % STICKY_NS + STICKY_NS

    def partition(self, now_ns: int) -> int:
        """Return the partition at an instant, which must not go back."""
        slot = (now_ns - self._begins_ns) // STICKY_NS
        if slot != self._slot:
            self._slot = slot
            self._step()
        return self._partition

    def skip(self) -> int:
        """Replace the partition of the current slot by the next one, and return it."""
        self._step()
        return self._partition

    def _step(self) -> None:
        if self._at == self._order.size:
            self._rng.shuffle(self._order)
            self._at = 0
        self._partition = int(self._order[self._at])
        self._at += 1


class _PausedPartitions:
    """The paused partitions of one client and the end of each pause; `mask` has shape (partitions,)."""

    def __init__(self, partitions: int) -> None:
        self.until_ns: dict[int, int] = {}
        self.mask = np.zeros(partitions, dtype=np.bool_)

    def at(self, now_ns: int) -> Self:
        """Reopen the partitions whose pause is over."""
        for partition in [one for one, until_ns in self.until_ns.items() if until_ns <= now_ns]:
            del self.until_ns[partition]
            self.mask[partition] = False
        return self

    def add(self, partition: int, until_ns: int) -> bool:
        """Return whether the partition was open before."""
        is_new = partition not in self.until_ns
        self.until_ns[partition], self.mask[partition] = until_ns, True
        return is_new


class _KeySet:
    """All keys, their partitions and their cumulated shares."""

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
    """Chooses the keys of one client, which begins at the share `begin` of the key set."""

    def __init__(self, keys: _KeySet, rng: np.random.Generator, begin: float) -> None:
        self._keys = keys
        self._rng = rng
        self._next = int(begin * len(keys.names)) * len(keys.topics.names)
        self._turn = np.zeros(0, dtype=np.int64)  # of the last choice

    def choose(self, count: int, is_paused: NDArray[np.bool_] | None) -> tuple[Ints, list[bytes]]:
        """Return running partition numbers and keys, at least one of each; topics take turns.

        Turns of paused partitions are passed over if an open one follows soon.
        """
        keys, names, topics = self._keys, self._keys.names, self._keys.topics
        turn = np.arange(
            self._next,
            self._next + (count if is_paused is None else _CANDIDATES_PER_MESSAGE * count),
        )
        if keys.kind == "round_robin":
            # A key goes to every topic before the next key does.
            number = turn // len(topics.names) % len(names)
        elif keys.kind == "random":
            number = self._rng.integers(len(names), size=turn.size)
        else:
            number = np.searchsorted(keys.cumulated, self._rng.random(turn.size), side="right")
            number = np.minimum(number, len(names) - 1)
        partition = turn % len(topics.names) * topics.partitions + keys.partition[number]
        if is_paused is not None:
            is_open = ~is_paused[partition]
            kept = np.flatnonzero(is_open if is_open.any() else ~is_open)[:count]
            turn, number, partition = turn[kept], number[kept], partition[kept]
        self._turn = turn
        self._next = int(turn[-1]) + 1
        return partition, [names[at] for at in number.tolist()]

    def give_back(self, count: int) -> None:
        """Repeat the last turns: a key that appeared only in dropped blocks would never be sent."""
        if count:
            self._next = int(self._turn[-count])


class PreparedPayloads(Protocol):
    """Payloads that lack only the stamps of their send."""

    def stamped(
        self, first: int, end: int, delay_ns: Ints, wall_ns: int
    ) -> tuple[Sequence[Payload], Rows | None]:
        """Stamp the messages `first` to `end`; return their payloads, and where they lie in one array."""
        ...


class PayloadWriter(Protocol):
    """Prepares the payloads of one client."""

    @property
    def max_messages(self) -> int:
        """Return how many can be prepared at once."""
        ...

    def prepare(
        self, template: NDArray[np.void], sequence: Ints, intended_ns: Ints
    ) -> PreparedPayloads:
        """Prepare the next payloads; `template`, shape (1,), holds the fields that all headers share."""
        ...


def payload_writers(
    pool: Sequence[bytes], max_messages: int, clients: int = 1
) -> list[PayloadWriter]:
    """Return a writer for each client, which uses these bodies in turn.

    What a writer has prepared is valid until it prepares more, independently of the other writers.
    """
    is_even = len({len(body) for body in pool}) == 1 and len(pool) >= max(max_messages, clients)
    if not is_even:
        return [_MixedSizes(pool, max_messages)] * clients
    return [_EqualSizes(pool[client::clients], max_messages) for client in range(clients)]


class _EqualSizes:
    """Bodies of one size as rows of a matrix, into which headers are written; the rows are the payloads."""

    def __init__(self, pool: Sequence[bytes], max_messages: int) -> None:
        self.max_messages = min(max_messages, len(pool))
        blank = bytes(header.SIZE)
        size = header.SIZE + len(pool[0])
        whole = bytearray().join(blank + body for body in pool)
        self.rows = np.frombuffer(whole, dtype=np.uint8).reshape(len(pool), size)
        self.views: list[Payload] = list(self.rows)  # made once: no object a message
        self.stamps = np.ndarray((len(pool), 4), "<i8", whole, STAMPS_OFFSET, (size, 8))
        self._heads = self.rows[:, :STAMPS_OFFSET]
        self._at = 0

    def prepare(
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

    def __init__(self, pool: Sequence[bytes], max_messages: int) -> None:
        self.max_messages = max_messages
        self._turn = len(pool)
        self._bodies = [*pool] * (max_messages // len(pool) + 2)  # any block is one slice of it
        self._at = 0

    def prepare(
        self, template: NDArray[np.void], sequence: Ints, intended_ns: Ints
    ) -> PreparedPayloads:
        heads = np.repeat(template, sequence.size)
        heads["sequence"], heads["intended_mono_ns"] = sequence, intended_ns
        at = self._at
        self._at = (at + sequence.size) % self._turn
        return _MixedSizesPrepared(heads, self._bodies[at : at + sequence.size])


class _MixedSizesPrepared:
    __slots__ = ("_bodies", "_heads")

    def __init__(self, heads: NDArray[np.void], bodies: Sequence[bytes]) -> None:
        self._heads = heads
        self._bodies = bodies

    def stamped(
        self, first: int, end: int, delay_ns: Ints, wall_ns: int
    ) -> tuple[Sequence[Payload], Rows | None]:
        heads, size = self._heads[first:end], header.SIZE
        heads["delay_ns"], heads["sent_wall_ns"] = delay_ns, wall_ns
        raw = heads.tobytes()
        chosen = self._bodies[first:end]
        return [raw[i * size : i * size + size] + body for i, body in enumerate(chosen)], None


def message_bodies(load: Load, rng: np.random.Generator) -> list[bytes]:
    """Return message bodies to be used in turn: sizes by their shares, in random order.

    The compressible share of each message is zeros, the remainder random bytes, so that compression achieves
    the ratio of the plan and finds no repetition between messages of a batch.
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
        length = size - header.SIZE
        zeros = min(length, round(size * load.compressible))
        made.append(rng.bytes(length - zeros) + bytes(zeros))
    return made
