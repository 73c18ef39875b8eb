"""Lines of other hosts: each record is written once, and lines that do not belong here are refused."""

from __future__ import annotations

import errno
import os
import resource
from dataclasses import replace
from pathlib import Path

import pytest

from soak.core.errors import JournalError
from soak.core.journal_format import Line, columns_line, encode
from soak.core.model import Column, Record
from soak.core.plan.phases import decision_line
from soak.core.units import SECOND_NS
from soak.shipping.ingest import IDLE_NS, OTHER_DESCRIPTORS, WRITER_DESCRIPTORS, Ingest
from soak.store.journal.reader import (
    SourceReader,
    complete_size,
    last_record,
    read_source,
    segments,
    sources,
)
from soak.store.journal.writer import JournalWriter
from soak.store.run_folder import RunFolder, ensure_sender_id
from soak.store.samples_topic import ShippedLine
from tests.support.fakes import FakeClock
from tests.support.shipping.shipped_run import A, Host, folder_of, records

SOURCE = "probe@b"


def lines_of(folder: RunFolder, sender: str = "") -> list[ShippedLine]:
    """Return a source's lines as they would come over the topic."""
    return [
        ShippedLine(SOURCE, raw, sender)
        for path in segments(folder.journal / SOURCE)
        for raw in path.read_bytes().split(b"\n")[:-1]
    ]


def sent(
    tmp_path: Path, seconds: int, *, is_end: bool = True
) -> tuple[RunFolder, list[ShippedLine]]:
    folder = folder_of(tmp_path / "sender")
    host = Host(folder, SOURCE)
    host.write(seconds)
    host.close(is_end=is_end)
    return folder, lines_of(folder)


def taken(folder: RunFolder, *batches: list[ShippedLine]) -> Ingest:
    """Give each batch to a receiver of its own, as after so many restarts."""
    for batch in batches:
        ingest = Ingest(folder, FakeClock(), "a")
        ingest.write(batch)
        ingest.close()
    return ingest


def ended_epoch(folder: RunFolder) -> int:
    reader = SourceReader(folder.journal / SOURCE)
    list(read_source(folder.journal, SOURCE, reader))
    assert reader.damage == []
    return reader.ended_epoch


def test_a_repeated_line_is_written_once(tmp_path: Path) -> None:
    """Also by a second process."""
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
    assert ended_epoch(here) == 1


def test_lines_of_this_host_are_skipped(tmp_path: Path) -> None:
    """Its own journal has them."""
    _, lines = sent(tmp_path, 3)
    here = folder_of(tmp_path / "here")
    ingest = Ingest(here, FakeClock(), "b")

    ingest.write(lines)

    assert sources(here.journal) == []


@pytest.mark.parametrize(
    "line",
    [
        ShippedLine("../../x@b", encode(columns_line([A]))),
        ShippedLine("", b""),
        ShippedLine(SOURCE, b"not a line"),
        ShippedLine(SOURCE, b'{"t":"c","version":99,"id":"x","columns":[]}\t00000000'),
        ShippedLine(SOURCE, encode(Record(0, 1, 0, 0, "no such id", (1.0,)))[:-1]),
    ],
)
def test_other_messages_are_refused_and_counted(tmp_path: Path, line: ShippedLine) -> None:
    """Anybody may write to a topic."""
    here = folder_of(tmp_path / "here")

    ingest = taken(here, [line])

    assert ingest.refused == 1
    assert sources(here.journal) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["here"]


def test_an_interval_of_the_future_is_refused(tmp_path: Path) -> None:
    """A wrong clock must not make readers allocate room for years."""
    here = folder_of(tmp_path / "here")
    lines = [
        ShippedLine(SOURCE, encode(one)[:-1])
        for one in (columns_line([A]), record(-1), record(5), record(10**9), record(6))
    ]

    ingest = taken(here, lines)

    assert ingest.refused == 2
    assert [one.k for one, _ in read_source(here.journal, SOURCE)] == [5, 6]


def record(k: int) -> Record:
    return Record(k, 1, 0, 0, columns_line([A]).id, (1.0,))


