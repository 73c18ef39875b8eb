"""A Kafka consumer of fixed partitions that receives batches; while messages arrive it sends no requests.

Messages come one by one through the public API of the client, or many at a time through batched calls.
"""

from __future__ import annotations

import ctypes
import logging
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

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
from soak.clients.kafka_log import error_text, without_details
from soak.clients.kafka_throttle import ThrottleTimes
from soak.core import header
from soak.core.errors import BrokerError
from soak.core.ports import Batch, Clock, Heads, ReceiveError, Topics
from soak.core.retry import Once
from soak.core.units import SECOND_NS

LOG = logging.getLogger("soak.brokers.kafka")

_HEAD = np.dtype((np.void, header.SIZE))
_FATAL = KafkaError._FATAL  # noqa: SLF001  # its public name
_SERVE_NS = SECOND_NS // 10
_COLLECT_NS = SECOND_NS // 5
_ERROR_CALLBACK = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p
)
"""`error_cb` of the library: client, code, reason, opaque."""


class FetchError(NamedTuple):
    """An error in a message's place; `partition` is `topic-0`, or "" where it names none."""

    error: KafkaError
    partition: str = ""


def partition_text(topic: str | None, partition: int | None) -> str:
    """Return the name of a partition as Kafka writes it; "" where a client names none."""
    return f"{topic}-{partition}" if topic and partition is not None and partition >= 0 else ""


@dataclass(frozen=True, slots=True)
class Fetched:
    """Messages in order of arrival, and apart from them the errors; arrays of shape (n,)."""

    heads: Heads
    topic: Sequence[str]  # of each message; empty where there is but one topic
    partition: NDArray[np.int64]  # as its topic numbers it
    offset: NDArray[np.int64]
    errors: Sequence[FetchError]
    came_mono_ns: NDArray[np.int64] | None = None  # None: just now


class Fetch(Protocol):
    def take(self, limit: int, timeout_seconds: float) -> Fetched:
        """Wait for the first message, then collect others that follow, up to `limit`."""
        ...

    def close(self) -> None:
        """Release the client, which is closed afterwards."""
        ...


class MessageFetch:
    """Fetches through the public API: one object for each message."""

    def __init__(self, client: confluent_kafka.Consumer, topics: Topics) -> None:
        self._client = client
        self._is_one_topic = len(topics.names) == 1

    def take(self, limit: int, timeout_seconds: float) -> Fetched:
        first = self._client.poll(timeout_seconds)
        found = [] if first is None else [first, *self._client.consume(limit - 1, 0)]
        good = [message for message in found if message.error() is None]
        errors = [
            FetchError(error, partition_text(message.topic(), message.partition()))
            for message in (found if len(good) < len(found) else [])
            if (error := message.error()) is not None
        ]
        return Fetched(
            heads=[message.value() or b"" for message in good],
            topic=[] if self._is_one_topic else [message.topic() or "" for message in good],
            partition=np.array([message.partition() for message in good], dtype=np.int64),
            offset=np.array([message.offset() for message in good], dtype=np.int64),
            errors=errors,
        )

    def close(self) -> None:
        """Do nothing: only the client holds resources."""


