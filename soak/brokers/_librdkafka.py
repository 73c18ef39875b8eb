"""librdkafka's calls for whole batches, which its Python binding lacks: no object and no call a message.

They are made on the library that confluent-kafka has loaded, and on the handle of a client that it made:
settings, security and everything that is asked for seldom stay with the binding. Where either is not as
known, `load` says so and the binding's own calls serve.
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

import numpy as np
from confluent_kafka import cimpl
from numpy.typing import NDArray

from soak.core.errors import NotAvailableError

LOG = logging.getLogger("soak.brokers.kafka")

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
DELIVERED, SAID, WRONG = 0x1, 0x4, 0x8  # RD_KAFKA_EVENT_DR, _LOG, _ERROR

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


def load() -> Library | None:
    """Return the library, or None, and the log says why, where it is not as it is known."""
    try:
        return _load()
    except (NotAvailableError, AttributeError, OSError) as error:
        LOG.warning("batch_calls_unavailable reason=%r", str(error))
        return None


def gathered(addresses: NDArray[np.uint64], what: np.dtype[np.void]) -> NDArray[np.void]:
    """Return copies of what lies at these addresses, shape (n,)."""
    return _everywhere(what.itemsize)[(addresses - _LOWEST).astype(np.int64)].view(what)


@cache
def _everywhere(size: int) -> NDArray[np.void]:
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


def _load() -> Library:
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
