"""Reading the journal of one source: from any place, in spite of damage, and its end."""

from __future__ import annotations

from pathlib import Path

import pytest

from soak.core.journal_format import Columns, Line, columns_line, encode
from soak.core.model import Column, Record
from soak.store.journal.reader import (
    Damage,
    SourceReader,
    complete_size,
    has_ended,
    last_record,
    read_source,
    segment_name,
    segments,
)
from soak.store.journal.writer import JournalWriter
from tests.support.fakes import FakeClock

COLUMNS = (Column("a_seconds", (("quantile", "0.5"),), "seconds", 1.5), Column("b_messages"))


def record(k: int) -> Record:
    return Record(k, 1, 0, 10**9, columns_line(COLUMNS).id, (float(k), 0.0))


def open_writer(folder: Path) -> JournalWriter:
    return JournalWriter(folder, FakeClock()).open()


def test_a_torn_last_line_is_ignored_and_a_damaged_line_is_a_gap(tmp_path: Path) -> None:
    """The damage is reported with its place in the file."""
    source = tmp_path / "s"
    writer = open_writer(source)
    for k in range(3):
        writer.append(record(k), COLUMNS)
    writer.close(is_end=False)
    (path,) = segments(source)
    raw = path.read_bytes().split(b"\n")
    raw[2] = b"x" + raw[2][1:]
    path.write_bytes(b"\n".join(raw) + b'{"t":"r","torn')

    reader = SourceReader(source)
    found = [record.k for record, _ in read_source(tmp_path, "s", reader)]

    assert found == [0, 2]
    assert [item.offset for item in reader.damage] == [len(raw[0]) + len(raw[1]) + 2]


def test_columns_under_the_id_of_others_are_a_gap(tmp_path: Path) -> None:
    """The numbers of a source keep the names that they were written with."""
    name = columns_line(COLUMNS).id
    forged = Columns(name, (Column("c_seconds"), Column("d_seconds")))
    path = tmp_path / "s" / segment_name(0)
    path.parent.mkdir()
    lines: list[Line] = [columns_line(COLUMNS), record(0), forged, record(1)]
    path.write_bytes(b"".join(map(encode, lines)))

    reader = SourceReader(path.parent)
    found = list(read_source(tmp_path, "s", reader))

    assert [(one.k, columns) for one, columns in found] == [(0, COLUMNS), (1, COLUMNS)]
    assert [damage.reason for damage in reader.damage] == [
        f"columns line {name} has other columns than before"
    ]


def test_a_reader_that_begins_in_the_middle_finds_the_columns(tmp_path: Path) -> None:
    """They are at the beginning of the file."""
    source = tmp_path / "s"
    writer = open_writer(source)
    for k in range(9):
        writer.append(record(k), COLUMNS)
    writer.close(is_end=False)
    (path,) = segments(source)
    lines = path.read_bytes().splitlines(keepends=True)

    begin = sum(map(len, lines[:5]))
    found = list(SourceReader(source).read(path, begin, complete_size(path)))

    assert [(record.k, columns) for record, columns in found] == [(k, COLUMNS) for k in range(4, 9)]


def test_a_file_that_ends_before_what_is_read_of_it_is_a_gap(tmp_path: Path) -> None:
    """What it still has is read; whoever read its size saw more of it."""
    path = tmp_path / "s" / segment_name(0)
    path.parent.mkdir()
    lines = [encode(columns_line(COLUMNS)), *(encode(record(k)) for k in range(10))]
    path.write_bytes(b"".join(lines[:6]))
    size, end = sum(map(len, lines[:6])), sum(map(len, lines))

    reader = SourceReader(path.parent)
    found = [one.k for one, _ in reader.read(path, 0, end)]

    assert found == [0, 1, 2, 3, 4]
    assert reader.damage == [Damage(path, size, f"the bytes up to {end} are missing")]


def test_the_newest_record_is_found_from_the_end(tmp_path: Path) -> None:
    """Behind it is the line that ends the source."""
    writer = open_writer(tmp_path / "s")
    for k in range(1000):
        writer.append(record(k), COLUMNS)
    writer.close(is_end=True)

    newest = last_record(tmp_path, "s")

    assert newest is not None
    assert newest[0].k == 999


@pytest.mark.parametrize("is_end", [True, False])
def test_a_source_has_ended_once_its_writer_said_so(tmp_path: Path, *, is_end: bool) -> None:
    """A daemon that was killed writes no end, and a source without files has none."""
    writer = open_writer(tmp_path)
    before = has_ended(tmp_path)
    writer.append(record(0), COLUMNS)
    writer.close(is_end=is_end)

    assert (before, has_ended(tmp_path)) == (False, is_end)
