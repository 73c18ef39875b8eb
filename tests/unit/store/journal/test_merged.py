"""Records of several sources in order of time, and which of them follow a gap."""

from __future__ import annotations

from pathlib import Path

import pytest

from soak.core.journal_format import End, columns_line, encode
from soak.core.model import Event, Record
from soak.core.units import SECOND_NS
from soak.store.journal.merged import MergedReader

EMPTY = columns_line(())
SOURCE = "produce.0@h"


def record(
    k: int, epoch: int = 1, at_s: float = 0.0, length_s: float = 0.0, *events: Event
) -> Record:
    at_ns, length_ns = round(at_s * SECOND_NS), round(length_s * SECOND_NS)
    return Record(k, epoch, at_ns, length_ns, EMPTY.id, (), events=events)


def event(kind: str, seconds: float) -> Event:
    return Event(kind, 0, 0, {"seconds": seconds})


def write(journal: Path, source: str, *files: list[Record | End]) -> None:
    folder = journal / source
    folder.mkdir(parents=True)
    for number, lines in enumerate(files):
        raw = [encode(EMPTY), *(encode(line) for line in lines)]
        (folder / f"{number:06d}.jsonl").write_bytes(b"".join(raw))


def after_gaps(journal: Path, *records: Record) -> list[int]:
    """Return the intervals of the records that follow a gap."""
    write(journal, SOURCE, list(records))
    return [one.record.k for one in MergedReader(journal, [SOURCE]).read() if one.is_after_gap]


def test_records_of_all_sources_come_once_in_order_of_time(tmp_path: Path) -> None:
    """Over two files of a source and with a repeated record; within an interval sources keep their order."""
    write(tmp_path, "b@h", [record(0), record(2), record(2), End(1)], [record(4, 2)])
    write(tmp_path, "a@h", [record(1), record(2), record(3)])
    reader = MergedReader(tmp_path, ["b@h", "a@h"])

    found = [(one.source, one.record.epoch, one.record.k) for one in reader.read()]

    expected = [("b", 1, 0), ("a", 1, 1), ("b", 1, 2), ("a", 1, 2), ("a", 1, 3), ("b", 2, 4)]
    assert found == [(f"{name}@h", epoch, k) for name, epoch, k in expected]
    assert reader.ended == {("b@h", 1)}


def test_a_missing_record_is_a_gap_and_a_long_record_is_not(tmp_path: Path) -> None:
    """One record covers intervals 3 to 5, the record of interval 7 is missing, then a new epoch begins."""
    ends = [(1, 1, 1), (1, 2, 1), (1, 5, 3), (1, 6, 1), (1, 8, 1), (2, 12, 1)]
    records = [record(k, epoch, k + 1, length) for epoch, k, length in ends]

    assert after_gaps(tmp_path, *records) == [8]


@pytest.mark.parametrize("kind", ["clock_step", "suspend"])
@pytest.mark.parametrize("step_s", [-7200.0, -1.0, 0.6, 7200.0])
def test_a_clock_that_was_set_is_no_gap(tmp_path: Path, step_s: float, kind: str) -> None:
    """The lengths of records are monotonic, and the record says by how much its wall clock moved."""
    before = record(1, 1, 2.0, 1.0)
    stepped = record(2, 1, 3.0 + step_s, 1.0, event(kind, step_s))
    after = record(3, 1, 4.0 + step_s, 1.0)

    assert after_gaps(tmp_path, before, stepped, after) == []


@pytest.mark.parametrize("step_s", [-7200.0, -1.0, 0.6, 7200.0])
def test_a_clock_that_was_set_hides_no_missing_record(tmp_path: Path, step_s: float) -> None:
    """The record of interval 2 is missing, and the clock is set within interval 3."""
    before = record(1, 1, 2.0, 1.0)
    stepped = record(3, 1, 4.0 + step_s, 1.0, event("clock_step", step_s))

    assert after_gaps(tmp_path, before, stepped) == [3]


@pytest.mark.parametrize("step_s", [-7200.0, 7200.0])
def test_a_step_that_no_record_reports_is_a_gap(tmp_path: Path, step_s: float) -> None:
    """The record that reported it is the one that is missing."""
    assert after_gaps(tmp_path, record(1, 1, 2.0, 1.0), record(3, 1, 4.0 + step_s, 1.0)) == [3]


def test_a_missing_file_is_a_gap_also_between_epochs(tmp_path: Path) -> None:
    """A writer numbers its files in turn, from 0 on."""
    files: list[list[Record | End]] = [[record(k, epoch=k + 1)] for k in range(6)]
    files[3] = []
    write(tmp_path, SOURCE, *files)
    for number in (0, 2):
        (tmp_path / SOURCE / f"{number:06d}.jsonl").unlink()

    found = MergedReader(tmp_path, [SOURCE]).read()

    assert [(one.record.k, one.is_after_gap) for one in found] == [
        (1, True),
        (4, True),  # behind a file without a record
        (5, False),
    ]
