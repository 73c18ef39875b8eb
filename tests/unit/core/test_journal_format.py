"""The text of journal lines: a line is read as it was written, or refused."""

from __future__ import annotations

import json
import math
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from soak.core.audit import AUDIT_EVENTS, COUNTED_METRICS
from soak.core.errors import JournalError
from soak.core.header import stream_name
from soak.core.journal_format import (
    CHECKED_EVENTS,
    CHECKED_METRICS,
    RENAMED_EVENTS,
    Columns,
    DamagedLineError,
    End,
    columns_line,
    decode,
    encode,
)
from soak.core.model import Column, Event, Record

COLUMNS = (Column("a_seconds", (("quantile", "0.5"),), "seconds", 1.5), Column("b_messages"))
NUMBERS = st.floats(allow_nan=True, allow_infinity=False)
NAMES = st.builds(
    stream_name, st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1), st.integers(0, 2**20 - 1)
)
SPANS = st.builds(
    lambda first, more, low, room: (first, first + more, low, low + more + room),
    *[st.integers(0, 2**50)] * 4,
)
STREAMS = st.dictionaries(
    NAMES, st.lists(SPANS, max_size=3).map(lambda spans: tuple(sorted(spans))), max_size=2
)
RECORDS = st.builds(
    Record,
    k=st.integers(0, 10**6),
    epoch=st.integers(1, 99),
    at_ns=st.integers(0, 2**62),
    length_ns=st.integers(0, 2**40),
    columns_id=st.just(columns_line(COLUMNS).id),
    values=st.tuples(NUMBERS, NUMBERS),
    histograms=st.dictionaries(st.text(max_size=4), st.text(max_size=8), max_size=2),
    acknowledged=STREAMS,
    received=STREAMS,
    sent_next=st.dictionaries(NAMES, st.integers(0, 2**50), max_size=2),
    events=st.lists(
        st.builds(
            Event,
            kind=st.text(max_size=5),
            at_ns=st.integers(0, 2**62),
            since_ns=st.integers(0, 2**62),
            fields=st.dictionaries(st.text(max_size=3), st.text(max_size=9), max_size=2),
        ),
        max_size=2,
    ).map(tuple),
    validity=st.dictionaries(st.text(max_size=6), st.text(max_size=6), max_size=2),
)


def same(left: Record, right: Record) -> bool:
    pairs = zip(left.values, right.values, strict=True)
    return all(a == b or (math.isnan(a) and math.isnan(b)) for a, b in pairs) and repr(
        left
    ) == repr(right)


@pytest.mark.long
@given(RECORDS)
def test_a_record_survives_encoding(record: Record) -> None:
    """Any record, with NaN values and empty maps."""
    found = decode(encode(record))

    assert isinstance(found, Record)
    assert same(found, record)


@pytest.mark.long
@given(st.binary(max_size=60), RECORDS, st.integers(0, 10**4), st.integers(1, 255))
def test_a_damaged_line_is_refused(junk: bytes, record: Record, at: int, flip: int) -> None:
    """One changed byte, other bytes, or a missing end."""
    raw = bytearray(encode(record))
    raw[at % (len(raw) - 1)] ^= flip

    for damaged in (bytes(raw), junk, encode(record)[:-9]):
        with pytest.raises(DamagedLineError):
            decode(damaged)


RECORD = (
    '{"t": "r", "c": "x", "k": %s, "inc": 1, "at_ns": 0, "length_ns": 0, "v": [], '
    '"trust": %s, "e": %s}'
)


def test_a_record_needs_only_its_numbers() -> None:
    """The optional keys are left out where they are empty."""
    raw = (RECORD % ("1", "{}", "[]")).encode()

    assert decode(raw + b"\t%08x\n" % zlib.crc32(raw)) == Record(1, 1, 0, 0, "x", ())


@pytest.mark.parametrize(
    "body",
    [
        '{"t": "r", "h": [1]}',
        '{"t": "r", "k": 1e999}',
        "[" * 100_000,
        '{"t": "r", "v": [Infinity]}',
        RECORD % ("9223372036854775808", "{}", "[]"),
        RECORD.replace('"v": []', '"v": [1e999]') % ("1", "{}", "[]"),
        RECORD.replace('"c": "x"', '"c": "\\ud800"') % ("1", "{}", "[]"),
        RECORD % ("1", '{"lag_seconds": 1e999}', "[]"),
        '{"t": "end", "inc": 1e30}',
        (
            '{"t": "c", "version": 1, "id": "x", "columns": [{"metric": "m", "labels": {}, "unit": "", '
            '"lag_seconds": 1e999}]}'
        ),
        RECORD % ("1", '["x"]', "[]"),
        RECORD % ("1", '{"reason": ["x"]}', "[]"),
        RECORD % ("1", "{}", '[{"kind": "x", "at_ns": 0, "since_ns": 0, "fields": [1]}]'),
        RECORD % ("1", "{}", '[{"kind": "x", "at_ns": "y", "since_ns": 0, "fields": {}}]'),
        "7",
    ],
)
def test_a_wrong_body_is_refused_although_its_checksum_is_right(body: str) -> None:
    """Another program, or a defect, may have written it."""
    raw = body.encode()

    with pytest.raises(DamagedLineError):
        decode(raw + b"\t%08x\n" % zlib.crc32(raw))


def test_columns_and_ends_survive_encoding() -> None:
    """The other two kinds of lines."""
    assert decode(encode(columns_line(COLUMNS))) == Columns(columns_line(COLUMNS).id, COLUMNS)
    assert decode(encode(End(3))) == End(3)


def test_a_newer_version_is_refused() -> None:
    """The message names both versions."""
    newer = encode(columns_line(COLUMNS))[:-10].replace(b'"version":1', b'"version":2')

    with pytest.raises(JournalError, match="journal of version 2; this program reads up to 1"):
        decode(newer + b"\t%08x\n" % zlib.crc32(newer))


@pytest.mark.parametrize(("old", "new"), RENAMED_EVENTS.items())
def test_event_of_an_older_journal_has_its_new_name(old: str, new: str) -> None:
    """Journals outlive the names of events."""
    fields = {"partition": 7, "from_offset": 3, "to_offset": 9}
    body = json.dumps(
        {
            "t": "r",
            "c": "x",
            "k": 1,
            "inc": 1,
            "at_ns": 0,
            "length_ns": 0,
            "v": [],
            "e": [{"kind": old, "at_ns": 3, "since_ns": 2, "fields": fields}],
        }
    ).encode()
    record = decode(b"%s\t%08x\n" % (body, zlib.crc32(body)))

    assert isinstance(record, Record)
    assert [event.kind for event in record.events] == [new]


def test_the_events_and_columns_of_the_audit_are_checked() -> None:
    """The format names them again, so that the probe daemon loads no numpy."""
    assert CHECKED_EVENTS == AUDIT_EVENTS
    assert CHECKED_METRICS == COUNTED_METRICS
