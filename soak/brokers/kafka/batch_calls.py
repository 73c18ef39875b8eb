"""Batch calls of librdkafka that its Python binding lacks: one call for many messages."""

from __future__ import annotations

import ctypes
import logging
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import confluent_kafka
import numpy as np
from confluent_kafka import cimpl
from numpy.typing import NDArray

from soak.brokers.kafka.producer import concatenate_acks
from soak.clients.kafka_log import ClientLog
from soak.core.errors import BrokerError, NotAvailableError
from soak.core.ports import FAILED_OFFSET, UNKNOWN_OFFSET, Acks, Clock, Outgoing, Rows, Topics

LOG = logging.getLogger("soak.brokers.kafka.broker")

MESSAGE = np.dtype(
    {
        "names": ["err", "rkt", "partition", "payload", "len", "key", "key_len", "offset", "token"],
        "formats": ["<i4", "<u8", "<i4", "<u8", "<u8", "<u8", "<u8", "<i8", "<u8"],
        "offsets": [0, 8, 16, 24, 32, 40, 48, 56, 64],
        "itemsize": 72,
    }
)
"""`rd_kafka_message_t`, part of the library's stable interface; `token` is its `_private`."""

COPY, PER_MESSAGE = 0x2, 0x8  # RD_KAFKA_MSG_F_COPY, RD_KAFKA_MSG_F_PARTITION
DELIVERY_EVENT, LOG_EVENT, ERROR_EVENT = 0x1, 0x4, 0x8  # RD_KAFKA_EVENT_DR, _LOG, _ERROR

_MAJOR = 2
_LOWEST, _HIGHEST = (
    np.uint64(4096),
    np.uint64(2**48),
)  # no process has anything outside; on ARM up to there
_CLIENT_BYTES = 176  # of the binding's clients: behind the object's head comes the library's handle
_POINTER, _INT, _SIZE, _TEXT = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t, ctypes.c_char_p
_CALLS: Mapping[str, tuple[Any, tuple[Any, ...]]] = {
    "version": (_INT, ()),
    "opaque": (_POINTER, (_POINTER,)),
    "name": (_TEXT, (_POINTER,)),
    "err2str": (_TEXT, (_INT,)),
    "topic_new": (_POINTER, (_POINTER, _TEXT, _POINTER)),
    "topic_name": (_TEXT, (_POINTER,)),
    "topic_destroy": (None, (_POINTER,)),
    "produce_batch": (_INT, (_POINTER, ctypes.c_int32, _INT, _POINTER, _INT)),
    "queue_new": (_POINTER, (_POINTER,)),
    "queue_get_main": (_POINTER, (_POINTER,)),
    "queue_get_partition": (_POINTER, (_POINTER, _TEXT, ctypes.c_int32)),
    "queue_forward": (None, (_POINTER, _POINTER)),
    "queue_io_event_enable": (None, (_POINTER, _INT, _TEXT, _SIZE)),
    "queue_destroy": (None, (_POINTER,)),
    "queue_poll": (_POINTER, (_POINTER, _INT)),
    "event_type": (_INT, (_POINTER,)),
    "event_message_count": (_SIZE, (_POINTER,)),
    "event_message_array": (_SIZE, (_POINTER, _POINTER, _SIZE)),
    "event_log": (_INT, (_POINTER, _POINTER, _POINTER, _POINTER)),
    "event_error_is_fatal": (_INT, (_POINTER,)),
    "event_error_string": (_TEXT, (_POINTER,)),
    "event_destroy": (None, (_POINTER,)),
    "consume_queue": (_POINTER, (_POINTER, _INT)),
    "consume_batch_queue": (ctypes.c_ssize_t, (_POINTER, _INT, _POINTER, _SIZE)),
    "message_errstr": (_TEXT, (_POINTER,)),
    "message_destroy": (None, (_POINTER,)),
}