def test_a_source_ends_with_the_run(tmp_path: Path) -> None:
    """A probe host that has not heard of the end goes on for a while."""
    _, lines = sent(tmp_path, 23, is_end=False)
    here = folder_of(tmp_path / "here")
    here.phases.write_text(decision_line("soak", 0) + decision_line("end", 10))

    taken(here, lines)

    assert [record.k for record, _ in read_source(here.journal, SOURCE)] == list(range(10))
    assert ended_epoch(here) == 1


@pytest.mark.long
def test_a_restart_between_columns_and_their_record_misses_nothing(
    tmp_path: Path,
) -> None:
    """The topic does not repeat the columns line."""
    there, lines = sent(tmp_path, 23)

    for cut in range(len(lines)):
        here = folder_of(tmp_path / f"here{cut}")
        refused = taken(here, lines[:cut], lines[cut:]).refused

        assert refused == 0
        assert records(here, SOURCE) == records(there, SOURCE)


def folder_with(path: Path, seconds: int, first_epoch: int) -> RunFolder:
    """Return another folder with the same source, from second 0 on."""
    folder = folder_of(path)
    writer = JournalWriter(folder.journal / SOURCE, FakeClock()).open(first_epoch)
    for k in range(seconds):
        writer.append(Record(k, writer.epoch, 0, 0, columns_line([A]).id, (1.0 * k,)), [A])
    writer.close(is_end=False)
    return folder


def test_of_two_hosts_of_one_name_one_is_written(tmp_path: Path) -> None:
    """The other is refused, and the reason is logged."""
    first = lines_of(folder_with(tmp_path / "b", 23, 1), "b")
    alike = lines_of(folder_with(tmp_path / "also-b", 23, 1), "also b")
    here = folder_of(tmp_path / "here")

    turns = [line for pair in zip(first, alike, strict=True) for line in pair]
    ingest = taken(here, turns)

    assert [record.k for record, _ in read_source(here.journal, SOURCE)] == list(range(23))
    assert ingest.refused == 23


def test_a_host_with_the_name_of_this_one_is_refused(tmp_path: Path) -> None:
    """Its lines have another sender id."""
    here = folder_of(tmp_path / "here")
    lines = lines_of(folder_with(tmp_path / "also-b", 23, 1), "also b")
    ingest = Ingest(here, FakeClock(), "b")

    ingest.write([ShippedLine(SOURCE, lines[0].raw, ensure_sender_id(here)), *lines[:5]])

    assert ingest.refused == 5


def test_a_recreated_folder_continues_with_higher_epochs(tmp_path: Path) -> None:
    """Its records are written; those of lower epochs are refused."""
    here = folder_of(tmp_path / "here")
    before = lines_of(folder_with(tmp_path / "before", 10, 3), "before")
    after = lines_of(folder_with(tmp_path / "after", 23, 11), "after")
    forgetful = lines_of(folder_with(tmp_path / "forgetful", 46, 1), "forgetful")

    ingest = taken(here, [*before, *after, *before, *forgetful])

    last = last_record(here.journal, SOURCE)
    assert last is not None
    assert (last[0].epoch, last[0].k) == (11, 22)
    assert ingest.refused == 10 + 46


def test_lines_wait_in_order_while_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No file can be created in the journal for a while; no line is lost, none is counted twice."""
    there, lines = sent(tmp_path, 23)
    here = folder_of(tmp_path / "here")
    ingest = Ingest(here, FakeClock(), "a")

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(os, "mkdir", refuse)
        ingest.write(lines)
    was_behind = ingest.is_behind
    ingest.write(())

    assert (was_behind, ingest.is_behind, ingest.records) == (True, False, 23)
    ingest.close()
    assert records(here, SOURCE) == records(there, SOURCE)


def test_an_error_that_is_none_of_the_drive_is_raised(tmp_path: Path) -> None:
    """Waiting would not help: here a file is in the place of the journal."""
    _, lines = sent(tmp_path, 3)
    here = folder_of(tmp_path / "here")
    here.journal.write_text("in the way")

    with pytest.raises(NotADirectoryError):
        Ingest(here, FakeClock(), "a").write(lines)


def open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_a_journal_that_cannot_be_closed_leaves_no_other_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All are flushed, then the first error is raised."""
    _, lines = sent(tmp_path, 3)
    here = folder_of(tmp_path / "here")
    ingest = Ingest(here, FakeClock(), "a")
    before = open_files()
    others = [ShippedLine(f"probe@{host}", line.raw) for host in "cde" for line in lines]
    ingest.write([*lines, *others])
    flushed = []

    def fail(descriptor: int) -> None:
        flushed.append(Path(f"/proc/self/fd/{descriptor}").readlink().parent.name)
        raise OSError(errno.EBADF, f"a defect of {flushed[-1]}")

    monkeypatch.setattr(os, "fdatasync", fail)
    with pytest.raises(JournalError, match="a defect of probe@b"):
        ingest.close()
    ingest.close()

    assert flushed == [SOURCE, "probe@c", "probe@d", "probe@e"]
    assert open_files() == before


