"""Kafka producers, through the client's public API or batched calls, and the partitioners of librdkafka."""

from __future__ import annotations

import ctypes
import sys
import zlib
from array import array
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import confluent_kafka
import numpy as np
from confluent_kafka import KafkaError, KafkaException
from numpy.typing import NDArray

from soak.brokers.kafka.batch_calls import (
    COPY,
    DELIVERY_EVENT,
    MESSAGE,
    PER_MESSAGE,
    STATS_EVENT,
    Library,
    copy_structs,
    log_event,
)
from soak.clients.kafka_log import ClientLog, error_text
from soak.clients.kafka_throttle import ThrottleTimes
from soak.core.errors import BrokerError, SettingError
from soak.core.ports import FAILED_OFFSET, UNKNOWN_OFFSET, Acks, Clock, Outgoing, Rows, Topics

DEFAULT_PARTITIONER = "consistent_random"
"""librdkafka's own; the Java client's is murmur2_random."""

_MURMUR2_SEED = 0x9747B28C
_MURMUR2_FACTOR = 0x5BD1E995
_32_BITS = 0xFFFFFFFF

_QUEUE_FULL = KafkaError._QUEUE_FULL  # noqa: SLF001  # its public name
_NOT_IDEMPOTENT = {
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,  # before Kafka 2.8, where Write on a topic is not enough
    KafkaError._UNSUPPORTED_FEATURE,  # noqa: SLF001  # its public name
}
_MAX_EVENTS = 100  # a call of `serve`
_MAX_UNREAD_REPORTS = 1000  # until they are read, their messages fill the client's queue
_NUMBERED = 1024  # rows at a time
_WAIT_MS = 10
_WAKE_UP = (1).to_bytes(8, sys.byteorder)
_NO_DESCRIPTOR = -1

_MAX_POLLS = 4
"""`poll` returns after one batch of reports; a few batches a call keep up with full speed."""


class KafkaProducer:
    """One client; the delivery reports of a batch get the time at which the batch is fetched."""

    refused_by_partition = False

    def __init__(
        self,
        client: confluent_kafka.Producer,
        topics: Topics,
        clock: Clock,
        throttle: ThrottleTimes,
    ) -> None:
        """`throttle` gets the statistics of the client."""
        self._client = client
        self._where = [topics.split(at) for at in range(topics.total)]
        self._clock = clock
        self._throttle = throttle
        self._notes = _DeliveryReports()
        self._stamped: list[Acks] = []

    def rings(self, bell: int) -> bool:
        """Return False: the public API has no notification of reports."""
        del bell
        return False

    def send(self, messages: Outgoing) -> int:
        where, note = self._where, self._notes.note
        produce: Callable[..., None] = self._client.produce  # takes any buffer, and copies it
        keys, token = messages.key, messages.first_token
        count = 0
        try:
            if keys is None:
                for at, payload in zip(messages.partition, messages.payload, strict=True):
                    topic, partition = where[at]
                    produce(topic, payload, None, partition, partial(note, token + count))
                    count += 1
            else:
                for at, payload, key in zip(
                    messages.partition, messages.payload, keys, strict=True
                ):
                    topic, partition = where[at]
                    produce(topic, payload, key, partition, partial(note, token + count))
                    count += 1
        except BufferError:
            return count
        except KafkaException as error:
            raise _refusal(error.args[0].code(), error_text(error)) from error
        return count

    def serve(self) -> None:
        for _ in range(_MAX_POLLS):
            # The reports arrived before the call that returns them: the start of the call is nearest.
            at_ns = self._clock.mono_ns()
            if not self._client.poll(0):
                return
            self._stamp(at_ns)

    def take(self) -> Acks:
        taken, self._stamped = self._stamped, []
        return concatenate_acks(taken)

    def throttle_seconds(self) -> Mapping[str, float] | None:
        return self._throttle.seconds()

    def close(self, timeout_seconds: float) -> Acks:
        deadline_ns = self._clock.mono_ns() + round(timeout_seconds * 1e9)
        while len(self._client) and self._clock.mono_ns() < deadline_ns:
            self._client.poll(0.01)
            self._stamp(self._clock.mono_ns())
        self._client.purge()
        self._client.poll(0)
        self._stamp(self._clock.mono_ns())
        return self.take()

    def _stamp(self, at_ns: int) -> None:
        token, offset, failures = self._notes.take()
        if token.size:
            at = np.full(token.size, at_ns, dtype=np.int64)
            self._stamped.append(Acks(token, offset, at, failures))


