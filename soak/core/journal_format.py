"""The text format of a journal: one line holds JSON, a tab and the crc32 of the JSON's bytes.

A `columns` line names what the numbers mean and carries the format's version; a record refers to it by id.
"""

from __future__ import annotations

import hashlib
import json
import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import orjson

from soak.core.errors import JournalError
from soak.core.model import Column, Event, Record, Span

VERSION = 1

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


def decode(raw: bytes) -> Line:
    """Return the content of one line, with or without its newline.

    Raises:
        DamagedLineError: crc or shape are wrong.
        JournalError: the line was written by a newer version of the format.
    """
    body, _, crc = raw.rstrip(b"\n").rpartition(b"\t")
    try:
        if int(crc, 16) != zlib.crc32(body):
            raise DamagedLineError("crc does not match")
        return _parse(orjson.loads(body))  # refuses NaN, infinity and half a surrogate pair
    except _NOT_A_LINE as error:
        raise DamagedLineError(str(error)) from error


_LARGEST = 2**63 - 1
_NOT_A_LINE = (
    ValueError,
    KeyError,
    TypeError,
    IndexError,
    AttributeError,
    OverflowError,
)
"""The errors that foreign JSON with a valid checksum raises in this parser."""


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
    values = [None if math.isnan(value) else value for value in record.values]
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


def _parse(body: dict[str, object]) -> Line:
    match body["t"]:
        case "r":
            return _parse_record(body)
        case "c":
            return _parse_columns(body)
        case "end":
            return End(_integer(body["inc"]))
        case other:
            raise DamagedLineError(f"unknown line type {other!r}")


def _parse_columns(body: dict[str, object]) -> Columns:
    version = body["version"]
    if not isinstance(version, int) or version > VERSION:
        raise JournalError(f"journal of version {version}; this program reads up to {VERSION}")
    listed = body["columns"]
    if not isinstance(listed, list):
        raise DamagedLineError("columns is not a list")
    return Columns(str(body["id"]), tuple(map(Column.from_json, listed)))


def _parse_record(raw: dict[str, object]) -> Record:
    body: dict[str, dict[str, object]] = raw  # type: ignore[assignment]  # shapes raise below
    # a product with a float, which no text has, and JSON has no infinity
    values = tuple([math.nan if value is None else value * 1.0 for value in raw["v"]])  # type: ignore[attr-defined]  # as above
    return Record(
        k=_integer(raw["k"]),
        epoch=_integer(raw["inc"]),
        at_ns=_integer(raw["at_ns"]),
        length_ns=_integer(raw["length_ns"]),
        columns_id=str(raw["c"]),
        values=values,
        histograms={key: str(text) for key, text in body.get("h", {}).items()},
        acknowledged=_parse_spans(body.get("a", {})),
        received=_parse_spans(body.get("g", {})),
        sent_next={stream: _integer(at) for stream, at in body.get("n", {}).items()},
        events=tuple(map(_parse_event, raw.get("e", ()))),  # type: ignore[call-overload]  # as above
        validity=_plain(body.get("trust", {})),
    )


def _parse_event(event: dict[str, object]) -> Event:
    kind, fields = str(event["kind"]), _plain(event["fields"])
    kind = RENAMED_EVENTS.get(kind, kind)
    return Event(kind, _integer(event["at_ns"]), _integer(event["since_ns"]), fields)


def _plain(found: object) -> dict[str, str | int | float | bool]:
    """Return a mapping of texts and finite numbers.

    Raises:
        ValueError: it is something else.
    """
    if not isinstance(found, dict) or not all(map(_is_plain, found.values())):
        raise ValueError(f"{found!r:.100} is not a mapping of texts and numbers")
    return found


def _is_plain(one: object) -> bool:
    return isinstance(one, str | int) or (isinstance(one, float) and math.isfinite(one))


def _integer(value: object) -> int:
    """Return an integer of 64 bits.

    Raises:
        OverflowError: it is larger.
    """
    number: int = value if type(value) is int else int(value)  # type: ignore[call-overload]  # ValueError
    if abs(number) > _LARGEST:
        raise OverflowError(f"{number:.3g} is too large for a record")
    return number


def _parse_spans(streams: dict[str, object]) -> dict[str, tuple[Span, ...]]:
    return {stream: tuple(map(_parse_span, spans)) for stream, spans in streams.items()}  # type: ignore[call-overload]  # TypeError


def _parse_span(found: Sequence[object]) -> Span:
    a, b, c, d = found
    if type(a) is type(b) is type(c) is type(d) is int and max(a, b, c, d) <= _LARGEST:
        return a, b, c, d
    return _integer(a), _integer(b), _integer(c), _integer(d)
