"""A line with which processes die: it is found, set aside and counted, and all others are kept once."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest

from soak.core.journal_format import decode
from soak.core.model import Record
from soak.shipping.ingest import Ingest
from soak.store.admission import read_refused
from soak.store.journal.reader import SourceReader, complete_size, segments
from soak.store.run_folder import RunFolder
from soak.store.samples_topic import ShippedLine
from tests.support.fakes import FakeClock
from tests.support.shipping.shipped_run import Host, folder_of, records

SOURCES = ("probe@b", "probe@c")
SECONDS = 23
DEADLY_K = 11
BATCH = 10
DIED = 9


class Deadly(str):
    """The name of a source that ends the process which looks at it, as a record may by its memory."""

    __slots__ = ()

    def endswith(self, *_: object) -> NoReturn:
        os._exit(DIED)


class Failing(str):
    """The name of a source that raises the next of `errors` each time that a process looks at it."""

    __slots__ = ("errors",)
    errors: list[Exception]

    def endswith(self, *arguments: object) -> bool:
        if self.errors:
            raise self.errors.pop()
        return super().endswith(*arguments)  # type: ignore[arg-type]  # whatever a caller gives


def failing(line: ShippedLine, errors: Sequence[Exception]) -> ShippedLine:
    source = Failing(line.source)
    source.errors = list(errors)
    return replace(line, source=source)


def sent(tmp_path: Path) -> tuple[RunFolder, list[ShippedLine]]:
    """Return the journals of another host, and their lines as they lie on a topic, a partition a source."""
    there = folder_of(tmp_path / "there")
    found = []
    for partition, source in enumerate(SOURCES):
        host = Host(there, source)
        host.write(SECONDS)
        host.close(is_end=True)
        (path,) = segments(there.journal / source)
        found.append(
            [
                ShippedLine(source, raw, place=(partition, 100 + number))
                for number, raw in enumerate(path.read_bytes().split(b"\n")[:-1])
            ]
        )
    return there, [line for pair in zip(*found, strict=True) for line in pair]


def place_of_record(lines: Sequence[ShippedLine], source: str, k: int) -> int:
    """Return which of the lines is the record of a second."""
    for at, line in enumerate(lines):
        found = decode(line.raw)
        if line.source == source and isinstance(found, Record) and found.k == k:
            return at
    raise ValueError(f"no second {k} of {source}")


def take(here: RunFolder, lines: Sequence[ShippedLine], batch: int = BATCH) -> Ingest:
    """Take all lines, from the first on, as a process does that starts anew."""
    ingest = Ingest(here, FakeClock(), "a")
    try:
        for at in range(0, len(lines), batch):
            ingest.write(lines[at : at + batch])
    finally:
        ingest.close()
    return ingest


def deaths(work: Callable[[], Ingest], limit: int = 20) -> tuple[Ingest, int]:
    """Start over until all lines are taken; return the last process, and how many failed before it."""
    for failed in range(limit):
        try:
            return work(), failed
        except (ArithmeticError, OSError):
            continue
    raise AssertionError("it never ends")


def status_of(work: Callable[[], object]) -> int:
    """Do the work in a process of its own, and return the status with which that ends."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def written(here: RunFolder, source: str) -> list[int]:
    """Return the seconds of all records in a journal, also of those that no reader would return twice."""
    return [
        record.k
        for path in segments(here.journal / source)
        for record, _ in SourceReader(path.parent).read(path, 0, complete_size(path))
    ]