def _refusal(code: int, text: str) -> BrokerError:
    """Return the error of a client that sends nothing more, with what to do where it cannot be idempotent."""
    hint = ""
    if code in _NOT_IDEMPOTENT:
        hint = "; grant IdempotentWrite on the cluster, or set enable.idempotence: false"
    return BrokerError(f"the client refuses to send: {text}{hint}")


def concatenate_acks(batches: Sequence[Acks]) -> Acks:
    """Return all batches of reports as one, in their order."""
    if len(batches) == 1:
        return batches[0]
    none = np.zeros(0, dtype=np.int64)
    return Acks(
        token=np.concatenate([none, *(one.token for one in batches)]),
        offset=np.concatenate([none, *(one.offset for one in batches)]),
        at_mono_ns=np.concatenate([none, *(one.at_mono_ns for one in batches)]),
        failures=sum((Counter(one.failures) for one in batches), Counter[str]()),
    )


class _DeliveryReports:
    """Reports noted by the client's callback, a closure over two appends: it runs for every message."""

    def __init__(self) -> None:
        self.note: Callable[[int, Any, Any], None]
        self._token = array("q")
        self._offset = array("q")
        self._failures: Counter[str] = Counter()
        self._bind()

    def take(self) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], Mapping[str, int]]:
        """Return tokens and offsets noted since the last call, and how many failed by reason."""
        size = len(self._token)
        token = np.array(self._token, dtype=np.int64)
        offset = np.array(self._offset, dtype=np.int64)
        del self._token[:size], self._offset[:size]
        failures, self._failures = self._failures, Counter()
        return token, offset, failures

    def _bind(self) -> None:
        add_token, add_offset = self._token.append, self._offset.append

        def note(token: int, error: Any, message: Any) -> None:  # noqa: ANN401  # the client's types
            add_token(token)
            if error is not None:
                add_offset(FAILED_OFFSET)
                self._failures[error.str()] += 1
                return
            offset = message.offset()
            add_offset(UNKNOWN_OFFSET if offset is None or offset < 0 else offset)

        self.note = note