class BatchFetch:
    """Fetches through batched calls: numpy copies the heads of all messages at once.

    Messages go to a queue of ours. All other events stay with the binding, whose callbacks may only run
    inside its own calls: one for errors would end the process when the queue of a partition holds an error,
    so a callback of ours replaces it.
    """

    def __init__(
        self,
        library: Library,
        client: confluent_kafka.Consumer,
        topics: Topics,
        partitions: Iterable[int],
        clock: Clock,
        note_error: Callable[[KafkaError], None],
    ) -> None:
        """Fetch from these partitions, which the caller assigns afterwards.

        `note_error` gets what the client reports apart from messages; it replaces the client's `error_cb`.
        """
        self._library = library
        self._client = client
        self._is_one_topic = len(topics.names) == 1
        self._clock = clock
        self._addresses = np.zeros(0, dtype=np.uint64)
        quick, handle = library.quick, library.handle_of(client)
        self._note_error = note_error
        # The callback must live as long as the library may call it.
        self._callback = _ERROR_CALLBACK(self._on_error)
        self._settings = quick.rd_kafka_conf(handle)
        quick.rd_kafka_conf_set_error_cb(
            self._settings, ctypes.cast(self._callback, ctypes.c_void_p)
        )
        self._queue = quick.rd_kafka_queue_new(handle)
        self._sources: list[int] = []
        for topic, partition in map(topics.split, partitions):
            source = quick.rd_kafka_queue_get_partition(handle, topic.encode(), partition)
            quick.rd_kafka_queue_forward(source, self._queue)
            self._sources.append(source)
        self._served_ns = clock.mono_ns()

    def take(self, limit: int, timeout_seconds: float) -> Fetched:
        if limit > self._addresses.size:
            self._addresses = np.zeros(limit, dtype=np.uint64)
        sizes, arrived_ns = self._collect(limit, timeout_seconds)
        found = self._addresses[: sum(sizes)]
        fetched = self._read(found, np.repeat(np.array(arrived_ns, dtype=np.int64), sizes))
        destroy = self._library.quick.rd_kafka_message_destroy
        for address in found.tolist():
            destroy(address)
        errors = [*fetched.errors, *self._serve()]
        return replace(fetched, errors=errors) if errors else fetched

    def _collect(self, limit: int, timeout_seconds: float) -> tuple[list[int], list[int]]:
        """Note the addresses of messages; return how many arrived together, and when.

        A few arrive at a time, hundreds of times a second, and to read few costs as much as to read many.
        """
        next_ = self._library.long.rd_kafka_consume_queue
        more = self._library.quick.rd_kafka_consume_batch_queue
        address, count = self._addresses.ctypes.data, 0
        sizes: list[int] = []
        arrived_ns: list[int] = []
        end_ns = self._clock.mono_ns() + round(timeout_seconds * SECOND_NS)
        wait_ms = round(timeout_seconds * 1000)
        while first := next_(self._queue, wait_ms):
            self._addresses[count] = first
            at = address + (count + 1) * self._addresses.itemsize
            size = 1 + max(0, int(more(self._queue, 0, at, limit - count - 1)))
            now_ns = self._clock.mono_ns()
            if not arrived_ns:
                end_ns = min(end_ns, now_ns + _COLLECT_NS)
            sizes.append(size)
            arrived_ns.append(now_ns)
            count += size
            wait_ms = (end_ns - now_ns) // 1_000_000
            if count >= limit or wait_ms <= 0:
                break
        return sizes, arrived_ns

    def close(self) -> None:
        quick = self._library.quick
        for source in self._sources:  # messages left in our queue would keep the client alive
            quick.rd_kafka_queue_forward(source, None)
            quick.rd_kafka_queue_destroy(source)
        quick.rd_kafka_queue_destroy(self._queue)
        quick.rd_kafka_conf_set_error_cb(self._settings, None)

    def _on_error(self, _client: int, code: int, reason: bytes, _opaque: int) -> None:
        text, is_fatal = (reason or b"").decode(errors="replace"), code == _FATAL
        self._note_error(KafkaError(code, text, is_fatal))

    def _read(self, addresses: NDArray[np.uint64], arrived_ns: NDArray[np.int64]) -> Fetched:
        """Copy head, partition and offset of these messages."""
        if not addresses.size:
            none = np.zeros(0, dtype=np.int64)
            return Fetched(np.zeros(0, dtype=_HEAD), [], none, none, [])
        table = copy_structs(addresses, MESSAGE)
        errors: list[FetchError] = []
        if table["err"].any():
            is_bad = table["err"] != 0
            errors = self._errors(addresses[is_bad], table[is_bad])
            table, arrived_ns = table[~is_bad], arrived_ns[~is_bad]
        return Fetched(
            heads=_heads(table),
            topic=[] if self._is_one_topic else self._names(table["rkt"]),
            partition=table["partition"].astype(np.int64),
            offset=table["offset"].astype(np.int64),
            errors=errors,
            came_mono_ns=arrived_ns,
        )

    def _names(self, targets: NDArray[np.uint64]) -> list[str]:
        several, at = np.unique(targets, return_inverse=True)
        names = [self._library.quick.rd_kafka_topic_name(one).decode() for one in several.tolist()]
        return [names[one] for one in at.tolist()]

    def _errors(self, addresses: NDArray[np.uint64], table: NDArray[np.void]) -> list[FetchError]:
        text_of, name_of = (
            self._library.quick.rd_kafka_message_errstr,
            self._library.quick.rd_kafka_topic_name,
        )
        found = []
        for address, row in zip(addresses.tolist(), table, strict=True):
            text = (text_of(address) or b"").decode(errors="replace")
            topic = name_of(int(row["rkt"])).decode() if row["rkt"] else ""  # errors may have none
            error = KafkaError(int(row["err"]), text)
            found.append(FetchError(error, partition_text(topic, int(row["partition"]))))
        return found

    def _serve(self) -> list[FetchError]:
        """Let the binding run its callbacks, now and then; return the error that it reports, if any."""
        now_ns = self._clock.mono_ns()
        if now_ns < self._served_ns + _SERVE_NS:
            return []
        self._served_ns = now_ns
        found = self._client.poll(0)
        error = None if found is None else found.error()
        if found is None or error is None:
            return []
        return [FetchError(error, partition_text(found.topic(), found.partition()))]


def _heads(table: NDArray[np.void]) -> NDArray[np.void]:
    """Return the first bytes of each payload; short ones are padded with zeros."""
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


