"""What librdkafka puts into a queue beside reports: lines of its log, and the error that ends a client."""

from __future__ import annotations

import ctypes
import logging

from soak.brokers._librdkafka import SAID, WRONG, Library
from soak.clients.kafka_log import ClientLog

_LEVELS = {5: logging.INFO, 6: logging.INFO, 7: logging.DEBUG, 4: logging.WARNING}
"""Of syslog's; all below 4 are errors."""


def tell(library: Library, handle: int, event: int, log: ClientLog) -> None:
    """Log an event in the binding's form; like it, leave out errors that the client gets over."""
    kind = library.quick.rd_kafka_event_type(event)
    name = library.quick.rd_kafka_name(handle).decode()
    if kind == WRONG and library.quick.rd_kafka_event_error_is_fatal(event):
        text = library.quick.rd_kafka_event_error_string(event) or b""
        log.log(logging.ERROR, "%s [%s] %s", "ERROR", name, text.decode(errors="replace"))
    elif kind == SAID:
        facility, line, level = ctypes.c_char_p(), ctypes.c_char_p(), ctypes.c_int()
        where = (ctypes.addressof(one) for one in (facility, line, level))
        library.quick.rd_kafka_event_log(event, *where)
        words = [(one.value or b"").decode(errors="replace") for one in (facility, line)]
        log.log(_LEVELS.get(level.value, logging.ERROR), "%s [%s] %s", words[0], name, words[1])
