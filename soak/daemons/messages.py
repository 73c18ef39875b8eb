"""Builds messages by the chunk: partition, key, sequence number, header and body, in numpy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from soak.core import header
from soak.core.plan_load import Keys, Load
from soak.core.ports import Partitioner, Payload, Rows, Topics

STICKY_NS = 10_000_000  # without keys, one partition for this long: batches stay whole
LARGEST_CHUNK = 256
POOL_BYTES = 16 * 2**20
MOST_BODIES = 4096
STAMPS = header.SIZE - 8 * len(header.STAMPED)  # where they begin

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Chunk:
    """Messages of one client that share a send stamp; sequences and arrays of one length n."""

    partition: Sequence[int]
    key: Sequence[bytes] | None
    payload: Sequence[Payload]  # good until the next chunk of the same process is made
    lane: Ints  # client x partitions + partition
    sequence: Ints
    delay_ns: Ints
    rows: Rows | None


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
        self._lane = np.full(LARGEST_CHUNK, -1, dtype=np.int64)
        self._payloads = _payloads(bodies(load, rng))
        self._keyed = _Keyed(load.keys, topics, broker, rng) if load.keys.kind != "none" else None
        # Processes and clients that change partition at the same time must not all choose the same.
        self._shift = [instance % topics.total for instance in instances]

    @property
    def next_sequences(self) -> Ints:
        """Return the next sequence number of each lane, shape (clients x partitions,)."""
        return self._next

    def make(self, client: int, intended_ns: Ints, sent_ns: int, wall_ns: int) -> Chunk:
        """Return a message for each intended time, at most LARGEST_CHUNK; `take_back` what was not sent."""
        count = intended_ns.size
        first = client * self._total
        key: Sequence[bytes] | None = None
        partition: Sequence[int]
        if self._keyed is None:
            at = (sent_ns // STICKY_NS + self._shift[client]) % self._total
            begin = int(self._next[first + at])
            sequence = np.arange(begin, begin + count)
            self._next[first + at] = begin + count
            partition, lane = [at] * count, self._all_in(first + at)[:count]
        else:
            at_many, key = self._keyed.choose(count)
            partition, lane = at_many.tolist(), first + at_many
            sequence = self._number(lane)
        delay_ns = sent_ns - intended_ns
        stamps = (sequence, intended_ns, delay_ns, wall_ns)
        payload, rows = self._payloads.under(self._templates[client], count, stamps)
        return Chunk(partition, key, payload, lane, sequence, delay_ns, rows)

    def take_back(self, chunk: Chunk, taken: int) -> None:
        """Number anew what the client did not take: all from message `taken` of the chunk on."""
        np.subtract.at(self._next, chunk.lane[taken:], 1)

    def _all_in(self, lane: int) -> Ints:
        """Return a lane for each message of the largest chunk; one serves for as long as a lane does."""
        if self._lane[0] != lane:
            self._lane = np.full(LARGEST_CHUNK, lane, dtype=np.int64)
        return self._lane

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


_Stamps = tuple[Ints, Ints, Ints, int]
"""The last four fields of the headers: sequence, intended time, delay, wall clock at the send."""


class _Payloads(Protocol):
    def under(
        self, template: NDArray[np.void], count: int, stamps: _Stamps
    ) -> tuple[Sequence[Payload], Rows | None]:
        """Return payloads, each a header and the next body in turn; and where they lie."""
        ...


class _Even:
    """Bodies of one size as rows of a matrix, into which headers are written; the rows are the payloads."""

    def __init__(self, pool: Sequence[bytes]) -> None:
        blank = bytes(header.SIZE)
        self._size = header.SIZE + len(pool[0])
        whole = bytearray().join(blank + body for body in pool)
        self._rows = np.frombuffer(whole, dtype=np.uint8).reshape(len(pool), self._size)
        self._views: list[Payload] = list(self._rows)  # made once: no object a message
        self._stamps = np.ndarray((len(pool), 4), "<i8", whole, STAMPS, (self._size, 8))
        self._heads = self._rows[:, :STAMPS]
        self._at = 0

    def under(
        self, template: NDArray[np.void], count: int, stamps: _Stamps
    ) -> tuple[Sequence[Payload], Rows | None]:
        first = self._at if self._at + count <= len(self._rows) else 0
        self._at = end = first + count
        self._heads[first:end] = template.view(np.uint8)[:STAMPS]
        rows = self._stamps[first:end]
        rows[:, 0], rows[:, 1], rows[:, 2], rows[:, 3] = stamps
        return self._views[first:end], Rows(self._rows, first)


class _Mixed:
    """Bodies of several sizes, or of a size so large that there are few."""

    def __init__(self, pool: Sequence[bytes]) -> None:
        self._turn = len(pool)
        self._bodies = [*pool] * (LARGEST_CHUNK // len(pool) + 2)  # a chunk is one slice of it
        self._at = 0

    def under(
        self, template: NDArray[np.void], count: int, stamps: _Stamps
    ) -> tuple[Sequence[Payload], Rows | None]:
        block = np.repeat(template, count)
        for name, value in zip(header.STAMPED, stamps, strict=True):
            block[name] = value
        raw, size, at = block.tobytes(), header.SIZE, self._at
        self._at = (at + count) % self._turn
        chosen = self._bodies[at : at + count]
        return [raw[i * size : i * size + size] + body for i, body in enumerate(chosen)], None


def _payloads(pool: Sequence[bytes]) -> _Payloads:
    is_even = len({len(body) for body in pool}) == 1 and len(pool) >= LARGEST_CHUNK
    return _Even(pool) if is_even else _Mixed(pool)


class _Keyed:
    """Draws keys; the partition of each is known from the start."""

    def __init__(
        self, keys: Keys, topics: Topics, broker: Partitioner, rng: np.random.Generator
    ) -> None:
        self._kind = keys.kind
        self._rng = rng
        self._names = [f"key-{number}".encode() for number in range(keys.count)]
        self._partition = np.array(
            [broker.partition_of(name, topics.partitions) for name in self._names], dtype=np.int64
        )
        weights = np.arange(1, keys.count + 1, dtype=np.float64) ** -keys.exponent
        self._cumulated = np.cumsum(weights) / weights.sum()
        self._topics = topics
        self._next = 0

    def choose(self, count: int) -> tuple[Ints, list[bytes]]:
        """Return running partition numbers and keys; topics take turns."""
        turn = np.arange(self._next, self._next + count)
        self._next += count
        if self._kind == "round_robin":
            # The same key goes to every topic before the next one comes.
            number = turn // len(self._topics.names) % len(self._names)
        elif self._kind == "random":
            number = self._rng.integers(len(self._names), size=count)
        else:
            number = np.searchsorted(self._cumulated, self._rng.random(count), side="right")
            number = np.minimum(number, len(self._names) - 1)
        topic = turn % len(self._topics.names)
        names = self._names
        return topic * self._topics.partitions + self._partition[number], [
            names[at] for at in number.tolist()
        ]


def bodies(load: Load, rng: np.random.Generator) -> list[bytes]:
    """Return what follows the header, to be used in turn: sizes by their shares, in random order.

    Random bytes, but for the compressible share of the whole message, so that a client's compression
    finds what the plan says and no repetition between messages of a batch.
    """
    sizes = np.array([size for size, _ in load.sizes])
    shares = np.array([share for _, share in load.sizes]) / sum(s for _, s in load.sizes)
    count = int(np.clip(POOL_BYTES / load.mean_size, len(sizes), MOST_BODIES))
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
