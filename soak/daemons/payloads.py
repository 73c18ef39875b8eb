"""What messages consist of: a header, and a body of random bytes; laid out before they are sent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from soak.core import header
from soak.core.plan_load import Load
from soak.core.ports import Payload, Rows

POOL_BYTES = 16 * 2**20
MOST_BODIES = 4096
STAMPS = header.SIZE - 8 * len(header.STAMPED)  # where they begin

Ints = NDArray[np.int64]


class Laid(Protocol):
    """Messages that lack only their last stamps."""

    def stamped(
        self, first: int, end: int, delay_ns: Ints, wall_ns: int
    ) -> tuple[Sequence[Payload], Rows | None]:
        """Return the payloads of some of them, and where they lie, with when they are sent."""
        ...


class Payloads(Protocol):
    """Where one client lays out its messages."""

    @property
    def most(self) -> int:
        """Return how many can be laid out at once."""
        ...

    def lay(self, template: NDArray[np.void], sequence: Ints, intended_ns: Ints) -> Laid:
        """Lay out the next messages: `template` holds what is the same in all headers, shape (1,)."""
        ...


def payloads_of(pool: Sequence[bytes], most: int, clients: int = 1) -> list[Payloads]:
    """Return for each client what lays out up to `most` messages, or fewer, with these bodies in turn.

    What one has laid out stays as it is until it lays out more, whatever the others do.
    """
    is_even = len({len(body) for body in pool}) == 1 and len(pool) >= max(most, clients)
    if not is_even:
        return [_Mixed(pool, most)] * clients
    return [_Even(pool[client::clients], most) for client in range(clients)]


class _Even:
    """Bodies of one size as rows of a matrix, into which headers are written; the rows are the payloads."""

    def __init__(self, pool: Sequence[bytes], most: int) -> None:
        self.most = min(most, len(pool))
        blank = bytes(header.SIZE)
        size = header.SIZE + len(pool[0])
        whole = bytearray().join(blank + body for body in pool)
        self.rows = np.frombuffer(whole, dtype=np.uint8).reshape(len(pool), size)
        self.views: list[Payload] = list(self.rows)  # made once: no object a message
        self.stamps = np.ndarray((len(pool), 4), "<i8", whole, STAMPS, (size, 8))
        self._heads = self.rows[:, :STAMPS]
        self._at = 0

    def lay(self, template: NDArray[np.void], sequence: Ints, intended_ns: Ints) -> Laid:
        count = sequence.size
        first = self._at if self._at + count <= len(self.rows) else 0
        self._at = end = first + count
        self._heads[first:end] = template.view(np.uint8)[:STAMPS]
        self.stamps[first:end, 0], self.stamps[first:end, 1] = sequence, intended_ns
        return _EvenLaid(self, first)


class _EvenLaid:
    __slots__ = ("_begin", "_pool")

    def __init__(self, pool: _Even, begin: int) -> None:
        self._pool = pool
        self._begin = begin

    def stamped(
        self, first: int, end: int, delay_ns: Ints, wall_ns: int
    ) -> tuple[Sequence[Payload], Rows | None]:
        pool, first, end = self._pool, self._begin + first, self._begin + end
        stamps = pool.stamps[first:end]
        stamps[:, 2], stamps[:, 3] = delay_ns, wall_ns
        return pool.views[first:end], Rows(pool.rows, first)


class _Mixed:
    """Bodies of several sizes, or of a size so large that there are few."""

    def __init__(self, pool: Sequence[bytes], most: int) -> None:
        self.most = most
        self._turn = len(pool)
        self._bodies = [*pool] * (most // len(pool) + 2)  # what is laid out is one slice of it
        self._at = 0

    def lay(self, template: NDArray[np.void], sequence: Ints, intended_ns: Ints) -> Laid:
        heads = np.repeat(template, sequence.size)
        heads["sequence"], heads["intended_mono_ns"] = sequence, intended_ns
        at = self._at
        self._at = (at + sequence.size) % self._turn
        return _MixedLaid(heads, self._bodies[at : at + sequence.size])


class _MixedLaid:
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
