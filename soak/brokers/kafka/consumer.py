"""A Kafka consumer of fixed partitions that receives whole batches."""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import confluent_kafka
import numpy as np
from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from numpy.typing import NDArray

from soak.brokers.kafka.batch_calls import MESSAGE, Library, copy_structs
from soak.clients.kafka_log import error_text
from soak.core import header
from soak.core.errors import BrokerError
from soak.core.ports import Batch, Clock, Heads, Topics
from soak.core.units import SECOND_NS

# --- How a Kafka consumer takes what has come: message by message through the binding, or by batch calls.

_HEAD = np.dtype((np.void, header.SIZE))
_SERVE_NS = SECOND_NS // 10
_COLLECT_NS = SECOND_NS // 5


@dataclass(frozen=True, slots=True)
class Fetched:
    """Messages in order of arrival, without those that are errors; arrays of shape (n,)."""

    heads: Heads
    topic: Sequence[str]  # of each message; empty where there is but one topic
    partition: NDArray[np.int64]  # as its topic numbers it
    offset: NDArray[np.int64]
    errors: Sequence[KafkaError]
    came_mono_ns: NDArray[np.int64] | None = None  # None: just now


class Fetch(Protocol):
    def take(self, limit: int, timeout_seconds: float) -> Fetched:
        """Wait for the first message, then take what else comes, up to `limit`."""
        ...

    def close(self) -> None:
        """Let go of the client, which is closed after it."""
        ...


class MessageFetch:
    """Through the binding: an object a message."""

    def __init__(self, client: confluent_kafka.Consumer, topics: Topics) -> None:
        self._client = client
        self._is_one_topic = len(topics.names) == 1

    def take(self, limit: int, timeout_seconds: float) -> Fetched:
        first = self._client.poll(timeout_seconds)
        found = [] if first is None else [first, *self._client.consume(limit - 1, 0)]
        good = [message for message in found if message.error() is None]
        errors = [message.error() for message in found] if len(good) < len(found) else []
        return Fetched(
            heads=[message.value() or b"" for message in good],
            topic=[] if self._is_one_topic else [message.topic() or "" for message in good],
            partition=np.array([message.partition() for message in good], dtype=np.int64),
            offset=np.array([message.offset() for message in good], dtype=np.int64),
            errors=[error for error in errors if error is not None],
        )

    def close(self) -> None:
        """Nothing is held beside the client."""


class BatchFetch:
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

    def take(self, limit: int, timeout_seconds: float) -> Fetched:
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

    def _read(self, addresses: NDArray[np.uint64], came_ns: NDArray[np.int64]) -> Fetched:
        """Copy what is wanted of these messages."""
        if not addresses.size:
            none = np.zeros(0, dtype=np.int64)
            return Fetched(np.zeros(0, dtype=_HEAD), [], none, none, [])
        table = copy_structs(addresses, MESSAGE)
        errors: list[KafkaError] = []
        if table["err"].any():
            is_bad = table["err"] != 0
            errors = self._errors(addresses[is_bad], table["err"][is_bad])
            table, came_ns = table[~is_bad], came_ns[~is_bad]
        return Fetched(
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
        return copy_structs(table["payload"], _HEAD) if table.size else np.zeros(0, dtype=_HEAD)
    heads = np.zeros(table.size, dtype=_HEAD)
    if is_whole.any():
        heads[is_whole] = copy_structs(table["payload"][is_whole], _HEAD)
    for at in np.flatnonzero(~is_whole).tolist():
        if table["len"][at]:
            text = ctypes.string_at(int(table["payload"][at]), int(table["len"][at]))
            heads[at] = np.void(text.ljust(header.SIZE, b"\0"))
    return heads


# --- Kafka's consuming side: takes whole batches, and asks the cluster nothing while messages come.

LOG = logging.getLogger("soak.brokers.kafka.broker")


class KafkaConsumer:
    """One client, assigned to partitions; it joins no group."""

    def __init__(
        self,
        client: confluent_kafka.Consumer,
        topics: Topics,
        positions: Mapping[int, int],
        clock: Clock,
        timeout_seconds: float,
        fetch: Fetch,
    ) -> None:
        self._client = client
        self._fetch = fetch
        self._clock = clock
        self._timeout_seconds = timeout_seconds
        self._last_error = ""
        self._cached = {at: TopicPartition(*topics.split(at)) for at in positions}
        self._base = {name: at * topics.partitions for at, name in enumerate(topics.names)}
        client.assign(
            [TopicPartition(*topics.split(at), offset) for at, offset in positions.items()]
        )

    def receive(self, limit: int, timeout_seconds: float) -> Batch:
        taken = self._fetch.take(limit, timeout_seconds)
        at_mono_ns, at_wall_ns = self._clock.mono_ns(), self._clock.wall_ns()
        if taken.errors:
            self._tell_errors(taken.errors)
        partition = taken.partition
        if taken.topic:
            partition = partition + np.array([self._base[name] for name in taken.topic])
        return Batch(
            taken.heads,
            partition,
            taken.offset,
            at_mono_ns,
            at_wall_ns,
            came_mono_ns=taken.came_mono_ns,
        )

    def pause(self, *, is_paused: bool) -> None:
        partitions = list(self._cached.values())
        (self._client.pause if is_paused else self._client.resume)(partitions)

    def lag(self, positions: Mapping[int, int]) -> int | None:
        total = 0
        for at, position in positions.items():
            _, high = self._client.get_watermark_offsets(self._cached[at], cached=True)
            if high < 0:
                return None
            total += max(0, high - max(position, 0))
        return total

    def log_bounds(self, partitions: Sequence[int]) -> dict[int, tuple[int, int]]:
        first = self._offsets(partitions, OFFSET_BEGINNING)
        end = self._offsets(partitions, OFFSET_END)
        return {at: (first[at], end[at]) for at in partitions}

    def close(self) -> None:
        self._fetch.close()
        self._client.close()

    def close_for_good(self) -> None:
        """Leave: without a group the cluster keeps nothing."""
        self.close()

    def _offsets(self, partitions: Sequence[int], which: int) -> dict[int, int]:
        """Return the first or the next offset of each: one question a broker, however many there are."""
        places = [self._cached[at] for at in partitions]
        asked = [TopicPartition(place.topic, place.partition, which) for place in places]
        try:
            found = self._client.offsets_for_times(asked, timeout=self._timeout_seconds)
        except KafkaException as error:
            raise BrokerError(f"no bounds of the logs: {error_text(error)}") from error
        for one in found:
            if one.error is not None:
                where = f"{one.topic}-{one.partition}"
                raise BrokerError(f"no bounds of the log of {where}: {one.error.str()}")
        return {self._base[one.topic] + one.partition: int(one.offset) for one in found}

    def _tell_errors(self, errors: Sequence[KafkaError]) -> None:
        """Log an error when it is another one than the last."""
        for error in errors:
            if error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001  # its public name
                continue
            if str(error) != self._last_error:
                self._last_error = str(error)
                LOG.warning("consume_failed error=%s", error)