def test_a_line_that_ends_processes_is_set_aside_and_the_others_are_kept_once(
    tmp_path: Path,
) -> None:
    """Two processes die with its batch, two more with the line alone; the fifth one goes on."""
    there, lines = sent(tmp_path)
    at = place_of_record(lines, SOURCES[0], DEADLY_K)
    deadly = lines[at]
    lines[at] = replace(deadly, source=Deadly(deadly.source))
    here = folder_of(tmp_path / "here")

    statuses = [status_of(lambda: take(here, lines))]
    while statuses[-1] and len(statuses) < 20:
        statuses.append(status_of(lambda: take(here, lines)))

    (refused,) = read_refused(here.refused)
    whole = records(there, SOURCES[0])
    partition, offset = deadly.place or (-1, -1)
    assert statuses == [DIED] * 4 + [0]
    assert records(here, SOURCES[0]) == whole[:DEADLY_K] + whole[DEADLY_K + 1 :]
    assert records(here, SOURCES[1]) == records(there, SOURCES[1])
    assert written(here, SOURCES[0]) == [k for k in range(SECONDS) if k != DEADLY_K]
    assert written(here, SOURCES[1]) == list(range(SECONDS))
    assert (refused.source, refused.count) == (SOURCES[0], 1)
    assert refused.place == f"partition {partition}, offset {offset}"
    assert refused.reason == "two processes died while they took it alone"


@pytest.mark.parametrize("batches", [(10, 7, 13, 5, 100), (100,) * 5, (1,) * 5])
def test_batches_need_not_be_the_same_in_each_process(
    tmp_path: Path, batches: Sequence[int]
) -> None:
    """A poll returns as many lines as have come by then."""
    there, lines = sent(tmp_path)
    at = place_of_record(lines, SOURCES[1], DEADLY_K)
    lines[at] = failing(lines[at], [ZeroDivisionError()] * 99)
    here, sizes = folder_of(tmp_path / "here"), iter(batches)

    ingest, failed = deaths(lambda: take(here, lines, next(sizes)))

    assert (failed, ingest.refused) == (4, 1)
    assert written(here, SOURCES[1]) == [k for k in range(SECONDS) if k != DEADLY_K]
    assert records(here, SOURCES[0]) == records(there, SOURCES[0])


