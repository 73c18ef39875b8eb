"""Kafka's producing side by librdkafka's batch calls: a call a chunk, and one a batch of delivery reports."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from itertools import pairwise

import confluent_kafka
import numpy as np
from numpy.typing import NDArray

from soak.brokers import _kafka_events
from soak.brokers._kafka_producer import joined
from soak.brokers._librdkafka import COPY, DELIVERED, MESSAGE, PER_MESSAGE, Library, gathered
from soak.clients.kafka_log import ClientLog
from soak.core.errors import BrokerError
from soak.core.ports import FAILED, UNKNOWN_OFFSET, Acks, Clock, Outgoing, Rows, Topics

_QUEUE_FULL = confluent_kafka.KafkaError._QUEUE_FULL  # noqa: SLF001  # its public name
_MOST_EVENTS = 100  # a call of `serve`
_MOST_HELD = 1000  # reports; their messages take room in the client's queue until these are read
_NUMBERED = 1024  # rows at a time
_WAIT_MS = 10
_RING = (1).to_bytes(8, sys.byteorder)
_NOBODY = -1


class BatchProducer:
    """One client; reports are stamped when they come and read in lots.

    The client's own `poll` and `flush` must not be called: the binding takes tokens for addresses.
    """

    refused_by_partition = False

    def __init__(
        self,
        library: Library,
        client: confluent_kafka.Producer,
        topics: Topics,
        clock: Clock,
        log: ClientLog,
    ) -> None:
        self._library = library
        self._client = client
        self._handle = library.handle_of(client)
        self._queue = library.quick.rd_kafka_queue_get_main(self._handle)
        self._topics = topics
        self._clock = clock
        self._log = log
        self._targets: dict[int, int] = {}  # by number of the topic
        self._matrix: NDArray[np.uint8] | None = None
        self._of_rows = np.zeros(0, dtype=MESSAGE)
        self._of_rows_at = 0
        self._tokens = self._of_rows["token"]
        self._token_of_row_0, self._numbered = 0, 0  # rows below the latter have theirs
        self._reports = np.zeros(2 * _MOST_HELD, dtype=np.uint64)  # where they lie
        self._reports_at = self._reports.ctypes.data
        self._held = 0
        self._events: list[int] = []
        self._sizes: list[int] = []  # of the events, in reports
        self._came_ns: list[int] = []
        self._stamped: list[Acks] = []

    def rings(self, bell: int) -> bool:
        self._library.quick.rd_kafka_queue_io_event_enable(self._queue, bell, _RING, len(_RING))
        self.serve()  # it rings when the queue is no longer empty: it must have been
        return True

    def send(self, messages: Outgoing) -> int:
        taken = self._send(messages)
        if taken < len(messages.payload) and self._makes_room():
            taken += self._send(_behind(messages, taken))
        return taken

    def serve(self) -> None:
        poll = self._library.quick.rd_kafka_queue_poll
        for _ in range(_MOST_EVENTS):
            # It had come before the call that hands it out: its start is nearest to the arrival.
            at_ns = self._clock.mono_ns()
            event = poll(self._queue, 0)
            if not event:
                return
            self._note(event, at_ns)

    def take(self) -> Acks:
        self._read()
        taken, self._stamped = self._stamped, []
        return joined(taken)

    def close(self, timeout_seconds: float) -> Acks:
        self.rings(_NOBODY)
        deadline_ns = self._clock.mono_ns() + round(timeout_seconds * 1e9)
        while len(self._client) and self._clock.mono_ns() < deadline_ns:
            event = self._library.long.rd_kafka_queue_poll(self._queue, _WAIT_MS)
            if event:
                self._note(event, self._clock.mono_ns())
            self._read()  # what is held counts as still out
        self._client.purge()
        while event := self._library.quick.rd_kafka_queue_poll(self._queue, 0):
            self._note(event, self._clock.mono_ns())
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
        # What the addresses point to must live until the call has copied it: it hangs on these names.
        table, payloads = self._table(messages)
        keys = _point(table, "key", messages.key) if messages.key is not None else b""
        table["token"] = np.arange(messages.first_token, messages.first_token + count)
        taken = self._send_apart(np.array(messages.partition, dtype=np.int64), table)
        del payloads, keys
        return taken

    def _makes_room(self) -> bool:
        """Read what has been reported; say whether that took room in the client's queue."""
        self.serve()
        before = len(self._stamped)
        self._read()
        return len(self._stamped) > before

    def _send_rows(self, rows: Rows, count: int, token: int, at: int) -> int:
        """Send rows of the matrix to one partition: a few at a time, thousands of times a second."""
        if rows.matrix is not self._matrix:
            self._describe(rows.matrix)
        first = rows.first
        if token - first != self._token_of_row_0 or first + count > self._numbered:
            self._number(first, token)
        topic, partition = divmod(at, self._topics.partitions)
        taken: int = self._library.quick.rd_kafka_produce_batch(
            self._targets.get(topic) or self._target(topic),
            partition,
            COPY,
            self._of_rows_at + first * MESSAGE.itemsize,
            count,
        )
        if taken < count:
            self._refuse_errors(self._of_rows[first : first + count])
        return taken

    def _number(self, first: int, token: int) -> None:
        """Enter tokens from a row on for what follows, too: mostly rows and tokens rise together."""
        tokens = self._tokens[first : first + _NUMBERED]
        tokens[:] = np.arange(token, token + tokens.size)
        self._token_of_row_0, self._numbered = token - first, first + tokens.size

    def _describe(self, matrix: NDArray[np.uint8]) -> None:
        """Note where each row lies, once: the matrix is the same all through a run."""
        height, width = matrix.shape
        self._matrix = matrix
        self._of_rows = np.zeros(height, dtype=MESSAGE)
        self._of_rows["payload"] = matrix.ctypes.data + np.arange(height) * width
        self._of_rows["len"] = width
        self._of_rows_at = self._of_rows.ctypes.data
        self._tokens = self._of_rows["token"]
        self._numbered = 0

    def _table(self, messages: Outgoing) -> tuple[NDArray[np.void], object]:
        """Return the messages as the library reads them, and what their addresses point into."""
        rows, count = messages.rows, len(messages.payload)
        if rows is None:
            table = np.zeros(count, dtype=MESSAGE)
            return table, _point(table, "payload", [bytes(one) for one in messages.payload])
        if rows.matrix is not self._matrix:
            self._describe(rows.matrix)
        return self._of_rows[rows.first : rows.first + count].copy(), rows.matrix

    def _send_apart(self, partition: NDArray[np.int64], table: NDArray[np.void]) -> int:
        """Send to several partitions; a call takes what follows each other in one topic."""
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
            self._refuse_errors(table)
        return taken

    def _refuse_errors(self, table: NDArray[np.void]) -> None:
        """Raise what the client says of a message, unless its queue was full: that refuses the rest."""
        others = table["err"][(table["err"] != 0) & (table["err"] != _QUEUE_FULL)]
        if others.size:
            text = self._library.quick.rd_kafka_err2str(int(others[0])).decode()
            raise BrokerError(f"the client refuses to send: {text}")

    def _target(self, topic: int) -> int:
        name = self._topics.names[topic].encode()
        found = self._library.quick.rd_kafka_topic_new(self._handle, name, None)
        if not found:
            raise BrokerError(f"the client refuses the topic {self._topics.names[topic]}")
        self._targets[topic] = int(found)
        return int(found)

    def _note(self, event: int, at_ns: int) -> None:
        quick = self._library.quick
        if quick.rd_kafka_event_type(event) != DELIVERED:
            _kafka_events.tell(self._library, self._handle, event, self._log)
            quick.rd_kafka_event_destroy(event)
            return
        count = quick.rd_kafka_event_message_count(event)
        if self._held + count > self._reports.size:
            self._reports = np.resize(self._reports, 2 * (self._held + count))
            self._reports_at = self._reports.ctypes.data
        quick.rd_kafka_event_message_array(event, self._reports_at + 8 * self._held, count)
        self._events.append(event)
        self._sizes.append(count)
        self._came_ns.append(at_ns)
        self._held += count
        if self._held >= _MOST_HELD:
            self._read()

    def _read(self) -> None:
        """Read the reports that were stamped, and give their messages back to the library."""
        if not self._events:
            return
        found = gathered(self._reports[: self._held], MESSAGE)
        offset = np.where(found["offset"] < 0, UNKNOWN_OFFSET, found["offset"])
        offset[found["err"] != 0] = FAILED
        at_ns = np.repeat(np.array(self._came_ns, dtype=np.int64), self._sizes)
        self._stamped.append(Acks(found["token"].astype(np.int64), offset, at_ns))
        for event in self._events:
            self._library.long.rd_kafka_event_destroy(event)
        self._held = 0
        self._events, self._sizes, self._came_ns = [], [], []


def _behind(messages: Outgoing, count: int) -> Outgoing:
    """Return all but the first `count` of these."""
    rows, key = messages.rows, messages.key
    return Outgoing(
        messages.partition[count:],
        messages.payload[count:],
        messages.first_token + count,
        None if key is None else key[count:],
        None if rows is None else Rows(rows.matrix, rows.first + count),
    )


def _point(table: NDArray[np.void], what: str, parts: Sequence[bytes]) -> bytes:
    """Enter where each of these lies, and how long it is; return the bytes that hold them all."""
    whole = b"".join(parts)
    length = np.fromiter(map(len, parts), dtype=np.uint64, count=len(parts))
    begin = ctypes.cast(ctypes.c_char_p(whole), ctypes.c_void_p).value or 0
    table[what] = np.uint64(begin) + np.cumsum(length) - length
    table["len" if what == "payload" else f"{what}_len"] = length
    return whole
