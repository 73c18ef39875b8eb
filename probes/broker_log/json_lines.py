"""Log lines that are JSON objects, as of log4j's JSON layouts, of Docker and of log collectors."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping

from soak.core import json_text

_MESSAGES = frozenset(
    {
        "message",
        "msg",
        "log",
        "line",
        "body",
        "event",
        "textpayload",
        "@message",
        "short_message",
        "full_message",
        "_raw",
    }
)
_TIMESTAMPS = (
    "@timestamp",
    "timestamp",
    "time",
    "ts",
    "asctime",
    "datetime",
    "date",
    "timeMillis",
    "timestampMs",
    "instant",
    "__REALTIME_TIMESTAMP",
)
_LIKE_TIMESTAMPS = re.compile(r"time|stamp|^@t$", re.IGNORECASE)
"""Names of other fields, whose text is one if it begins with a date."""
_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_FIRST_MILLISECOND = 1e11  # a smaller number counts seconds
LAYERS = 3  # Docker wraps what a program has written as JSON
MAX_LINE = 2**16  # characters; deeper nesting than the parser allows does not fit


def messages(line: str) -> Iterator[str]:
    """Yield the texts in the usual fields of a JSON object, and of those that it wraps, the outer ones first.

    Without a line break at the end.
    """
    for body in _objects(line):
        for text in _texts(body):
            yield text.rstrip("\r\n")


def timestamp(line: str) -> str:
    """Return the timestamp of a JSON object as text, a number as its digits; "" if it has none."""
    for body in _objects(line):
        instant = body.get("instant")
        if isinstance(instant, Mapping):
            seconds, nanos = instant.get("epochSecond"), instant.get("nanoOfSecond", 0)
            if isinstance(seconds, int) and isinstance(nanos, int) and nanos >= 0:
                return f"{seconds}.{nanos:09d}"
        for key in _TIMESTAMPS:
            value = body.get(key)
            if isinstance(value, str):
                return value.strip()
            if isinstance(value, float) and math.isfinite(value):
                return f"{value:.6f}" if value < _FIRST_MILLISECOND else f"{value:.0f}"
            if isinstance(value, int) and not isinstance(value, bool):
                return str(value)
        for key, value in body.items():
            if isinstance(value, str) and _LIKE_TIMESTAMPS.search(key) and _DATE.match(value):
                return value
    return ""


def _objects(line: str) -> Iterator[Mapping[str, object]]:
    """Yield the object that a line ends with, and those that it wraps as text."""
    body = _parsed(line)
    for _ in range(LAYERS):
        if body is None:
            return
        yield body
        inner = (_parsed(text) for text in _texts(body))
        body = next((one for one in inner if one is not None), None)


def _texts(body: Mapping[str, object]) -> list[str]:
    return [
        text for key, text in body.items() if key.lower() in _MESSAGES and isinstance(text, str)
    ]


def _parsed(line: str) -> Mapping[str, object] | None:
    """Return the object, which may follow the prefix of a container runtime or of syslog."""
    _, begins, rest = line.rstrip().partition("{")
    if not begins or not rest.endswith("}") or len(rest) > MAX_LINE:
        return None
    try:
        body = json_text.loads(begins + rest)
    except (ValueError, RecursionError):  # cut, or text in braces
        return None
    return body if isinstance(body, Mapping) else None