class BatchProducer:
    """One client; delivery reports get their time when they arrive and are read in batches.

    It takes reports, log lines and statistics as events. The client's own `poll` and `flush` must not be
    called: the binding would take tokens for addresses.
    """

    refused_by_partition = False

    def __init__(
        self,
        library: Library,
        client: confluent_kafka.Producer,
        topics: Topics,
        clock: Clock,
        log: ClientLog,
        throttle: ThrottleTimes,
    ) -> None:
        self._library = library
        self._throttle = throttle
        self._client = client
        self._handle = library.handle_of(client)
        self._queue = library.quick.rd_kafka_queue_get_main(self._handle)
        self._topics = topics
        self._clock = clock
        self._log = log
        self._targets: dict[int, int] = {}  # by number of the topic
        self._matrix: NDArray[np.uint8] | None = None
        self._row_messages = np.zeros(0, dtype=MESSAGE)
        self._row_address = 0
        self._tokens = self._row_messages["token"]
        self._token_of_row_0, self._numbered = 0, 0  # rows below the latter have tokens
        self._reports = np.zeros(2 * _MAX_UNREAD_REPORTS, dtype=np.uint64)  # their addresses
        self._reports_address = self._reports.ctypes.data
        self._unread = 0
        self._events: list[int] = []
        self._sizes: list[int] = []  # of the events, in reports
        self._arrived_ns: list[int] = []
        self._stamped: list[Acks] = []

    def rings(self, bell: int) -> bool:
        self._library.quick.rd_kafka_queue_io_event_enable(
            self._queue, bell, _WAKE_UP, len(_WAKE_UP)
        )
        self.serve()  # the descriptor is written when an empty queue fills: empty it first
        return True

    def send(self, messages: Outgoing) -> int:
        taken = self._send(messages)
        if taken < len(messages.payload) and self._make_room():
            taken += self._send(_without_first(messages, taken))
        return taken

    def serve(self) -> None:
        poll = self._library.quick.rd_kafka_queue_poll
        for _ in range(_MAX_EVENTS):
            # The event arrived before the call that returns it: the start of the call is nearest.
            at_ns = self._clock.mono_ns()
            event = poll(self._queue, 0)
            if not event:
                return
            self._note_event(event, at_ns)

    def take(self) -> Acks:
        self._read()
        taken, self._stamped = self._stamped, []
        return concatenate_acks(taken)

    def throttle_seconds(self) -> Mapping[str, float] | None:
        return self._throttle.seconds()

    def close(self, timeout_seconds: float) -> Acks:
        self.rings(_NO_DESCRIPTOR)
        deadline_ns = self._clock.mono_ns() + round(timeout_seconds * 1e9)
        while len(self._client) and self._clock.mono_ns() < deadline_ns:
            event = self._library.long.rd_kafka_queue_poll(self._queue, _WAIT_MS)
            if event:
                self._note_event(event, self._clock.mono_ns())
            self._read()  # unread reports count as in flight
        self._client.purge()
        while event := self._library.quick.rd_kafka_queue_poll(self._queue, 0):
            self._note_event(event, self._clock.mono_ns())
        found = self.take()
        for target in self._targets.values():
            self._library.quick.rd_kafka_topic_destroy(target)
        self._library.quick.rd_kafka_queue_destroy(self._queue)
        return found

    def _send(self, messages: Outgoing) -> int:
        count = len(messages.payload)
        at = messages.partition[0] if count else 0
        is_together = messages.partition.count(at) == count
        if is_together and messages.rows is not None and messages.key is None:
            return self._send_rows(messages.rows, count, messages.first_token, at)
        # The memory at the addresses must live until the call has copied it: these names keep it.
        table, payloads = self._table(messages)
        keys = _fill_addresses(table, "key", messages.key) if messages.key is not None else b""
        table["token"] = np.arange(messages.first_token, messages.first_token + count)
        taken = self._send_apart(np.array(messages.partition, dtype=np.int64), table)
        del payloads, keys
        return taken

    def _make_room(self) -> bool:
        """Read the reports that have arrived; return whether that made room in the client's queue."""
        self.serve()
        before = len(self._stamped)
        self._read()
        return len(self._stamped) > before

    def _send_rows(self, rows: Rows, count: int, token: int, at: int) -> int:
        """Send rows of the matrix to one partition: a few at a time, thousands of times a second."""
        if rows.matrix is not self._matrix:
            self._note_rows(rows.matrix)
        first = rows.first
        if token - first != self._token_of_row_0 or first + count > self._numbered:
            self._number(first, token)
        topic, partition = divmod(at, self._topics.partitions)
        taken: int = self._library.quick.rd_kafka_produce_batch(
            self._targets.get(topic) or self._target(topic),
            partition,
            COPY,
            self._row_address + first * MESSAGE.itemsize,
            count,
        )
        if taken < count:
            self._raise_errors(self._row_messages[first : first + count])
        return taken

    def _number(self, first: int, token: int) -> None:
        """Write tokens from a row on, for later rows too: mostly rows and tokens rise together."""
        tokens = self._tokens[first : first + _NUMBERED]
        tokens[:] = np.arange(token, token + tokens.size)
        self._token_of_row_0, self._numbered = token - first, first + tokens.size

    def _note_rows(self, matrix: NDArray[np.uint8]) -> None:
        """Note the address of each row, once: a run uses one matrix throughout."""
        height, width = matrix.shape
        self._matrix = matrix
        self._row_messages = np.zeros(height, dtype=MESSAGE)
        self._row_messages["payload"] = matrix.ctypes.data + np.arange(height) * width
        self._row_messages["len"] = width
        self._row_address = self._row_messages.ctypes.data
        self._tokens = self._row_messages["token"]
        self._numbered = 0

    def _table(self, messages: Outgoing) -> tuple[NDArray[np.void], object]:
        """Return the messages as the library reads them, and the object that holds their payloads."""
        rows, count = messages.rows, len(messages.payload)
        if rows is None:
            table = np.zeros(count, dtype=MESSAGE)
            return table, _fill_addresses(
                table, "payload", [bytes(one) for one in messages.payload]
            )
        if rows.matrix is not self._matrix:
            self._note_rows(rows.matrix)
        return self._row_messages[rows.first : rows.first + count].copy(), rows.matrix

    def _send_apart(self, partition: NDArray[np.int64], table: NDArray[np.void]) -> int:
        """Send to several partitions, in one call for consecutive messages of a topic."""
        topic, table["partition"] = np.divmod(partition, self._topics.partitions)
        edges = [0, *(np.flatnonzero(np.diff(topic)) + 1).tolist(), topic.size]
        for first, end in pairwise(edges):
            taken = self._produce(int(topic[first]), table[first:end])
            if taken < end - first:
                return first + taken
        return int(topic.size)

    def _produce(self, topic: int, table: NDArray[np.void]) -> int:
        taken: int = self._library.long.rd_kafka_produce_batch(
            self._targets.get(topic) or self._target(topic),
            0,
            COPY | PER_MESSAGE,
            table.ctypes.data,
            table.size,
        )
        if taken < table.size:
            self._raise_errors(table)
        return taken

    def _raise_errors(self, table: NDArray[np.void]) -> None:
        """Raise the client's error about a message, unless its queue was full."""
        others = table["err"][(table["err"] != 0) & (table["err"] != _QUEUE_FULL)]
        if others.size:
            code = self._library.fatal_error(self._handle) or int(others[0])
            raise _refusal(code, self._library.quick.rd_kafka_err2str(code).decode())

    def _target(self, topic: int) -> int:
        name = self._topics.names[topic].encode()
        found = self._library.quick.rd_kafka_topic_new(self._handle, name, None)
        if not found:
            raise BrokerError(f"the client refuses the topic {self._topics.names[topic]}")
        self._targets[topic] = int(found)
        return int(found)

    def _note_event(self, event: int, at_ns: int) -> None:
        quick = self._library.quick
        kind = quick.rd_kafka_event_type(event)
        if kind != DELIVERY_EVENT:
            if kind == STATS_EVENT:
                self._throttle.note(quick.rd_kafka_event_stats(event) or b"")
            else:
                log_event(self._library, self._handle, event, self._log)
            quick.rd_kafka_event_destroy(event)
            return
        count = quick.rd_kafka_event_message_count(event)
        if self._unread + count > self._reports.size:
            self._reports = np.resize(self._reports, 2 * (self._unread + count))
            self._reports_address = self._reports.ctypes.data
        quick.rd_kafka_event_message_array(event, self._reports_address + 8 * self._unread, count)
        self._events.append(event)
        self._sizes.append(count)
        self._arrived_ns.append(at_ns)
        self._unread += count
        if self._unread >= _MAX_UNREAD_REPORTS:
            self._read()

    def _read(self) -> None:
        """Read the reports that have arrived, and return their messages to the library."""
        if not self._events:
            return
        found = copy_structs(self._reports[: self._unread], MESSAGE)
        offset = np.where(found["offset"] < 0, UNKNOWN_OFFSET, found["offset"])
        offset[found["err"] != 0] = FAILED_OFFSET
        at_ns = np.repeat(np.array(self._arrived_ns, dtype=np.int64), self._sizes)
        failures = _failures(found["err"])
        self._stamped.append(Acks(found["token"].astype(np.int64), offset, at_ns, failures))
        for event in self._events:
            self._library.long.rd_kafka_event_destroy(event)
        self._unread = 0
        self._events, self._sizes, self._arrived_ns = [], [], []


