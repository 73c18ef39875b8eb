"""tests.unit.store.journal.test_writer."""

from __future__ import annotations

import math
import os
import shutil
import threading
import zlib
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from soak.core.errors import JournalError, RunFolderError
from soak.core.journal_format import Columns, DamagedLineError, End, columns_line, decode, encode
from soak.core.model import Column, Event, Record
from soak.store.journal import writer
from soak.store.journal import writer as background_sync
from soak.store.journal.reader import (
    SourceReader,
    complete_size,
    last_record,
    read_source,
    segments,
)
from soak.store.journal.writer import BackgroundJournalWriter, JournalWriter
from tests.support.fakes import FakeClock

COLUMNS = (Column("a_seconds", (("quantile", "0.5"),), "seconds", 1.5), Column("b_messages"))
NUMBERS = st.floats(allow_nan=True, allow_infinity=False)
LANES = st.dictionaries(
    st.text("0123456789.", min_size=1, max_size=8),
    st.lists(st.tuples(*[st.integers(0, 2**50)] * 4), max_size=3).map(tuple),
    max_size=2,
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
    acknowledged=LANES,
    received=LANES,
    sent_next=st.dictionaries(st.text(max_size=4), st.integers(0, 2**50), max_size=2),
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


def _record(k: int, epoch: int = 1) -> Record:
    return Record(k, epoch, 0, 10**9, columns_line(COLUMNS).id, (float(k), 0.0))


def _writer(folder: Path, clock: FakeClock | None = None) -> JournalWriter:
    return JournalWriter(folder, clock or FakeClock()).open()


def _same(left: Record, right: Record) -> bool:
    pairs = zip(left.values, right.values, strict=True)
    return all(a == b or (math.isnan(a) and math.isnan(b)) for a, b in pairs) and repr(
        left
    ) == repr(right)


@given(RECORDS)
def test_a_record_survives_being_written_and_read(record: Record) -> None:
    found = decode(encode(record))

    assert isinstance(found, Record)
    assert _same(found, record)


@given(st.binary(max_size=60), RECORDS, st.integers(0, 10**4), st.integers(1, 255))
def test_a_damaged_line_is_refused_never_misread(
    junk: bytes, record: Record, at: int, flip: int
) -> None:
    raw = bytearray(encode(record))
    raw[at % (len(raw) - 1)] ^= flip

    for damaged in (bytes(raw), junk, encode(record)[:-9]):
        with pytest.raises(DamagedLineError):
            decode(damaged)


RECORD = (
    '{"t": "r", "c": "x", "k": %s, "inc": 1, "at_ns": 0, "length_ns": 0, "v": [], '
    '"trust": %s, "e": %s}'
)


def test_a_record_by_hand_is_one() -> None:
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
def test_a_right_checksum_makes_no_line_of_what_is_none(body: str) -> None:
    raw = body.encode()

    with pytest.raises(DamagedLineError):
        decode(raw + b"\t%08x\n" % zlib.crc32(raw))


def test_columns_say_what_the_numbers_are_and_an_end_says_who_ended() -> None:
    assert decode(encode(columns_line(COLUMNS))) == Columns(columns_line(COLUMNS).id, COLUMNS)
    assert decode(encode(End(3))) == End(3)


def test_a_newer_version_is_refused_with_a_message() -> None:
    newer = encode(columns_line(COLUMNS))[:-10].replace(b'"version":1', b'"version":2')
    import zlib  # noqa: PLC0415  # to seal the changed line again

    with pytest.raises(JournalError, match="journal of version 2; this program reads up to 1"):
        decode(newer + b"\t%08x\n" % zlib.crc32(newer))


def test_what_is_appended_is_read_back_once_each(tmp_path: Path) -> None:
    source = tmp_path / "probe@host"
    writer = _writer(source)
    for k in (0, 1, 1, 2):
        writer.append(_record(k), COLUMNS)
    writer.close(is_end=True)

    reader = SourceReader(source)
    found = [record.k for record, _ in read_source(tmp_path, "probe@host", reader)]

    assert (found, reader.ended_epoch, reader.damage) == ([0, 1, 2], 1, [])


def test_a_restart_gets_a_new_incarnation_and_a_new_file(tmp_path: Path) -> None:
    first = _writer(tmp_path)
    first.append(_record(0), COLUMNS)
    first.close(is_end=False)
    second = _writer(tmp_path)
    second.append(_record(1, second.epoch), COLUMNS)
    second.close(is_end=False)

    assert (first.epoch, second.epoch, len(segments(tmp_path))) == (1, 2, 2)


def test_two_writers_never_share_a_source(tmp_path: Path) -> None:
    writer = _writer(tmp_path)

    with pytest.raises(RunFolderError, match="is written by another process"):
        _writer(tmp_path)

    writer.close(is_end=False)


def test_a_torn_last_line_is_not_there_yet_and_a_damaged_one_is_a_gap(tmp_path: Path) -> None:
    source = tmp_path / "s"
    writer = _writer(source)
    for k in range(3):
        writer.append(_record(k), COLUMNS)
    writer.close(is_end=False)
    (path,) = segments(source)
    raw = path.read_bytes().split(b"\n")
    raw[2] = b"x" + raw[2][1:]
    path.write_bytes(b"\n".join(raw) + b'{"t":"r","torn')

    reader = SourceReader(source)
    found = [record.k for record, _ in read_source(tmp_path, "s", reader)]

    assert found == [0, 2]
    assert [item.offset for item in reader.damage] == [len(raw[0]) + len(raw[1]) + 2]


def test_a_full_disk_keeps_the_records_and_writes_them_when_there_is_room(tmp_path: Path) -> None:
    """The disk takes half a line, then nothing for 22 records, then everything."""
    room = [10**9]

    def write(descriptor: int, raw: bytes) -> int:
        if room[0] <= 0:
            raise OSError(28, "No space left on device")
        part = raw[: room[0]]
        room[0] -= len(part)
        return os.write(descriptor, part)

    source = tmp_path / "s"
    writer = JournalWriter(source, FakeClock(), write=write).open()
    writer.append(_record(0), COLUMNS)
    room[0] = 20
    for k in range(1, 23):
        writer.append(_record(k), COLUMNS)
    assert writer.is_behind
    room[0] = 10**9
    writer.append(_record(23), COLUMNS)
    writer.close(is_end=False)

    reader = SourceReader(source)
    found = [record.k for record, _ in read_source(tmp_path, "s", reader)]
    assert (found, reader.damage, writer.dropped_lines) == (list(range(24)), [], 0)


def refuse(*_: object) -> int:
    raise OSError(5, "Input/output error")


def test_half_a_line_that_cannot_be_cut_off_spoils_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The drive takes half a line and then fails: what follows goes into another file."""
    room = [10**9]

    def write(descriptor: int, raw: bytes) -> int:
        part = raw[: room[0]]
        room[0] = 10**9
        return os.write(descriptor, part)

    source = tmp_path / "s"
    writer = JournalWriter(source, FakeClock(), write=write).open()
    writer.append(_record(0), COLUMNS)
    room[0] = 20
    with monkeypatch.context() as failing:
        failing.setattr(os, "ftruncate", refuse)
        writer.append(_record(1), COLUMNS)
    writer.append(_record(2), COLUMNS)
    writer.close(is_end=False)

    reader = SourceReader(source)
    found = [record.k for record, _ in read_source(tmp_path, "s", reader)]
    assert (found, reader.damage, len(segments(source))) == ([0, 1, 2], [], 2)


def test_a_file_that_is_full_is_left_only_for_one_that_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a descriptor to spare each try would else leave a file, and keep a descriptor."""
    clock, source = FakeClock(), tmp_path / "s"
    writer = _writer(source, clock)
    writer.append(_record(0), COLUMNS)
    clock.advance(3600)
    with monkeypatch.context() as failing:
        failing.setattr(os, "dup", refuse)
        for k in range(1, 4):
            writer.append(_record(k), COLUMNS)
        within = len(segments(source))
    writer.append(_record(4), COLUMNS)
    writer.close(is_end=False)

    assert (within, len(segments(source))) == (1, 2)
    assert [record.k for record, _ in read_source(tmp_path, "s")] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("kept", [b"\0" * 20, b"0000x"])
def test_a_source_that_lost_count_of_its_lives_goes_on(tmp_path: Path, kept: bytes) -> None:
    """As a power cut may leave it: above all that there can have been."""
    (tmp_path / "lock").write_bytes(kept)
    writer = JournalWriter(tmp_path, FakeClock()).open(first_epoch=130)
    writer.close(is_end=False)

    assert writer.epoch == 130


def test_below_the_floor_records_wait_as_on_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host that only probes may have nowhere else to write than on its broker's drive."""
    free = [1000]
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=free[0]))
    writer = JournalWriter(tmp_path / "s", FakeClock(), floor_bytes=1000).open()
    writer.append(_record(0), COLUMNS)
    free[0] = 999
    for k in range(1, 23):
        writer.append(_record(k), COLUMNS)
    within, is_behind = last_record(tmp_path, "s"), writer.is_behind
    free[0] = 1000
    writer.append(_record(23), COLUMNS)
    writer.close(is_end=False)

    assert within is not None
    assert (within[0].k, is_behind) == (0, True)
    assert [record.k for record, _ in read_source(tmp_path, "s")] == list(range(24))


