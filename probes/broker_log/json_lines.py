"""Log lines that are JSON objects, as of log4j's JSON layouts, of Docker and of log collectors."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping

from soak.core import json_text

_MESSAGES = ("message", "msg", "log", "MESSAGE")
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
_LAYERS = 3  # Docker wraps what a program has written as JSON
MAX_LINE = 2**16  # characters; deeper nesting than the parser allows does not fit


def messages(line: str) -> Iterator[str]:
    """Yield the texts in the usual fields of a JSON object, without a line break at the end."""
    for body in _objects(line):
        for key in _MESSAGES:
            text = body.get(key)
            if isinstance(text, str):
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
    """Yield the object, and those that it wraps as text."""
    for _ in range(_LAYERS):
        body = _parsed(line)
        if body is None:
            return
        yield body
        inner = (body.get(key) for key in _MESSAGES)
        line = next((text for text in inner if isinstance(text, str)), "")


def _parsed(line: str) -> Mapping[str, object] | None:
    if not line.startswith("{") or len(line) > MAX_LINE:
        return None
    try:
        body = json_text.loads(line)
    except (ValueError, RecursionError):  # cut, or text in braces
        return None
    return body if isinstance(body, Mapping) else None