def _failures(codes: NDArray[np.int32]) -> dict[str, int]:
    """Return how many messages failed by the text of their error; 0 is none."""
    found, counts = np.unique(codes[codes != 0], return_counts=True)
    return {
        KafkaError(code).str(): count
        for code, count in zip(found.tolist(), counts.tolist(), strict=True)
    }


def _without_first(messages: Outgoing, count: int) -> Outgoing:
    """Return all messages but the first `count`."""
    rows, key = messages.rows, messages.key
    return Outgoing(
        messages.partition[count:],
        messages.payload[count:],
        messages.first_token + count,
        None if key is None else key[count:],
        None if rows is None else Rows(rows.matrix, rows.first + count),
    )


def _fill_addresses(table: NDArray[np.void], field: str, parts: Sequence[bytes]) -> bytes:
    """Write the address and length of each part; return the bytes that hold them all."""
    whole = b"".join(parts)
    length = np.fromiter(map(len, parts), dtype=np.uint64, count=len(parts))
    begin = ctypes.cast(ctypes.c_char_p(whole), ctypes.c_void_p).value or 0
    table[field] = np.uint64(begin) + np.cumsum(length) - length
    table["len" if field == "payload" else f"{field}_len"] = length
    return whole


def partition_of(key: bytes, partitions: int, partitioner: str) -> int:
    """Return the partition of a key under a partitioner of librdkafka's.

    Raises:
        SettingError: a partitioner that does not look at the key, or an unknown one.
    """
    if partitioner in {"consistent", "consistent_random"}:
        return zlib.crc32(key) % partitions
    if partitioner in {"murmur2", "murmur2_random"}:
        return (murmur2(key) & 0x7FFFFFFF) % partitions
    if partitioner in {"fnv1a", "fnv1a_random"}:
        return abs(_signed(fnv1a(key))) % partitions
    raise SettingError(
        ("producer", "partitioner"),
        f"{partitioner!r} gives a key no partition of its own; "
        "take consistent, murmur2 or fnv1a, each also with _random",
    )


def murmur2(data: bytes) -> int:
    """Return the 32-bit hash as the Java client makes it (MurmurHash2, its own seed), unsigned."""
    value = _MURMUR2_SEED ^ len(data)
    whole = len(data) & ~3
    for at in range(0, whole, 4):
        word = int.from_bytes(data[at : at + 4], "little") * _MURMUR2_FACTOR & _32_BITS
        word ^= word >> 24
        value = (value * _MURMUR2_FACTOR & _32_BITS) ^ (word * _MURMUR2_FACTOR & _32_BITS)
    if len(data) > whole:
        value = (value ^ int.from_bytes(data[whole:], "little")) * _MURMUR2_FACTOR & _32_BITS
    value = (value ^ value >> 13) * _MURMUR2_FACTOR & _32_BITS
    return value ^ value >> 15


def fnv1a(data: bytes) -> int:
    """Return the 32-bit FNV-1a hash, unsigned."""
    value = 0x811C9DC5
    for byte in data:
        value = (value ^ byte) * 0x01000193 & _32_BITS
    return value


def _signed(value: int) -> int:
    return value - 2**32 if value >= 2**31 else value
