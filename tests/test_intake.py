"""What other hosts sent: each record is written once, and what is none of ours is left out."""

from __future__ import annotations

from pathlib import Path

import pytest

from soak.core.journal_text import columns_line, encode
from soak.core.model import Record
from soak.core.phases import to_line
from soak.daemons.intake import Intake
from soak.store.journal import segments
from soak.store.journal_reader import SourceReader, complete_size, read_source, sources
from soak.store.run_folder import RunFolder
from soak.store.samples_topic import Line
from tests.fakes import FakeClock
from tests.shipped_run import A, Host, folder_of, records

SOURCE = "probe@b"


def lines_of(folder: RunFolder) -> list[Line]:
    """Return a source's lines as they would come over the topic."""
    return [
        Line(SOURCE, raw)
        for path in segments(folder.journal / SOURCE)
        for raw in path.read_bytes().split(b"\n")[:-1]
    ]


def sent(tmp_path: Path, seconds: int, *, is_end: bool = True) -> tuple[RunFolder, list[Line]]:
    folder = folder_of(tmp_path / "sender")
    host = Host(folder, SOURCE)
    host.write(seconds)
    host.close(is_end=is_end)
    return folder, lines_of(folder)


def taken(folder: RunFolder, *batches: list[Line]) -> Intake:
    """Give each batch to a receiver of its own, as after so many restarts."""
    for batch in batches:
        intake = Intake(folder, FakeClock(), "a")
        intake.take(batch)
        intake.close()
    return intake


def ended_inc(folder: RunFolder) -> int:
    reader = SourceReader(folder.journal / SOURCE)
    list(read_source(folder.journal, SOURCE, reader))
    assert reader.damage == []
    return reader.ended_inc


def test_what_comes_twice_is_written_once(tmp_path: Path) -> None:
    """Also by a receiver that was started anew in between."""
    there, lines = sent(tmp_path, 23)
    here = folder_of(tmp_path / "here")

    taken(here, lines[:10], lines, lines[5:])

    written = [
        record
        for path in segments(here.journal / SOURCE)
        for record, _ in SourceReader(path.parent).read(path, 0, complete_size(path))
    ]
    assert records(here, SOURCE) == records(there, SOURCE)
    assert [record.k for record in written] == list(range(23))
    assert ended_inc(here) == 1


def test_what_this_host_recorded_itself_is_not_taken(tmp_path: Path) -> None:
    """Its journal is the truth, and another process writes it."""
    _, lines = sent(tmp_path, 3)
    here = folder_of(tmp_path / "here")
    intake = Intake(here, FakeClock(), "b")

    intake.take(lines)

    assert sources(here.journal) == []


@pytest.mark.parametrize(
    "line",
    [
        Line("../../x@b", encode(columns_line([A]))),
        Line("", b""),
        Line(SOURCE, b"not a line"),
        Line(SOURCE, b'{"t":"c","version":99,"id":"x","columns":[]}\t00000000'),
        Line(SOURCE, encode(Record(0, 1, 0, 0, "no such id", (1.0,)))[:-1]),
    ],
)
def test_what_is_no_line_of_a_journal_is_refused_and_counted(tmp_path: Path, line: Line) -> None:
    """Nothing is written, least of all outside of the journal."""
    here = folder_of(tmp_path / "here")

    intake = taken(here, [line])

    assert intake.refused == 1
    assert sources(here.journal) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["here"]


def test_a_source_that_goes_on_after_the_run_ends_with_the_run(tmp_path: Path) -> None:
    """A host that only probes hears of no phases: the detector would wait for its end."""
    _, lines = sent(tmp_path, 23, is_end=False)
    here = folder_of(tmp_path / "here")
    here.phases.write_text(to_line("soak", 0) + to_line("end", 10))

    taken(here, lines)

    assert [record.k for record, _ in read_source(here.journal, SOURCE)] == list(range(10))
    assert ended_inc(here) == 1