@dataclass(frozen=True, slots=True)
class Library:
    """The same calls twice: `quick` keeps the interpreter's lock, for what neither waits nor works long."""

    quick: ctypes.PyDLL
    long: ctypes.CDLL

    def handle_of(self, client: Any) -> int:  # noqa: ANN401  # either client
        """Return the library's handle of a client of the binding."""
        handle = _POINTER.from_address(id(client) + object.__basicsize__).value or 0
        if self.quick.rd_kafka_opaque(handle) != id(client):
            raise NotAvailableError("the client's handle is not where it was expected")
        return handle


def load_library() -> Library | None:
    """Return the library, or None, and the log says why, where it is not as it is known."""
    try:
        return _load_library()
    except (NotAvailableError, AttributeError, OSError) as error:
        LOG.warning("batch_calls_unavailable reason=%r", str(error))
        return None


def copy_structs(addresses: NDArray[np.uint64], what: np.dtype[np.void]) -> NDArray[np.void]:
    """Return copies of what lies at these addresses, shape (n,)."""
    return _whole_memory(what.itemsize)[(addresses - _LOWEST).astype(np.int64)].view(what)


@cache
def _whole_memory(size: int) -> NDArray[np.void]:
    """Return the memory as if something of this size lay at every byte: numpy picks addresses in one go."""
    count = int(_HIGHEST - _LOWEST) - size
    seen = SimpleNamespace(
        __array_interface__={
            "version": 3,
            "data": (int(_LOWEST), True),  # nothing is written there
            "shape": (count,),
            "strides": (1,),
            "typestr": f"|V{size}",
        }
    )
    return np.asarray(seen)


def _load_library() -> Library:
    if sys.implementation.name != "cpython":
        raise NotAvailableError(f"the interpreter is {sys.implementation.name}")
    sizes = {kind.__basicsize__ for kind in (cimpl.Producer, cimpl.Consumer)}
    if sizes != {_CLIENT_BYTES}:
        raise NotAvailableError(f"the binding's clients take {sizes} bytes, not {_CLIENT_BYTES}")
    # What the binding's module is linked with is found through it, wherever that lies.
    found = Library(ctypes.PyDLL(cimpl.__file__), ctypes.CDLL(cimpl.__file__))
    for name, (result, arguments) in _CALLS.items():
        for library in (found.quick, found.long):
            call = getattr(library, f"rd_kafka_{name}")
            call.restype, call.argtypes = result, arguments
    version = found.quick.rd_kafka_version() >> 24
    if version != _MAJOR:
        raise NotAvailableError(f"librdkafka has the major version {version}, not {_MAJOR}")
    return found


# --- What librdkafka puts into a queue beside reports: lines of its log, and the error that ends a client.

_LEVELS = {5: logging.INFO, 6: logging.INFO, 7: logging.DEBUG, 4: logging.WARNING}
"""Of syslog's; all below 4 are errors."""


def log_event(library: Library, handle: int, event: int, log: ClientLog) -> None:
    """Log an event in the binding's form; like it, leave out errors that the client gets over."""
    kind = library.quick.rd_kafka_event_type(event)
    name = library.quick.rd_kafka_name(handle).decode()
    if kind == ERROR_EVENT and library.quick.rd_kafka_event_error_is_fatal(event):
        text = library.quick.rd_kafka_event_error_string(event) or b""
        log.log(logging.ERROR, "%s [%s] %s", "ERROR", name, text.decode(errors="replace"))
    elif kind == LOG_EVENT:
        facility, line, level = ctypes.c_char_p(), ctypes.c_char_p(), ctypes.c_int()
        where = (ctypes.addressof(one) for one in (facility, line, level))
        library.quick.rd_kafka_event_log(event, *where)
        words = [(one.value or b"").decode(errors="replace") for one in (facility, line)]
        log.log(_LEVELS.get(level.value, logging.ERROR), "%s [%s] %s", words[0], name, words[1])


# --- Kafka's producing side by librdkafka's batch calls: a call a chunk, and one a batch of delivery reports.

