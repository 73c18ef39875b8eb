"""Tailing journals: whatever is appended when, every record is read once."""

from __future__ import annotations

import json
import socket
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from soak.core.errors import RunFolderError
from soak.core.journal_format import End, columns_line, encode
from soak.core.model import Column, Record
from soak.store.journal.reader import has_ended
from spark.cluster.executors import shared_file
from spark.sources.journals import JournalSource, rows
from spark.sources.offsets import ColumnsIndex, Offset, columns_at, newest, reached, spans
from spark.sources.schema import ROWS
from tests.support.examples import examples

COLUMNS = (Column("sent_messages", (), "messages"),)
HEAD = encode(columns_line(COLUMNS))


def line(k: int, epoch: int = 1, columns: tuple[Column, ...] = COLUMNS) -> bytes:
    name = columns_line(columns).id
    values = tuple(float(k) for _ in columns)
    return encode(Record(k, epoch, k * 10**9, 10**9, name, values))


def append(journal: Path, source: str, segment: int, raw: bytes) -> None:
    path = journal / source / f"{segment:06d}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        file.write(raw)


class Tail:
    """Reads as Spark does: places between batches, spans from them, nothing else remembered."""

    def __init__(self, folder: Path, limit: int | None = None) -> None:
        self.folder, self.limit = folder, limit
        self.offset: Offset = {}
        self.index = ColumnsIndex()
        self.taken: list[tuple[str, int, int]] = []
        self.gaps: list[str] = []

    def batch(self) -> None:
        journal = self.folder / "journal"
        end = newest(journal, self.offset, self.limit)
        listed = spans(journal, self.offset, end, self.index)
        again = spans(journal, self.offset, end, ColumnsIndex())
        assert listed == again  # a restarted query plans the same batch
        for row in rows(self.folder, "run", listed):
            if row["gap"] is not None if "gap" in row else False:
                self.gaps.append(str(row["gap"]))
            else:
                self.taken.append((str(row["source"]), int(str(row["epoch"])), int(str(row["k"]))))
        self.offset = end


PIECES = st.lists(
    st.tuples(
        st.sampled_from(["a@h", "b@h"]),
        st.sampled_from(["write", "tear", "roll", "read", "read"]),
    ),
    max_size=40,
)


@pytest.mark.long
@settings(deadline=None, max_examples=examples(60))
@given(pieces=PIECES, limit=st.sampled_from([None, 1, 200, 100_000]))
def test_any_order_of_appends_and_reads_gives_every_whole_record_once(
    pieces: list[tuple[str, str]], limit: int | None
) -> None:
    """Rotation, restarts with a torn tail, and reads in between, with and without a limit."""
    with tempfile.TemporaryDirectory() as name:
        folder, expected = Path(name), []
        journal, tail = folder / "journal", Tail(folder, limit)
        segment, torn, k = {"a@h": 0, "b@h": 0}, {"a@h": b"", "b@h": b""}, 0
        for source, action in pieces:
            if action == "read":
                tail.batch()
                continue
            if action == "roll" or torn[source]:  # a writer starts a new file after a restart
                segment[source], torn[source] = segment[source] + 1, b""
            k += 1
            is_first = not (journal / source / f"{segment[source]:06d}.jsonl").exists()
            raw = (HEAD if is_first else b"") + line(k, segment[source])
            if action == "tear":
                torn[source] = raw = raw[:-7]
            else:
                expected.append((source, segment[source], k))
            append(journal, source, segment[source], raw)
        for _ in range(len(expected) + 50):
            tail.batch()

        assert sorted(tail.taken) == sorted(expected)
        assert len(tail.gaps) == 0


def test_a_line_without_its_newline_waits(tmp_path: Path) -> None:
    """The writer may be in the middle of it."""
    tail = Tail(tmp_path)
    append(tmp_path / "journal", "a@h", 0, HEAD + line(1) + line(2)[:20])
    tail.batch()
    before = list(tail.taken)
    append(tmp_path / "journal", "a@h", 0, line(2)[20:])
    tail.batch()

    assert (before, tail.taken[1:]) == ([("a@h", 1, 1)], [("a@h", 1, 2)])


