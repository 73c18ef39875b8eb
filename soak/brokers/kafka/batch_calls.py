"""Batched calls of librdkafka that its Python binding lacks: one call for many messages.

They are made on the library that confluent-kafka has loaded, and on the handle of a client that it
created: settings, security and rare requests stay with the binding. The handle is read from the memory of
the binding's object, so `load_library` first checks that this version was verified, then that a handle
found so gives the right answers. Otherwise the public API serves, slower (docs/adr/0006).
"""

from __future__ import annotations

import ctypes
import logging
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import confluent_kafka
import numpy as np
from confluent_kafka import KafkaError, cimpl
from numpy.typing import NDArray

from soak.brokers.kafka.consumer import Fetched, FetchError, partition_text
from soak.brokers.kafka.producer import concatenate_acks
from soak.clients.kafka_log import ClientLog
from soak.clients.kafka_throttle import ThrottleTimes
from soak.core import header
from soak.core.errors import BrokerError, NotAvailableError
from soak.core.ports import FAILED_OFFSET, UNKNOWN_OFFSET, Acks, Clock, Outgoing, Rows, Topics
from soak.core.units import SECOND_NS

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
DELIVERY_EVENT, LOG_EVENT, ERROR_EVENT, STATS_EVENT = 0x1, 0x4, 0x8, 0x40  # RD_KAFKA_EVENT_DR, ...

_VERIFIED = frozenset({("2.16.1", "2.16.0")})
"""Versions of confluent-kafka and librdkafka for which the tests of this module passed."""
_CLIENT_BYTES = 176  # of the binding's clients: behind the object's head comes the library's handle
_TEST_NAME = b"soakd-self-test"

_LOWEST, _HIGHEST = np.uint64(4096), np.uint64(2**48)  # bounds of any process's memory, also on ARM
_HEAD = np.dtype((np.void, header.SIZE))

_QUEUE_FULL = KafkaError._QUEUE_FULL  # noqa: SLF001  # its public name
_FATAL = KafkaError._FATAL  # noqa: SLF001  # as above
_MAX_EVENTS = 100  # a call of `serve`
_MAX_UNREAD_REPORTS = 1000  # until they are read, their messages fill the client's queue
_NUMBERED = 1024  # rows at a time
_WAIT_MS = 10
_WAKE_UP = (1).to_bytes(8, sys.byteorder)
_NO_DESCRIPTOR = -1

_SERVE_NS = SECOND_NS // 10
_COLLECT_NS = SECOND_NS // 5

_LEVELS = {4: logging.WARNING, 5: logging.INFO, 6: logging.INFO, 7: logging.DEBUG}
"""By level of syslog; all below 4 are errors."""

_ERROR_CALLBACK = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p
)
"""`error_cb` of the library: client, code, reason, opaque."""

_POINTER, _INT, _SIZE, _TEXT = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t, ctypes.c_char_p
_CALLS: Mapping[str, tuple[Any, tuple[Any, ...]]] = {
    "version": (_INT, ()),
    "opaque": (_POINTER, (_POINTER,)),
    "conf": (_POINTER, (_POINTER,)),
    "conf_set_error_cb": (None, (_POINTER, _POINTER)),
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
    "event_stats": (_TEXT, (_POINTER,)),
    "event_destroy": (None, (_POINTER,)),
    "consume_queue": (_POINTER, (_POINTER, _INT)),
    "consume_batch_queue": (ctypes.c_ssize_t, (_POINTER, _INT, _POINTER, _SIZE)),
    "message_errstr": (_TEXT, (_POINTER,)),
    "message_destroy": (None, (_POINTER,)),
}


@dataclass(frozen=True, slots=True)
class Library:
    """The same calls twice: `quick` holds the interpreter's lock, for calls that return at once."""

    quick: ctypes.PyDLL
    long: ctypes.CDLL

    def handle_of(self, client: Any) -> int:  # noqa: ANN401  # either client
        """Return the library's handle of a client of the binding.

        Raises:
            NotAvailableError: the handle names another owner than this client.
        """
        handle = _POINTER.from_address(id(client) + object.__basicsize__).value or 0
        if self.quick.rd_kafka_opaque(handle) != id(client):
            raise NotAvailableError("the client's handle is not where it was expected")
        return handle