_NO_FAILURES = {
    KafkaError._PARTITION_EOF,  # noqa: SLF001  # its public name
    KafkaError.GROUP_AUTHORIZATION_FAILED,  # the client looks for its group, which it never joins
}


_BROKER = re.compile(r"(?:^|://|\s)([^\s/,]+:\d+)(?:/\w+)?: ")
MAX_ERROR_KINDS = 100


class ReceiveErrors:
    """Counts the errors of one client until they are taken; `note` is its `error_cb`.

    While a broker is down its client reports tens of refused connections a second: they are one kind.
    """

    def __init__(self) -> None:
        self._counts: Counter[ReceiveError] = Counter()

    def note(self, error: KafkaError, partition: str = "") -> None:
        """Count an error, unless it is none: the end of a partition, or a group that is never joined."""
        if error.code() in _NO_FAILURES:
            return
        if error.fatal():
            LOG.error("consume_failed error=%s", error)
        text = error.str()
        broker = _BROKER.search(text)
        kind = ReceiveError(
            reason=without_details(text),
            code=error.name(),
            broker="" if broker is None else broker.group(1),
            partition=partition,
        )
        if kind in self._counts or len(self._counts) < MAX_ERROR_KINDS:
            self._counts[kind] += 1

    def take(self) -> Mapping[ReceiveError, int]:
        """Return the counts since the last call."""
        found, self._counts = self._counts, Counter()
        return found


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
        throttle: ThrottleTimes,
        errors: ReceiveErrors,
    ) -> None:
        """`throttle` gets the statistics of the client, `errors` what it reports apart from messages."""
        self._client = client
        self._fetch = fetch
        self._throttle = throttle
        self._clock = clock
        self._timeout_seconds = timeout_seconds
        self._errors = errors
        self._logged = Once()
        self._places = {at: TopicPartition(*topics.split(at)) for at in positions}
        self._base = {name: at * topics.partitions for at, name in enumerate(topics.names)}
        client.assign(
            [TopicPartition(*topics.split(at), offset) for at, offset in positions.items()]
        )

    def receive(self, limit: int, timeout_seconds: float) -> Batch:
        fetched = self._fetch.take(limit, timeout_seconds)
        at_mono_ns, at_wall_ns = self._clock.mono_ns(), self._clock.wall_ns()
        if fetched.errors:
            self._note_errors(fetched.errors)
        partition = fetched.partition
        if fetched.topic:
            partition = partition + np.array([self._base[name] for name in fetched.topic])
        return Batch(
            fetched.heads,
            partition,
            fetched.offset,
            at_mono_ns,
            at_wall_ns,
            came_mono_ns=fetched.came_mono_ns,
            errors=self._errors.take(),
        )

    def pause(self, *, is_paused: bool) -> None:
        partitions = list(self._places.values())
        (self._client.pause if is_paused else self._client.resume)(partitions)

    def lag(self, positions: Mapping[int, int]) -> int | None:
        total = 0
        for at, position in positions.items():
            _, high = self._client.get_watermark_offsets(self._places[at], cached=True)
            if high < 0:
                return None
            total += max(0, high - max(position, 0))
        return total

    def log_bounds(self, partitions: Sequence[int]) -> dict[int, tuple[int, int]]:
        first = self._offsets(partitions, OFFSET_BEGINNING)
        end = self._offsets(partitions, OFFSET_END)
        return {at: (first[at], end[at]) for at in partitions}

    def throttle_seconds(self) -> Mapping[str, float] | None:
        return self._throttle.seconds()

    def close(self) -> None:
        self._fetch.close()
        self._client.close()

    def close_for_good(self) -> None:
        """Close: without a group the cluster keeps nothing for it."""
        self.close()

    def _offsets(self, partitions: Sequence[int], which: int) -> dict[int, int]:
        """Return the first or the next offset of each partition, with one request a broker."""
        places = [self._places[at] for at in partitions]
        wanted = [TopicPartition(place.topic, place.partition, which) for place in places]
        try:
            found = self._client.offsets_for_times(wanted, timeout=self._timeout_seconds)
        except KafkaException as error:
            raise BrokerError(f"cannot read the bounds of the logs: {error_text(error)}") from error
        for one in found:
            if one.error is not None:
                where = f"{one.topic}-{one.partition}"
                raise BrokerError(
                    f"cannot read the bounds of the log of {where}: {one.error.str()}"
                )
        return {self._base[one.topic] + one.partition: int(one.offset) for one in found}

    def _note_errors(self, errors: Sequence[FetchError]) -> None:
        """Count errors, and log one unless it is the same as the last one."""
        for error, partition in errors:
            self._errors.note(error, partition)
            if error.code() not in _NO_FAILURES and self._logged.is_new(str(error)):
                LOG.warning("consume_failed error=%s", error)