def test_a_limit_cuts_at_a_line_and_never_stands_still(tmp_path: Path) -> None:
    """One byte a batch still gives one record a batch."""
    append(tmp_path / "journal", "a@h", 0, HEAD + b"".join(map(line, range(23))))
    tail = Tail(tmp_path, limit=1)
    for _ in range(24):
        tail.batch()

    assert [k for _, _, k in tail.taken] == list(range(23))


def test_damage_in_the_middle_is_a_gap_with_its_place(tmp_path: Path) -> None:
    """The lines around it are read."""
    broken = b"#" + line(2)[1:]
    append(tmp_path / "journal", "a@h", 0, HEAD + line(1) + broken + line(3))
    tail = Tail(tmp_path)
    tail.batch()

    assert [k for _, _, k in tail.taken] == [1, 3]
    assert tail.gaps == [f"000000.jsonl at byte {len(HEAD) + len(line(1))}: crc does not match"]


def test_a_file_shorter_than_what_was_read_is_a_gap(tmp_path: Path) -> None:
    """After a power loss the newest lines may be gone; the next file is read from its start."""
    journal, tail = tmp_path / "journal", Tail(tmp_path)
    append(journal, "a@h", 0, HEAD + line(1) + line(2))
    tail.batch()
    path = journal / "a@h" / "000000.jsonl"
    path.write_bytes(path.read_bytes()[: len(HEAD) + len(line(1))])
    append(journal, "a@h", 1, HEAD + line(3, 2))
    tail.batch()

    assert tail.taken[2:] == [("a@h", 2, 3)]
    assert len(tail.gaps) == 1


def test_a_file_shorter_than_what_was_planned_is_a_gap(tmp_path: Path) -> None:
    """An executor may see less of it than the driver did, and after a power loss so does the driver."""
    journal, lines = tmp_path / "journal", [HEAD, *map(line, range(5))]
    append(journal, "a@h", 0, b"".join(lines))
    end = newest(journal, {}, None)
    path = journal / "a@h" / "000000.jsonl"
    path.write_bytes(b"".join(lines[:3]))
    found = list(rows(tmp_path, "r", spans(journal, {}, end, ColumnsIndex())))

    assert [row["k"] for row in found[:-1]] == [0, 1]
    at, stop = len(b"".join(lines[:3])), len(b"".join(lines))
    assert found[-1]["gap"] == f"000000.jsonl at byte {at}: the bytes up to {stop} are missing"


@pytest.mark.parametrize("is_read_between", [False, True])
def test_files_that_are_missing_before_others_are_a_gap(
    tmp_path: Path, *, is_read_between: bool
) -> None:
    """One gap for each hole in the numbers, which a writer gives in turn; the oldest may be deleted."""
    journal, tail = tmp_path / "journal", Tail(tmp_path)
    for number in (3, 4, 7, 8):
        append(journal, "a@h", number, HEAD + line(number, number))
        if is_read_between:
            tail.batch()
    tail.batch()

    assert [k for _, _, k in tail.taken] == [3, 4, 7, 8]
    assert tail.gaps == ["files are missing from 000005.jsonl on"]


def test_columns_of_the_middle_are_found_without_reading_the_file_again(tmp_path: Path) -> None:
    """A second columns line is known to every later batch by its place."""
    journal = tmp_path / "journal"
    wider = (*COLUMNS, Column("acked_messages", (), "messages"))
    raw = HEAD + line(1) + encode(columns_line(wider)) + line(2, 1, wider)
    append(journal, "a@h", 0, raw + line(3, 1, wider))
    path = journal / "a@h" / "000000.jsonl"
    index = ColumnsIndex()
    places = index.before(path, len(raw))

    assert [columns_at(path, place) for place in places] == [
        (columns_line(COLUMNS).id, COLUMNS),
        (columns_line(wider).id, wider),
    ]
    assert index.before(path, len(HEAD)) == (0,)