def test_a_line_that_was_set_aside_is_on_the_page_and_in_the_log_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Stored offsets lag behind: the next process reads it again, and neither takes nor counts it."""
    _, lines = sent(tmp_path)
    at = place_of_record(lines, SOURCES[0], DEADLY_K)
    lines[at] = failing(lines[at], [ZeroDivisionError()] * 99)
    here = folder_of(tmp_path / "here")

    first, _ = deaths(lambda: take(here, lines))
    second, failed = deaths(lambda: take(here, lines))

    counts = [
        {column.metric: value for column, value in ingest.samples()} for ingest in (first, second)
    ]
    assert failed == 0
    assert [one["receive_set_aside_lines_total"] for one in counts] == [1, 0]
    assert [one["receive_refused_lines_total"] for one in counts] == [1, 1]
    assert [line for line in caplog.messages if line.startswith("line_set_aside")] == [
        f"line_set_aside partition=0 offset={(lines[at].place or (0, 0))[1]} deaths=2"
    ]


def test_two_such_lines_in_one_batch_are_both_set_aside(tmp_path: Path) -> None:
    """The second one costs two deaths: its batch is taken line by line already."""
    _, lines = sent(tmp_path)
    for k in (2, 3):
        at = place_of_record(lines, SOURCES[0], k)
        lines[at] = failing(lines[at], [ZeroDivisionError()] * 99)
    here = folder_of(tmp_path / "here")

    ingest, failed = deaths(lambda: take(here, lines, batch=len(lines)))

    assert (failed, ingest.refused) == (6, 2)
    assert written(here, SOURCES[0]) == [k for k in range(SECONDS) if k not in {2, 3}]


@pytest.mark.parametrize("failures", [(1, 1), (3, 0), (0, 3), (2, 1)])
def test_no_line_is_set_aside_for_deaths_of_another_cause(
    tmp_path: Path, failures: tuple[int, int]
) -> None:
    """Processes die at two lines, at none more than twice alone, and then no more."""
    there, lines = sent(tmp_path)
    for at, count in zip((3, 7), failures, strict=True):
        lines[at] = failing(lines[at], [ZeroDivisionError()] * count)
    here = folder_of(tmp_path / "here")

    ingest, failed = deaths(lambda: take(here, lines))

    assert (failed, ingest.refused) == (sum(failures), 0)
    assert all(records(here, source) == records(there, source) for source in SOURCES)


def test_errors_of_the_folder_are_no_fault_of_a_line(tmp_path: Path) -> None:
    """It was removed or closed to us, however often the process starts again."""
    there, lines = sent(tmp_path)
    lines[3] = failing(lines[3], [OSError(errno.EACCES, "Permission denied")] * 10)
    here = folder_of(tmp_path / "here")

    ingest, failed = deaths(lambda: take(here, lines))

    assert (failed, ingest.refused) == (10, 0)
    assert all(records(here, source) == records(there, source) for source in SOURCES)


def test_lines_that_wait_for_room_on_the_drive_are_no_suspects(tmp_path: Path) -> None:
    """A process that is killed meanwhile died with none of them."""
    there, lines = sent(tmp_path)
    lines[3] = failing(lines[3], [OSError(errno.ENOSPC, "No space left on device")] * 10)
    here = folder_of(tmp_path / "here")

    is_behind = []
    for _ in range(5):
        ingest = Ingest(here, FakeClock(), "a")
        ingest.write(lines)
        ingest.write(())
        is_behind.append(ingest.is_behind)
        ingest.close()
    last = take(here, lines)

    assert (is_behind, last.refused) == ([True] * 5, 0)
    assert all(records(here, source) == records(there, source) for source in SOURCES)


def test_a_process_that_is_killed_while_it_waits_died_with_no_line(tmp_path: Path) -> None:
    """Whatever line was the last one."""
    there, lines = sent(tmp_path)
    here = folder_of(tmp_path / "here")

    for _ in range(10):
        take(here, lines[:9], batch=1)
    last = take(here, lines)

    assert last.refused == 0
    assert all(records(here, source) == records(there, source) for source in SOURCES)


def test_another_line_in_the_same_place_is_taken(tmp_path: Path) -> None:
    """The topic was made anew, so its offsets begin again."""
    there, lines = sent(tmp_path)
    first, second = ([line for line in lines if line.source == source] for source in SOURCES)
    at = place_of_record(first, SOURCES[0], DEADLY_K)
    first[at] = failing(first[at], [ZeroDivisionError()] * 4)
    here = folder_of(tmp_path / "here")
    deaths(lambda: take(here, first))

    anew = [replace(line, place=other.place) for line, other in zip(second, first, strict=True)]
    ingest = take(here, anew)

    assert ingest.refused == 1
    assert records(here, SOURCES[1]) == records(there, SOURCES[1])


@pytest.mark.parametrize(
    "text",
    [
        "",
        "not JSON\n",
        "[]\n",
        "{}\n",
        '{"is_working":true,"spans":{"0":[0]},"deaths":9,"line":null,"line_deaths":0,"aside":[]}\n',
        '{"is_working":true,"spans":{},"deaths":Infinity,"line":null,"line_deaths":0,"aside":[]}\n',
        '{"is_working":true,"spans":{},"deaths":1,"line":[1],"line_deaths":0,"aside":[]}\n',
        '{"is_working":true,"spans":{},"deaths":1,"line":null,"line_deaths":0,"aside":[7]}\n',
    ],
)
def test_a_damaged_note_is_as_good_as_none(tmp_path: Path, text: str) -> None:
    there, lines = sent(tmp_path)
    here = folder_of(tmp_path / "here")
    (here.path / "receive-work.json").write_text(text)

    ingest = take(here, lines)

    assert ingest.refused == 0
    assert records(here, SOURCES[0]) == records(there, SOURCES[0])


def test_a_note_that_cannot_be_stored_stops_nothing(tmp_path: Path) -> None:
    there, lines = sent(tmp_path)
    here = folder_of(tmp_path / "here")
    (here.path / "receive-work.json").mkdir()

    take(here, lines)

    assert records(here, SOURCES[0]) == records(there, SOURCES[0])