def test_an_idle_source_holds_no_descriptor(tmp_path: Path) -> None:
    """It is opened again when it continues, and nothing is lost between."""
    there, lines = sent(tmp_path, 23)
    here, clock = folder_of(tmp_path / "here"), FakeClock()
    ingest = Ingest(here, clock, "a")
    before = open_files()

    ingest.write(lines[:10])
    clock.advance_ns(IDLE_NS)
    ingest.write(())
    idle = open_files()
    ingest.write(lines[10:])
    ingest.close()

    assert idle == before
    assert records(here, SOURCE) == records(there, SOURCE)


@pytest.mark.long
def test_more_sources_than_files_may_be_open_are_all_written(tmp_path: Path) -> None:
    """A terminal allows 1,024 files: those of the source that was written longest ago are closed."""
    lines = []
    for number in range(24):
        name = f"probe@b{number}"
        host = Host(folder_of(tmp_path / name), name)
        host.write(3)
        host.close(is_end=False)
        (path,) = segments(tmp_path / name / "journal" / name)
        lines.append([ShippedLine(name, raw, "") for raw in path.read_bytes().split(b"\n")[:-1]])
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    in_use = max(int(one.name) for one in Path("/proc/self/fd").iterdir())
    folder = folder_of(tmp_path / "here")
    resource.setrlimit(
        resource.RLIMIT_NOFILE, (max(in_use, OTHER_DESCRIPTORS) + 5 * WRITER_DESCRIPTORS, hard)
    )
    try:
        ingest = Ingest(folder, FakeClock(), "a")
        for batch in zip(*lines, strict=True):  # in turn, as they come over a topic
            ingest.write(batch)
            assert not ingest.is_behind
        ingest.close()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    assert len(sources(folder.journal)) == 24
    for name in sources(folder.journal):
        assert len(list(read_source(folder.journal, name))) == 3


def line_of(line: Line) -> ShippedLine:
    return ShippedLine(SOURCE, encode(line).rstrip(b"\n"), "s")


def test_columns_with_labels_in_any_order_are_read_back_also_after_a_restart(
    tmp_path: Path,
) -> None:
    """The copy has sorted labels under the sender's id."""
    columns = columns_line((Column("leader_info", (("leader", "1"), ("address", "b:9092"))),))
    lines = [line_of(Record(k, 1, 0, SECOND_NS, columns.id, (1.0,))) for k in range(20)]
    folder = folder_of(tmp_path / "here")

    ingest = taken(folder, [line_of(columns), *lines[:10]], lines[10:])

    assert ingest.refused == 0
    assert [record.k for record, _ in read_source(folder.journal, SOURCE)] == list(range(20))


def test_columns_under_the_id_of_others_are_refused(tmp_path: Path) -> None:
    own = columns_line((Column("a_seconds"),))
    ingest = taken(folder_of(tmp_path / "here"), [line_of(replace(own, id="0123456789ab"))])

    assert ingest.refused == 1


def test_a_folder_that_was_made_anew_within_a_run_goes_on(tmp_path: Path) -> None:
    """Its first epoch is the interval after the present one: thousands above the last."""
    columns = columns_line((Column("a_seconds"),))
    clock = FakeClock()
    ingest = Ingest(folder_of(tmp_path / "here"), clock, "a")
    clock.advance(5000)
    ingest.write([line_of(columns), line_of(Record(10, 1, 0, SECOND_NS, columns.id, (1.0,)))])
    ingest.write([line_of(Record(4000, 4001, 0, SECOND_NS, columns.id, (1.0,)))])
    ingest.close()

    assert (ingest.records, ingest.refused) == (2, 0)