_QUEUE_FULL = confluent_kafka.KafkaError._QUEUE_FULL  # noqa: SLF001  # its public name
_MAX_EVENTS = 100  # a call of `serve`
_MAX_UNREAD_REPORTS = (
    1000  # reports; their messages take room in the client's queue until these are read
)
_NUMBERED = 1024  # rows at a time
_WAIT_MS = 10
_WAKE_UP = (1).to_bytes(8, sys.byteorder)
_NO_DESCRIPTOR = -1


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
        self._reports = np.zeros(2 * _MAX_UNREAD_REPORTS, dtype=np.uint64)  # where they lie
        self._reports_at = self._reports.ctypes.data
        self._held = 0
        self._events: list[int] = []
        self._sizes: list[int] = []  # of the events, in reports
        self._came_ns: list[int] = []
        self._stamped: list[Acks] = []

    def rings(self, bell: int) -> bool:
        self._library.quick.rd_kafka_queue_io_event_enable(
            self._queue, bell, _WAKE_UP, len(_WAKE_UP)
        )
        self.serve()  # it rings when the queue is no longer empty: it must have been
        return True

    def send(self, messages: Outgoing) -> int:
        taken = self._send(messages)
        if taken < len(messages.payload) and self._makes_room():
            taken += self._send(_without_first(messages, taken))
        return taken

    def serve(self) -> None:
        poll = self._library.quick.rd_kafka_queue_poll
        for _ in range(_MAX_EVENTS):
            # It had come before the call that hands it out: its start is nearest to the arrival.
            at_ns = self._clock.mono_ns()
            event = poll(self._queue, 0)
            if not event:
                return
            self._note(event, at_ns)

    def take(self) -> Acks:
        self._read()
        taken, self._stamped = self._stamped, []
        return concatenate_acks(taken)

    def close(self, timeout_seconds: float) -> Acks:
        self.rings(_NO_DESCRIPTOR)
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
        keys = _fill_addresses(table, "key", messages.key) if messages.key is not None else b""
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
            return table, _fill_addresses(
                table, "payload", [bytes(one) for one in messages.payload]
            )
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
        if quick.rd_kafka_event_type(event) != DELIVERY_EVENT:
            log_event(self._library, self._handle, event, self._log)
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
        if self._held >= _MAX_UNREAD_REPORTS:
            self._read()

    def _read(self) -> None:
        """Read the reports that were stamped, and give their messages back to the library."""
        if not self._events:
            return
        found = copy_structs(self._reports[: self._held], MESSAGE)
        offset = np.where(found["offset"] < 0, UNKNOWN_OFFSET, found["offset"])
        offset[found["err"] != 0] = FAILED_OFFSET
        at_ns = np.repeat(np.array(self._came_ns, dtype=np.int64), self._sizes)
        self._stamped.append(Acks(found["token"].astype(np.int64), offset, at_ns))
        for event in self._events:
            self._library.long.rd_kafka_event_destroy(event)
        self._held = 0
        self._events, self._sizes, self._came_ns = [], [], []


def _without_first(messages: Outgoing, count: int) -> Outgoing:
    """Return all but the first `count` of these."""
    rows, key = messages.rows, messages.key
    return Outgoing(
        messages.partition[count:],
        messages.payload[count:],
        messages.first_token + count,
        None if key is None else key[count:],
        None if rows is None else Rows(rows.matrix, rows.first + count),
    )


def _fill_addresses(table: NDArray[np.void], what: str, parts: Sequence[bytes]) -> bytes:
    """Enter where each of these lies, and how long it is; return the bytes that hold them all."""
    whole = b"".join(parts)
    length = np.fromiter(map(len, parts), dtype=np.uint64, count=len(parts))
    begin = ctypes.cast(ctypes.c_char_p(whole), ctypes.c_void_p).value or 0
    table[what] = np.uint64(begin) + np.cumsum(length) - length
    table["len" if what == "payload" else f"{what}_len"] = length
    return whole