def test_a_disk_that_stays_full_costs_the_oldest_records_and_no_more_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    room = [True]

    def write(descriptor: int, raw: bytes) -> int:
        return os.write(descriptor, raw) if room[0] else 0

    monkeypatch.setattr(background_sync, "TAIL_BYTES", 10 * len(encode(_record(100))))
    writer = JournalWriter(tmp_path / "s", FakeClock(), write=write).open()
    writer.append(_record(100), COLUMNS)
    room[0] = False
    for k in range(101, 200):
        writer.append(_record(k), COLUMNS)
    room[0] = True
    writer.append(_record(200), COLUMNS)
    writer.close(is_end=True)

    found = [record.k for record, _ in read_source(tmp_path, "s")]
    assert found == [100, *range(191, 201)]
    assert writer.dropped_lines == 90
    assert "journal_full" in caplog.text


def test_a_drive_that_hangs_holds_no_writer_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The flush of the second record never ends; the next records are there all the same."""
    is_hanging, may_end = threading.Event(), threading.Event()

    def hang(descriptor: int) -> None:
        del descriptor
        is_hanging.set()
        may_end.wait(30)

    monkeypatch.setattr(os, "fdatasync", hang)
    clock = FakeClock()
    writer = _writer(tmp_path / "s", clock)
    for k in range(20):
        clock.advance(6)
        writer.append(_record(k), COLUMNS)
        assert is_hanging.wait(30)

    assert [record.k for record, _ in read_source(tmp_path, "s")] == list(range(20))
    may_end.set()
    writer.close(is_end=True)


def test_a_drive_that_hangs_holds_no_closing_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last flush is waited for within a limit; what was written is there."""
    may_end = threading.Event()
    writer = _writer(tmp_path / "s")
    writer.append(_record(0), COLUMNS)
    monkeypatch.setattr(background_sync, "CLOSE_SECONDS", 0.05)
    monkeypatch.setattr(os, "fdatasync", lambda _: may_end.wait(30))
    monkeypatch.setattr(os, "fsync", lambda _: pytest.fail("the drive was waited for"))

    writer.close(is_end=False)

    assert not may_end.is_set()
    assert [record.k for record, _ in read_source(tmp_path, "s")] == [0]
    may_end.set()


