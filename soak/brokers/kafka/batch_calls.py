"""The library behind the client: batched calls of librdkafka that its Python binding lacks.

They are made on the library that confluent-kafka has loaded, and on the handle of a client that it
created: settings, security and rare requests stay with the binding. The handle is read from the memory of
the binding's object, so `load_library` first checks that this version was verified, then that a handle
found so gives the right answers. Otherwise the public API serves, slower (docs/adr/0006).
"""

from __future__ import annotations

import ctypes
import logging
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import SimpleNamespace
from typing import Any

import confluent_kafka
import numpy as np
from confluent_kafka import cimpl
from numpy.typing import NDArray

from soak.clients.kafka_log import ClientLog
from soak.core.errors import NotAvailableError

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
"""Versions of confluent-kafka and librdkafka for which the tests of batched calls passed."""
_CLIENT_BYTES = 176  # of the binding's clients: behind the object's head comes the library's handle
_TEST_NAME = b"soakd-self-test"

_LOWEST, _HIGHEST = np.uint64(4096), np.uint64(2**48)  # bounds of any process's memory, also on ARM

_LEVELS = {4: logging.WARNING, 5: logging.INFO, 6: logging.INFO, 7: logging.DEBUG}
"""By level of syslog; all below 4 are errors."""

_POINTER, _INT, _SIZE, _TEXT = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t, ctypes.c_char_p
_CALLS: Mapping[str, tuple[Any, tuple[Any, ...]]] = {
    "version": (_INT, ()),
    "opaque": (_POINTER, (_POINTER,)),
    "conf": (_POINTER, (_POINTER,)),
    "conf_set_error_cb": (None, (_POINTER, _POINTER)),
    "name": (_TEXT, (_POINTER,)),
    "err2str": (_TEXT, (_INT,)),
    "fatal_error": (_INT, (_POINTER, _POINTER, _SIZE)),
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

    def fatal_error(self, handle: int) -> int:
        """Return the code of the error that has ended a client, 0 if none has."""
        return int(self.quick.rd_kafka_fatal_error(handle, None, 0))


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