def installed_versions() -> tuple[str, str]:
    """Return the versions of confluent-kafka and of librdkafka."""
    return str(confluent_kafka.__version__), str(confluent_kafka.libversion()[0])


@cache
def load_library() -> Library:
    """Return the library, after a self-test on a client without brokers.

    Raises:
        NotAvailableError: the versions are not verified, or the self-test failed, and why.
    """
    check_versions(*installed_versions())
    sizes = {kind.__basicsize__ for kind in (cimpl.Producer, cimpl.Consumer)}
    if sizes != {_CLIENT_BYTES}:
        raise NotAvailableError(f"the binding's clients take {sizes} bytes, not {_CLIENT_BYTES}")
    try:
        library = _open_library()
        _self_test(library)
    except (AttributeError, OSError) as error:
        raise NotAvailableError(f"a call of librdkafka is missing: {error}") from error
    return library


def check_versions(binding: str, library: str) -> None:
    """Refuse versions whose layout in memory is not known; reads no memory itself.

    Raises:
        NotAvailableError: the batched calls were not verified with these versions.
    """
    if sys.implementation.name != "cpython":
        raise NotAvailableError(f"the interpreter is {sys.implementation.name}, not CPython")
    if (binding, library) not in _VERIFIED:
        raise NotAvailableError(
            f"confluent-kafka {binding} with librdkafka {library} is not a verified version"
        )


def _open_library() -> Library:
    # The binding's module gives access to the library that it is linked with, wherever that is.
    library = Library(ctypes.PyDLL(cimpl.__file__), ctypes.CDLL(cimpl.__file__))
    for name, (result, arguments) in _CALLS.items():
        for calls in (library.quick, library.long):
            call = getattr(calls, f"rd_kafka_{name}")
            call.restype, call.argtypes = result, arguments
    return library


def _self_test(library: Library) -> None:
    """Compare answers about a new client with values known beforehand.

    Raises:
        NotAvailableError: one of them differs.
    """
    quick = library.quick
    if quick.rd_kafka_version() != confluent_kafka.libversion()[1]:
        raise NotAvailableError("the library that was opened is not the binding's")
    settings = {"client.id": _TEST_NAME.decode(), "log_level": "0"}
    client = confluent_kafka.Producer(settings)
    handle = library.handle_of(client)
    name: bytes = quick.rd_kafka_name(handle)
    if not name.startswith(_TEST_NAME):
        raise NotAvailableError(f"the handle of a client answers with the name {name!r}")
    topic = quick.rd_kafka_topic_new(handle, _TEST_NAME, None)
    if not topic:
        raise NotAvailableError("the handle of a client creates no topic")
    name = quick.rd_kafka_topic_name(topic)
    quick.rd_kafka_topic_destroy(topic)
    if name != _TEST_NAME:
        raise NotAvailableError(f"a topic answers with the name {name!r}")


def copy_structs(addresses: NDArray[np.uint64], kind: np.dtype[np.void]) -> NDArray[np.void]:
    """Return copies of the structures at these addresses, shape (n,)."""
    return _whole_memory(kind.itemsize)[(addresses - _LOWEST).astype(np.int64)].view(kind)


@cache
def _whole_memory(size: int) -> NDArray[np.void]:
    """Return the memory as an array with an item of this size at every byte, for numpy to pick from."""
    count = int(_HIGHEST - _LOWEST) - size
    memory = SimpleNamespace(
        __array_interface__={
            "version": 3,
            "data": (int(_LOWEST), True),  # read-only
            "shape": (count,),
            "strides": (1,),
            "typestr": f"|V{size}",
        }
    )
    return np.asarray(memory)


def log_event(library: Library, handle: int, event: int, log: ClientLog) -> None:
    """Log an event as the binding does; like it, leave out errors that the client recovers from."""
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
            text = self._library.quick.rd_kafka_err2str(int(others[0])).decode()
            raise BrokerError(f"the client refuses to send: {text}")

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
        self._callback = _ERROR_CALLBACK(
            self._on_error
        )  # must live as long as the library may call it
        self._settings = quick.rd_kafka_conf(handle)
        quick.rd_kafka_conf_set_error_cb(self._settings, ctypes.cast(self._callback, _POINTER))
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
