"""The text format of a journal: one line holds JSON, a tab and the crc32 of the JSON's bytes.

A `columns` line names what the numbers mean and carries the format's version; a record refers to it by id.

`decode` is the gate for every line, whether a drive, a topic or another host's folder holds it: what it
returns is in the ranges that this module names, so the code behind it need not look again. A checksum says
only that a line is as it was written.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import pairwise
from typing import Any, TypeVar

import orjson

from soak.core.errors import JournalError
from soak.core.model import Column, Event, Record, Span

VERSION = 1

MAX_LINE_BYTES = 16 * 2**20
MAX_INTERVAL = 10**8 - 1  # three years of seconds
MAX_EPOCH = 2**31 - 1
MAX_TIME_NS = 2**62  # in the year 2116
MAX_LENGTH_NS = 2**61
MAX_COLUMNS = 20_000  # a probe daemon records at most 5,000
MAX_HISTOGRAMS = 1000
MAX_HISTOGRAM_BYTES = 2**18
MAX_EVENTS = 10_000  # a probe has at most 1,000 between two readings
MAX_FIELDS = 64  # of an event, a label set, or the validity of a record
MAX_NAME_CHARACTERS = 300  # of metrics, units, kinds and keys
MAX_TEXT_CHARACTERS = 8192  # of labels and fields
MAX_PARTITION = 2**20 - 1
MAX_COUNT = 10**10  # of messages of a client in an interval
MAX_LISTED_BYTES = MAX_LINE_BYTES // 2  # of all columns of a line, or all events of a record

RENAMED_EVENTS = {
    "unexplained_hole": "offset_gap",
    "explained_hole": "offset_gap_resolved",
    "clock_not_kept": "clock_unsynchronised",
    "clock_kept_again": "clock_synchronised",
}
"""Event kinds of older journals, and what they are called now."""


@dataclass(frozen=True, slots=True)
class Columns:
    """A `columns` line: the columns of the records that refer to its id."""

    id: str
    columns: tuple[Column, ...]


@dataclass(frozen=True, slots=True)
class End:
    """The line that closes a source when it ends on purpose; `epoch` is the one that ended."""

    epoch: int


Line = Columns | Record | End


class DamagedLineError(ValueError):
    """A line is not what the writer wrote."""


def columns_line(columns: Sequence[Column]) -> Columns:
    """Return the line for these columns; equal columns have equal ids."""
    text = json.dumps([column.to_json() for column in columns], separators=(",", ":"))
    return Columns(hashlib.sha256(text.encode()).hexdigest()[:12], tuple(columns))


def encode(line: Line) -> bytes:
    """Return the bytes of one line, newline included."""
    body = json.dumps(_line_json(line), separators=(",", ":"), allow_nan=False).encode()
    return b"%s\t%08x\n" % (body, zlib.crc32(body))


def decode(raw: bytes, *, is_foreign: bool = False) -> Line:
    """Return the content of one line, with or without its newline; all of it is within the bounds above.

    `is_foreign`: the id of columns must be that of their text. In a journal any id holds, as a copy may have
    the labels of a column in another order.

    Raises:
        DamagedLineError: crc, shape or a value are wrong.
        JournalError: the line was written by a newer version of the format.
    """
    if len(raw) > MAX_LINE_BYTES:
        raise DamagedLineError(f"a line of more than {MAX_LINE_BYTES:,} bytes")
    body, _, crc = raw.rstrip(b"\n").rpartition(b"\t")
    try:
        if int(crc, 16) != zlib.crc32(body):
            raise DamagedLineError("crc does not match")
        # refuses NaN, infinity, half a surrogate pair and more than 1,024 levels
        return _parse(orjson.loads(body), is_foreign=is_foreign)
    except _NOT_A_LINE as error:
        raise DamagedLineError(f"{error!s:.300}") from error


def readable_columns(columns: Sequence[Column]) -> tuple[tuple[Column, ...], str]:
    """Return the columns that a line may have, and why the first of the others may not, or nothing.

    What a source names may be out of the bounds of `decode`, which would refuse all of the line.
    """
    return _readable(columns, map(_checked_column, columns), MAX_COLUMNS)


def readable_events(events: Sequence[Event]) -> tuple[tuple[Event, ...], str]:
    """Return the events that a record may have, and why the first of the others may not, or nothing."""
    return _readable(events, map(_checked_event, events), MAX_EVENTS - 1)  # one counts the others


_Listed = TypeVar("_Listed", Column, Event)


def _readable(
    listed: Sequence[_Listed], checked: Iterable[tuple[int, str]], limit: int
) -> tuple[tuple[_Listed, ...], str]:
    kept: list[_Listed] = []
    first, room = "", MAX_LISTED_BYTES
    for one, (size, why) in zip(listed, checked, strict=True):
        if not why and (size > room or len(kept) == limit):
            why = "more than a line has room for"  # noqa: PLW2901  # the reason of this one
        if why:
            first = first or why
        else:
            kept.append(one)
            room -= size
    return tuple(kept), first


@lru_cache(maxsize=8192)
def _checked_column(column: Column) -> tuple[int, str]:
    """Return the size of a column in a line, and why `decode` refuses it, or nothing."""
    return _checked(column.to_json, _parse_column)


def _checked_event(event: Event) -> tuple[int, str]:
    return _checked(partial(_event_json, event), _parse_event)


def _checked(
    to_json: Callable[[], dict[str, object]], parse: Callable[[dict[str, object]], object]
) -> tuple[int, str]:
    try:
        text = json.dumps(to_json(), allow_nan=False)
        parse(orjson.loads(text))
    except _NOT_A_LINE as error:
        return 0, f"{error!s:.300}"
    return len(text), ""


_LARGEST = 2**63 - 1
_NOT_A_LINE = (
    ValueError,
    KeyError,
    TypeError,
    IndexError,
    AttributeError,
    OverflowError,
    RecursionError,  # the reader goes deeper than what writes a list, as into the message of an error
)
"""The errors that foreign JSON with a valid checksum raises in this parser."""
_STREAM = re.compile(r"(\d{1,10})\.(\d{1,10})\.(\d{1,7})", re.ASCII)


def _line_json(line: Line) -> dict[str, object]:
    match line:
        case Columns(id=name, columns=columns):
            listed = [column.to_json() for column in columns]
            return {"t": "c", "version": VERSION, "id": name, "columns": listed}
        case End(epoch=epoch):
            return {"t": "end", "inc": epoch}
        case Record():
            return _record_json(line)


def _record_json(record: Record) -> dict[str, object]:
    values = [value if math.isfinite(value) else None for value in record.values]
    body: dict[str, object] = {
        "t": "r",
        "c": record.columns_id,
        "k": record.k,
        "inc": record.epoch,
        "at_ns": record.at_ns,
        "length_ns": record.length_ns,
        "v": values,
    }
    optional: dict[str, object] = {
        "h": dict(record.histograms),
        "a": {stream: list(map(list, spans)) for stream, spans in record.acknowledged.items()},
        "g": {stream: list(map(list, spans)) for stream, spans in record.received.items()},
        "n": dict(record.sent_next),
        "e": [_event_json(event) for event in record.events],
        "trust": dict(record.validity),
    }
    body.update({key: value for key, value in optional.items() if value})
    return body


def _event_json(event: Event) -> dict[str, object]:
    return {
        "kind": event.kind,
        "at_ns": event.at_ns,
        "since_ns": event.since_ns,
        "fields": dict(event.fields),
    }


def _parse(body: dict[str, object], *, is_foreign: bool) -> Line:
    match body["t"]:
        case "r":
            return _parse_record(body)
        case "c":
            return _parse_columns(body, is_foreign=is_foreign)
        case "end":
            return End(_within("epoch", body["inc"], 0, MAX_EPOCH))
        case other:
            raise DamagedLineError(f"unknown line type {other!r:.100}")


def _parse_columns(body: dict[str, object], *, is_foreign: bool) -> Columns:
    version = body["version"]
    if not isinstance(version, int) or version > VERSION:
        raise JournalError(
            f"journal of version {version!s:.20}; this program reads up to {VERSION}"
        )
    listed = body["columns"]
    if not isinstance(listed, list):
        raise DamagedLineError("columns is not a list")
    if len(listed) > MAX_COLUMNS:
        raise DamagedLineError(f"{len(listed):,} columns, more than {MAX_COLUMNS:,}")
    name = body["id"]
    if not isinstance(name, str) or len(name) > MAX_NAME_CHARACTERS:
        raise DamagedLineError(f"columns under the id {name!r:.40}")
    if is_foreign and name != _id_of(listed):
        raise DamagedLineError(f"columns under the id {name!r:.40}, which is not their own")
    return Columns(name, tuple(map(_parse_column, listed)))


def _id_of(listed: list[object]) -> str:
    text = json.dumps(listed, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _parse_column(found: dict[str, object]) -> Column:
    column = Column.from_json(found)
    _bounded("labels", column.labels, MAX_FIELDS)
    _bounded("the metric's name", column.metric, MAX_NAME_CHARACTERS)
    _bounded("the unit", column.unit, MAX_NAME_CHARACTERS)
    for key, value in column.labels:
        _bounded("a label's name", key, MAX_NAME_CHARACTERS)
        _bounded("a label", value, MAX_TEXT_CHARACTERS)
    return column


def _parse_record(raw: dict[str, object]) -> Record:
    body: dict[str, Any] = raw  # shapes raise below
    found = raw["v"]
    if not isinstance(found, list):
        raise DamagedLineError("values are not a list")
    _bounded("values", found, MAX_COLUMNS)
    # a product with a float, which no text has, and JSON has no infinity
    values = tuple([math.nan if value is None else value * 1.0 for value in found])
    events = raw.get("e", ())
    _bounded("events", events, MAX_EVENTS)
    name = raw["c"]
    if not isinstance(name, str):
        raise DamagedLineError(f"columns_id is {name!r:.100}")
    return Record(
        k=_within("interval", raw["k"], 0, MAX_INTERVAL),
        epoch=_within("epoch", raw["inc"], 0, MAX_EPOCH),
        at_ns=_within("at_ns", raw["at_ns"], -MAX_TIME_NS, MAX_TIME_NS),
        length_ns=_within("length_ns", raw["length_ns"], -MAX_LENGTH_NS, MAX_LENGTH_NS),
        columns_id=name,
        values=values,
        histograms=_parse_histograms(body["h"]) if "h" in raw else {},
        acknowledged=_parse_spans(body["a"]) if "a" in raw else {},
        received=_parse_spans(body["g"]) if "g" in raw else {},
        sent_next=_parse_next(body["n"]) if "n" in raw else {},
        events=tuple(map(_parse_event, events)),  # type: ignore[call-overload]  # TypeError
        validity=_plain(raw["trust"]) if "trust" in raw else {},
    )


def _parse_histograms(found: dict[str, object]) -> dict[str, str]:
    """Return encoded histograms by the name of their column; `soak.core.histogram` bounds what they hold."""
    _bounded("histograms", found, MAX_HISTOGRAMS)
    for text in found.values():
        if not isinstance(text, str) or len(text) > MAX_HISTOGRAM_BYTES:
            raise DamagedLineError("a histogram is not a text of 256 KiB at most")
    return found  # type: ignore[return-value]  # checked above


def _parse_next(found: Mapping[str, int]) -> Mapping[str, int]:
    """Return the next sequence number by producer stream; there may be thousands, so C loops over them."""
    all(map(_stream, found))
    numbers = found.values()
    if numbers and not (
        set(map(type, numbers)) == {int} and min(numbers) >= 0 and max(numbers) <= _LARGEST
    ):
        raise DamagedLineError("a next message is not a whole number of 63 bits")
    return found


def _parse_event(event: dict[str, object]) -> Event:
    kind, fields = event["kind"], _plain(event["fields"])
    if not isinstance(kind, str) or len(kind) > MAX_NAME_CHARACTERS:
        raise DamagedLineError(f"an event of kind {kind!r:.100}")
    kind = RENAMED_EVENTS.get(kind, kind)
    check = _FIELDS.get(kind)
    if check is not None:
        check(fields)
    at_ns = _within("at_ns", event["at_ns"], -MAX_TIME_NS, MAX_TIME_NS)
    since_ns = _within("since_ns", event["since_ns"], -MAX_TIME_NS, MAX_TIME_NS)
    return Event(kind, at_ns, since_ns, fields)


def _check_offsets(fields: Mapping[str, object]) -> None:
    begin, end = _natural(fields, "from_offset"), _natural(fields, "to_offset")
    _within("partition", fields["partition"], 0, MAX_PARTITION)
    if end <= begin:
        raise DamagedLineError(f"offsets {begin} to {end}")


def _check_position(fields: Mapping[str, object]) -> None:
    _within("partition", fields["partition"], 0, MAX_PARTITION)
    _natural(fields, "position")
    _natural(fields, "log_end")


def _check_failed(fields: Mapping[str, object]) -> None:
    _stream(str(fields["lane"]))
    first, last = _natural(fields, "first"), _natural(fields, "last")
    if last < first:
        raise DamagedLineError(f"messages {first} to {last}")


# Named here again: `soak.core.audit` loads numpy, which the probe daemon can do without.
_FIELDS: Mapping[str, Callable[[Mapping[str, object]], None]] = {
    "expired": _check_offsets,
    "offset_gap": _check_offsets,
    "offset_gap_resolved": _check_offsets,
    "final_position": _check_position,
    "send_failed": _check_failed,
}
CHECKED_EVENTS = frozenset(_FIELDS)
"""The events that the audit adds up: their fields are whole numbers in order."""

CHECKED_METRICS = frozenset(
    {
        *("sent_messages", "failed_messages", "missed_messages"),
        *("duplicated_messages", "reordered_messages", "reread_messages"),
    }
)
"""The columns that the audit adds up: no interval of a client has more than `MAX_COUNT` of them."""


def checked_places(columns: Sequence[Column]) -> tuple[int, ...]:
    """Return where in the values of a record `wrong_count` looks."""
    return tuple(at for at, one in enumerate(columns) if one.metric in CHECKED_METRICS)


def wrong_count(record: Record, places: Sequence[int]) -> str:
    """Return why the counts of a record cannot be added up, or nothing."""
    for at in places:
        value = record.values[at]
        if not (0.0 <= value <= MAX_COUNT or math.isnan(value)):
            return f"a count of {value:g} messages"
    return ""


def _natural(fields: Mapping[str, object], key: str) -> int:
    return _within(key, fields[key], 0, _LARGEST)


def _plain(found: object) -> dict[str, str | int | float | bool]:
    """Return a small mapping of texts and finite numbers.

    Raises:
        ValueError: it is something else.
    """
    if not isinstance(found, dict) or not all(map(_is_plain, found.values())):
        raise ValueError(f"{found!r:.100} is not a mapping of texts and numbers")
    _bounded("fields", found, MAX_FIELDS)
    for key in found:
        _bounded("a field's name", key, MAX_NAME_CHARACTERS)
    return found


def _is_plain(one: object) -> bool:
    if isinstance(one, str):
        return len(one) <= MAX_TEXT_CHARACTERS
    return isinstance(one, int) or (isinstance(one, float) and math.isfinite(one))


def _bounded(what: str, found: object, limit: int) -> None:
    if len(found) > limit:  # type: ignore[arg-type]  # TypeError
        raise DamagedLineError(f"{what}: {len(found):,}, more than {limit:,}")  # type: ignore[arg-type]  # as above


def _within(what: str, value: object, low: int, high: int) -> int:
    """Return a whole number of this range.

    Raises:
        ValueError: it is something else.
    """
    if type(value) is not int or not low <= value <= high:
        raise ValueError(f"{what} is {value!r:.100}, not a whole number from {low} to {high}")
    return value


@lru_cache(maxsize=100_000)
def _stream(name: str) -> str:
    """Return the name of a producer stream: instance, epoch and partition.

    Raises:
        DamagedLineError: it is something else.
    """
    match = _STREAM.fullmatch(name)
    if match is not None:
        instance, epoch, partition = map(int, match.groups())
        if max(instance, epoch) < 2**32 and partition <= MAX_PARTITION:
            return name
    raise DamagedLineError(f"{name!r:.100} is not the name of a producer stream")


def _parse_spans(
    streams: Mapping[str, Sequence[Sequence[object]]],
) -> dict[str, tuple[Span, ...]]:
    all(map(_stream, streams))
    found = {name: tuple(map(_parse_span, spans)) for name, spans in streams.items()}
    for spans in found.values():
        if len(spans) > 1 and any(after[0] < before[0] for before, after in pairwise(spans)):
            raise DamagedLineError("spans are not in order")
    return found


def _parse_span(found: Sequence[object]) -> Span:
    """Return a span: its messages ascend, and its offsets by one a message at least where they are known.

    Raises:
        ValueError: it is something else.
    """
    a, b, c, d = found
    if (
        type(a) is type(b) is type(c) is type(d) is int
        and 0 <= a <= b <= _LARGEST
        and (d - c >= b - a if c >= 0 else -_LARGEST <= c <= d)
        and d <= _LARGEST
    ):
        return a, b, c, d
    raise ValueError(f"{found!r:.100} is not a span of messages and their offsets")