def test_each_id_of_columns_is_reported_once_a_batch(tmp_path: Path) -> None:
    """Rows carry the id; the text travels once."""
    append(tmp_path / "journal", "a@h", 0, HEAD + b"".join(map(line, range(5))))
    journal = tmp_path / "journal"
    found = list(rows(tmp_path, "r", spans(journal, {}, newest(journal, {}, None), ColumnsIndex())))

    assert [row["columns"] is not None for row in found] == [True] + [False] * 4


def test_a_source_has_ended_when_its_newest_file_says_so(tmp_path: Path) -> None:
    """A new epoch withdraws it."""
    append(tmp_path, "a@h", 0, HEAD + line(1) + encode(End(1)))
    before = has_ended(tmp_path / "a@h")
    append(tmp_path, "a@h", 1, HEAD + line(2, 2))

    assert (before, has_ended(tmp_path / "a@h")) == (True, False)


def test_sources_are_dealt_out_evenly_and_keep_their_rank(tmp_path: Path) -> None:
    """Also when one appears whose name comes first, and after a restart, which knows the offset alone."""
    journal = tmp_path / "journal"
    for at in range(4):
        append(journal, f"probe@broker{at}", 0, HEAD + line(0))
    options = {"run_dir": str(tmp_path), "run": "r", "tasks": "2"}

    def read(start: Offset) -> tuple[Offset, list[dict[str, int]]]:
        tail = JournalSource(options).streamReader(ROWS)
        end = json.loads(json.dumps(newest(journal, start, None)))
        parts: list[Iterable[Any]] = [tail.read(part) for part in tail.partitions(start, end)]
        read = [[row for batch in part for row in batch.to_pylist()] for part in parts]
        return end, [{row["source"]: row["shard"] for row in part} for part in read]

    end, first = read({})
    append(journal, "consume@load", 0, HEAD + line(0))
    append(journal, "probe@broker2", 0, line(1))
    _, second = read(end)

    assert first == [
        {"probe@broker0": 0, "probe@broker2": 2},
        {"probe@broker1": 1, "probe@broker3": 3},
    ]
    assert second == [{"probe@broker2": 2, "consume@load": 4}]


def test_an_executor_that_has_another_folder_there_reads_nothing(tmp_path: Path) -> None:
    """It may join at any time; a copy of the run folder, say, lacks the newest lines."""
    append(tmp_path / "journal", "a@h", 0, HEAD + line(1))
    with shared_file(tmp_path) as shared:
        options = {"run_dir": str(tmp_path), "run": "r", "shared": str(shared)}
        tail = JournalSource(options).streamReader(ROWS)
        (part,) = tail.partitions({}, newest(tmp_path / "journal", {}, None))
        here: list[Any] = list(tail.read(part))

    assert [row["k"] for batch in here for row in batch.to_pylist()] == [1]
    wanted = rf"do not share {tmp_path}: {socket.gethostname()}: .* is another folder, or missing"
    with pytest.raises(RunFolderError, match=wanted):
        tail.read(part)


def test_how_far_a_source_was_taken_is_known_from_its_place(tmp_path: Path) -> None:
    """Of a file that begins with columns alone, it is the last interval of the file before."""
    for source, segment, raw in (
        ("probe@a", 0, HEAD + line(3) + line(4)),
        ("probe@a", 1, HEAD + line(5)),
        ("probe@b", 0, HEAD),
    ):
        append(tmp_path, source, segment, raw)
    place = [0, len(HEAD) + len(line(3))]

    assert reached(tmp_path, {"probe@a": place, "probe@b": [0, len(HEAD)]}) == {"probe@a": 3}
    assert reached(tmp_path, {"probe@a": [1, len(HEAD)]}) == {"probe@a": 4}
    assert reached(tmp_path, newest(tmp_path, {}, None)) == {"probe@a": 5}
