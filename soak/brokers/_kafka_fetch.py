"""How a Kafka consumer takes what has come: message by message through the binding, or by batch calls."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import confluent_kafka
import numpy as np
from confluent_kafka import KafkaError
from numpy.typing import NDArray

from soak.brokers._librdkafka import MESSAGE, Library, gathered
from soak.core import header
from soak.core.ports import Clock, Heads, Topics
from soak.core.units import SECOND_NS

_HEAD = np.dtype((np.void, header.SIZE))
_SERVE_NS = SECOND_NS // 10
_COLLECT_NS = SECOND_NS // 5


@dataclass(frozen=True, slots=True)
class Taken:
    """Messages in order of arrival, without those that are errors; arrays of shape (n,)."""

    heads: Heads
    topic: Sequence[str]  # of each message; empty where there is but one topic
    partition: NDArray[np.int64]  # as its topic numbers it
    offset: NDArray[np.int64]
    errors: Sequence[KafkaError]
    came_mono_ns: NDArray[np.int64] | None = None  # None: just now


class Fetch(Protocol):
    def take(self, limit: int, timeout_seconds: float) -> Taken:
        """Wait for the first message, then take what else comes, up to `limit`."""
        ...

    def close(self) -> None:
        """Let go of the client, which is closed after it."""
        ...


class ByMessage:
    """Through the binding: an object a message."""

    def __init__(self, client: confluent_kafka.Consumer, topics: Topics) -> None:
        self._client = client
        self._is_one_topic = len(topics.names) == 1

    def take(self, limit: int, timeout_seconds: float) -> Taken:
        first = self._client.poll(timeout_seconds)
        found = [] if first is None else [first, *self._client.consume(limit - 1, 0)]
        good = [message for message in found if message.error() is None]
        errors = [message.error() for message in found] if len(good) < len(found) else []
        return Taken(
            heads=[message.value() or b"" for message in good],
            topic=[] if self._is_one_topic else [message.topic() or "" for message in good],
            partition=np.array([message.partition() for message in good], dtype=np.int64),
            offset=np.array([message.offset() for message in good], dtype=np.int64),
            errors=[error for error in errors if error is not None],
        )

    def close(self) -> None:
        """Nothing is held beside the client."""


class ByBatch:
    """By librdkafka's batch calls: numpy copies the heads of all messages in one go.

    Messages come into a queue of ours. All else stays where the binding serves it: its callbacks may only
    be called from its own calls.
    """

    def __init__(
        self,
        library: Library,
        client: confluent_kafka.Consumer,
        topics: Topics,
        partitions: Iterable[int],
        clock: Clock,
    ) -> None:
        """Take what comes of these partitions, which are assigned only after it."""
        self._library = library
        self._client = client
        self._is_one_topic = len(topics.names) == 1
        self._clock = clock
        self._found = np.zeros(0, dtype=np.uint64)
        quick, handle = library.quick, library.handle_of(client)
        self._queue = quick.rd_kafka_queue_new(handle)
        self._sources: list[int] = []
        for topic, partition in map(topics.split, partitions):
            source = quick.rd_kafka_queue_get_partition(handle, topic.encode(), partition)
            quick.rd_kafka_queue_forward(source, self._queue)
            self._sources.append(source)
        self._served_ns = clock.mono_ns()

    def take(self, limit: int, timeout_seconds: float) -> Taken:
        if limit > self._found.size:
            self._found = np.zeros(limit, dtype=np.uint64)
        sizes, came_ns = self._collect(limit, timeout_seconds)
        found = self._found[: sum(sizes)]
        taken = self._read(found, np.repeat(np.array(came_ns, dtype=np.int64), sizes))
        destroy = self._library.quick.rd_kafka_message_destroy
        for address in found.tolist():
            destroy(address)
        errors = [*taken.errors, *self._serve()]
        return replace(taken, errors=errors) if errors else taken

    def _collect(self, limit: int, timeout_seconds: float) -> tuple[list[int], list[int]]:
        """Note where messages lie; return how many came at a time, and when.

        They come a few at a time, hundreds of times a second, and to read few costs as much as to read many.
        """
        next_ = self._library.long.rd_kafka_consume_queue
        rest = self._library.quick.rd_kafka_consume_batch_queue
        address, count = self._found.ctypes.data, 0
        sizes: list[int] = []
        came_ns: list[int] = []
        end_ns = self._clock.mono_ns() + round(timeout_seconds * SECOND_NS)
        wait_ms = round(timeout_seconds * 1000)
        while first := next_(self._queue, wait_ms):
            self._found[count] = first
            at = address + (count + 1) * self._found.itemsize
            size = 1 + max(0, int(rest(self._queue, 0, at, limit - count - 1)))
            now_ns = self._clock.mono_ns()
            if not came_ns:
                end_ns = min(end_ns, now_ns + _COLLECT_NS)
            sizes.append(size)
            came_ns.append(now_ns)
            count += size
            wait_ms = (end_ns - now_ns) // 1_000_000
            if count >= limit or wait_ms <= 0:
                break
        return sizes, came_ns

    def close(self) -> None:
        quick = self._library.quick
        for source in self._sources:  # what still lies in our queue would keep the client alive
            quick.rd_kafka_queue_forward(source, None)
            quick.rd_kafka_queue_destroy(source)
        quick.rd_kafka_queue_destroy(self._queue)

    def _read(self, addresses: NDArray[np.uint64], came_ns: NDArray[np.int64]) -> Taken:
        """Copy what is wanted of these messages."""
        if not addresses.size:
            none = np.zeros(0, dtype=np.int64)
            return Taken(np.zeros(0, dtype=_HEAD), [], none, none, [])
        table = gathered(addresses, MESSAGE)
        errors: list[KafkaError] = []
        if table["err"].any():
            is_bad = table["err"] != 0
            errors = self._errors(addresses[is_bad], table["err"][is_bad])
            table, came_ns = table[~is_bad], came_ns[~is_bad]
        return Taken(
            heads=_heads(table),
            topic=[] if self._is_one_topic else self._names(table["rkt"]),
            partition=table["partition"].astype(np.int64),
            offset=table["offset"].astype(np.int64),
            errors=errors,
            came_mono_ns=came_ns,
        )

    def _names(self, targets: NDArray[np.uint64]) -> list[str]:
        several, at = np.unique(targets, return_inverse=True)
        names = [self._library.quick.rd_kafka_topic_name(one).decode() for one in several.tolist()]
        return [names[one] for one in at.tolist()]

    def _errors(self, addresses: NDArray[np.uint64], codes: NDArray[np.int32]) -> list[KafkaError]:
        said = self._library.quick.rd_kafka_message_errstr
        return [
            KafkaError(code, (said(address) or b"").decode(errors="replace"))
            for address, code in zip(addresses.tolist(), codes.tolist(), strict=True)
        ]

    def _serve(self) -> list[KafkaError]:
        """Let the binding log and report, now and then; return what it gives out as an error."""
        now_ns = self._clock.mono_ns()
        if now_ns < self._served_ns + _SERVE_NS:
            return []
        self._served_ns = now_ns
        found = self._client.poll(0)
        error = None if found is None else found.error()
        return [] if error is None else [error]


def _heads(table: NDArray[np.void]) -> NDArray[np.void]:
    """Return the first bytes of each payload; those of short ones are followed by zeros."""
    is_whole = table["len"] >= header.SIZE
    if is_whole.all():
        return gathered(table["payload"], _HEAD) if table.size else np.zeros(0, dtype=_HEAD)
    heads = np.zeros(table.size, dtype=_HEAD)
    if is_whole.any():
        heads[is_whole] = gathered(table["payload"][is_whole], _HEAD)
    for at in np.flatnonzero(~is_whole).tolist():
        if table["len"][at]:
            text = ctypes.string_at(int(table["payload"][at]), int(table["len"][at]))
            heads[at] = np.void(text.ljust(header.SIZE, b"\0"))
    return heads
