"""The journal's lines: JSON, a tab, crc32 of the JSON's bytes. Text in, records out; no IO.

A `columns` line names what the numbers mean and carries the format's version; a record refers to it by id.
"""

from __future__ import annotations

import hashlib
import json
import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

from soak.core.errors import JournalError
from soak.core.model import Column, Event, Record, Span

VERSION = 1


@dataclass(frozen=True, slots=True)
class Columns:
    """One `columns` line."""

    id: str
    columns: tuple[Column, ...]


@dataclass(frozen=True, slots=True)
class End:
    """The line that closes a source: it ended on purpose. `inc` is the incarnation that said so."""

    inc: int


Line = Columns | Record | End


class DamagedLineError(ValueError):
    """A line that is not what the writer wrote."""


def columns_line(columns: Sequence[Column]) -> Columns:
    """Return the line for these columns; equal columns have equal ids."""
    text = json.dumps([_column_json(column) for column in columns], separators=(",", ":"))
    return Columns(hashlib.sha256(text.encode()).hexdigest()[:12], tuple(columns))


def encode(line: Line) -> bytes:
    """Return the bytes of one line, newline included."""
    body = json.dumps(_line_json(line), separators=(",", ":"), allow_nan=False).encode()
    return b"%s\t%08x\n" % (body, zlib.crc32(body))


def decode(raw: bytes) -> Line:
    """Return what one line says; the newline may be there or not.

    Raises:
        DamagedLineError: crc or shape are wrong.
        JournalError: the line was written by a newer version of the format.
    """
    body, _, crc = raw.rstrip(b"\n").rpartition(b"\t")
    try:
        if int(crc, 16) != zlib.crc32(body):
            raise DamagedLineError("crc does not match")
        return _parse(json.loads(body, parse_constant=_refuse_constant))
    except _NOT_A_LINE as error:
        raise DamagedLineError(str(error)) from error


_NOT_A_LINE = (
    ValueError,
    KeyError,
    TypeError,
    IndexError,
    AttributeError,
    OverflowError,
    RecursionError,
)
"""What JSON that is not ours makes of a parser for ours, its checksum being right."""


def _refuse_constant(word: str) -> float:
    raise ValueError(f"{word} is no number of a record")


def _column_json(column: Column) -> dict[str, object]:
    return {
        "metric": column.metric,
        "labels": dict(column.labels),
        "unit": column.unit,
        "lag_seconds": column.lag_seconds,
    }


def _line_json(line: Line) -> dict[str, object]:
    match line:
        case Columns(id=name, columns=columns):
            listed = [_column_json(column) for column in columns]
            return {"t": "c", "version": VERSION, "id": name, "columns": listed}
        case End(inc=inc):
            return {"t": "end", "inc": inc}
        case Record():
            return _record_json(line)


def _record_json(record: Record) -> dict[str, object]:
    values = [None if math.isnan(value) else value for value in record.values]
    body: dict[str, object] = {
        "t": "r",
        "c": record.columns_id,
        "k": record.k,
        "inc": record.inc,
        "at_ns": record.at_ns,
        "length_ns": record.length_ns,
        "v": values,
    }
    optional: dict[str, object] = {
        "h": dict(record.histograms),
        "a": {lane: list(map(list, spans)) for lane, spans in record.acknowledged.items()},
        "g": {lane: list(map(list, spans)) for lane, spans in record.received.items()},
        "n": dict(record.sent_next),
        "e": [_event_json(event) for event in record.events],
        "trust": dict(record.trust),
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
            return End(int(body["inc"]))  # type: ignore[call-overload]  # checked by ValueError
        case other:
            raise DamagedLineError(f"unknown line type {other!r}")


def _parse_columns(body: dict[str, object]) -> Columns:
    version = body["version"]
    if not isinstance(version, int) or version > VERSION:
        raise JournalError(f"journal of version {version}; this program reads up to {VERSION}")
    listed = body["columns"]
    if not isinstance(listed, list):
        raise DamagedLineError("columns is not a list")
    columns = tuple(
        Column(
            str(item["metric"]),
            tuple(sorted((str(key), str(value)) for key, value in item["labels"].items())),
            str(item["unit"]),
            float(item["lag_seconds"]),
        )
        for item in listed
    )
    return Columns(str(body["id"]), columns)


def _parse_record(raw: dict[str, object]) -> Record:
    body: dict[str, dict[str, object]] = raw  # type: ignore[assignment]  # shapes raise below
    values = tuple(math.nan if value is None else float(value) for value in raw["v"])  # type: ignore[attr-defined]  # as above
    return Record(
        k=int(raw["k"]),  # type: ignore[call-overload]  # as above
        inc=int(raw["inc"]),  # type: ignore[call-overload]  # as above
        at_ns=int(raw["at_ns"]),  # type: ignore[call-overload]  # as above
        length_ns=int(raw["length_ns"]),  # type: ignore[call-overload]  # as above
        columns_id=str(raw["c"]),
        values=values,
        histograms={key: str(text) for key, text in body.get("h", {}).items()},
        acknowledged=_parse_spans(body.get("a", {})),
        received=_parse_spans(body.get("g", {})),
        sent_next={lane: int(at) for lane, at in body.get("n", {}).items()},  # type: ignore[call-overload]  # as above
        events=tuple(
            Event(event["kind"], event["at_ns"], event["since_ns"], event["fields"])
            for event in raw.get("e", ())  # type: ignore[attr-defined]  # as above
        ),
        trust=body.get("trust", {}),  # type: ignore[arg-type]  # as above
    )


def _parse_spans(lanes: dict[str, object]) -> dict[str, tuple[Span, ...]]:
    return {
        lane: tuple((int(a), int(b), int(c), int(d)) for a, b, c, d in spans)  # type: ignore[attr-defined]  # ValueError
        for lane, spans in lanes.items()
    }
