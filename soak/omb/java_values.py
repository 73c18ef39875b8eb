"""Values that Kafka's Java client takes and librdkafka refuses, to the nearest that it takes."""

from __future__ import annotations

import re

_WHOLE = re.compile(r"[+-]?[0-9]{1,18}")
_MOST = 2**31 - 1
_SPANS = {
    "batch.size": (1, _MOST),
    "connections.max.idle.ms": (0, _MOST),  # -1 there is 0 here: never
    "fetch.max.bytes": (1_000_000, _MOST - 512),  # not below its `message.max.bytes`
    "fetch.min.bytes": (1, 100_000_000),
    "max.in.flight.requests.per.connection": (1, 1_000_000),
    "max.partition.fetch.bytes": (1, 1_000_000_000),
    "max.poll.interval.ms": (1, 86_400_000),
    "message.max.bytes": (1_000, 1_000_000_000),
    "metadata.max.age.ms": (1, 86_400_000),
    "request.timeout.ms": (1, 900_000),
    "retry.backoff.ms": (1, 300_000),
    "socket.connection.setup.timeout.ms": (1_000, _MOST),
    "socket.receive.buffer.bytes": (0, 100_000_000),  # -1 there is 0 here: the system's own
    "socket.send.buffer.bytes": (0, 100_000_000),
}
"""What librdkafka 2.16 takes of settings of which Java's client takes more, by the names here."""
_NOTHING = {"ssl.endpoint.identification.algorithm": "none"}
"""What an empty value is called here."""


def whole(value: str) -> int | None:
    """Return a whole number as Java reads it, or None."""
    return int(value) if _WHOLE.fullmatch(value.strip()) else None


def taken(name: str, value: str) -> tuple[str, str]:
    """Return the value that librdkafka takes, and why it is another one, or ""."""
    if not value and name in _NOTHING:
        return _NOTHING[name], f"empty is {_NOTHING[name]} here"
    number = whole(value)
    if number is None or name not in _SPANS:
        return value, ""
    low, high = _SPANS[name]
    fitting = min(max(number, low), high)
    if fitting == number:
        return value, ""
    return str(fitting), f"{number} is {fitting} here: librdkafka takes {low} to {high}"