def test_a_file_is_full_after_an_hour_and_starts_with_its_columns(tmp_path: Path) -> None:
    clock = FakeClock()
    writer = _writer(tmp_path, clock)
    writer.append(_record(0), COLUMNS)
    clock.advance(3600)
    writer.append(_record(3600), COLUMNS)
    writer.close(is_end=False)

    files = segments(tmp_path)
    assert [path.name for path in files] == ["000000.jsonl", "000001.jsonl"]
    for path in files:
        assert isinstance(decode(path.read_bytes().splitlines()[0]), Columns)


def test_a_reader_that_begins_in_the_middle_finds_its_columns(tmp_path: Path) -> None:
    source = tmp_path / "s"
    writer = _writer(source)
    for k in range(9):
        writer.append(_record(k), COLUMNS)
    writer.close(is_end=False)
    (path,) = segments(source)
    lines = path.read_bytes().splitlines(keepends=True)

    begin = sum(map(len, lines[:5]))
    found = list(SourceReader(source).read(path, begin, complete_size(path)))

    assert [(record.k, columns) for record, columns in found] == [(k, COLUMNS) for k in range(4, 9)]


def test_the_newest_record_is_found_from_the_end(tmp_path: Path) -> None:
    writer = _writer(tmp_path / "s")
    for k in range(1000):
        writer.append(_record(k), COLUMNS)
    writer.close(is_end=True)

    newest = last_record(tmp_path, "s")

    assert newest is not None
    assert newest[0].k == 999


ONE_COLUMN = (Column("a_seconds"),)


def one_value(k: int) -> Record:
    return Record(k, 1, 0, 10**9, columns_line(ONE_COLUMN).id, (float(k),))


def _ks(folder: Path) -> list[int]:
    return [record.k for record, _ in read_source(folder, "s")]


class Drive:
    """A drive whose writes hang from the first on until `go_on`."""

    def __init__(self) -> None:
        self.is_hanging = threading.Event()
        self.go_on = threading.Event()

    def write(self, descriptor: int, raw: bytes) -> int:
        self.is_hanging.set()
        assert self.go_on.wait(30)
        return os.write(descriptor, raw)


def test_a_write_that_hangs_holds_nobody_up_and_loses_nothing(tmp_path: Path) -> None:
    drive = Drive()
    journal = BackgroundJournalWriter(
        JournalWriter(tmp_path / "s", FakeClock(), write=drive.write).open()
    )
    for k in range(100):
        journal.append(one_value(k), ONE_COLUMN)
    assert drive.is_hanging.wait(30)
    assert journal.is_behind
    assert _ks(tmp_path) == []

    drive.go_on.set()
    journal.close(is_end=True)

    assert _ks(tmp_path) == list(range(100))
    assert not journal.is_behind


def test_what_waits_for_a_drive_that_hangs_is_bounded_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(writer, "MOST_WAITING", 10)
    drive = Drive()
    journal = BackgroundJournalWriter(
        JournalWriter(tmp_path / "s", FakeClock(), write=drive.write).open()
    )
    journal.append(one_value(0), ONE_COLUMN)
    assert drive.is_hanging.wait(30)
    for k in range(1, 15):
        journal.append(one_value(k), ONE_COLUMN)
    drive.go_on.set()
    journal.close(is_end=True)

    assert _ks(tmp_path) == list(range(11))
    assert "journal_hangs k=14 dropped=4" in caplog.text


def test_a_defect_in_the_thread_is_raised_where_records_come_from(tmp_path: Path) -> None:
    def write(descriptor: int, raw: bytes) -> int:
        raise RuntimeError(f"a defect at {len(raw)} bytes for {descriptor}")

    journal = BackgroundJournalWriter(
        JournalWriter(tmp_path / "s", FakeClock(), write=write).open()
    )
    journal.append(one_value(0), ONE_COLUMN)

    with pytest.raises(RuntimeError, match="a defect"):
        journal.close(is_end=True)


def test_a_source_that_wrote_nothing_is_closed(tmp_path: Path) -> None:
    journal = BackgroundJournalWriter(JournalWriter(tmp_path / "s", FakeClock()).open())
    journal.close(is_end=True)

    assert JournalWriter(tmp_path / "s", FakeClock()).open().epoch == journal.epoch + 1
