"""Records of the samples topic as rows, and what happens to those that cannot be read."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from soak.core.journal_format import Columns, columns_line, encode
from soak.core.model import Column
from soak.store.run_announcements import Announcement
from soak.store.samples_topic import ANNOUNCEMENT_HEADER, headers_of
from spark.sources.schema import Row, columns_of
from spark.sources.topic_log import TopicRecord
from spark.sources.topic_offsets import Range
from spark.sources.topic_rows import ANNOUNCED, MAX_GAPS, KnownColumns, TopicRows
from tests.support.spark.fake_topic import (
    COLUMNS,
    START_NS,
    FakeTopic,
    columns_text_line,
    record_line,
)

NAMED = list(headers_of("r1", START_NS).items())


class KeptLetters:
    def __init__(self, failure: str = "") -> None:
        self.kept: list[tuple[int, str]] = []
        self._failure = failure

    def keep(self, record: TopicRecord, reason: str) -> None:
        self.kept.append((record.offset, reason))

    def finish(self) -> str:
        return self._failure


def rows_of(
    topic: FakeTopic,
    begin: int = 0,
    *,
    known: KnownColumns | None = None,
    letters: KeptLetters | None = None,
    look_back: int = 1000,
    note: str = "",
) -> list[Row]:
    rows = TopicRows("t", topic, known or KnownColumns(), letters, look_back=look_back)
    return list(rows.of(Range(0, begin, topic.end[0], note)))


def seen(rows: Sequence[Row]) -> list[object]:
    return [row["k"] for row in rows if row.get("gap") is None]


def gaps(rows: Sequence[Row]) -> list[str]:
    return [str(row["gap"]) for row in rows if row.get("gap") is not None]


def test_the_first_row_that_uses_columns_carries_them() -> None:
    topic = FakeTopic()
    topic.write(columns_text_line())
    for k in range(3):
        topic.write(record_line(k))

    rows = rows_of(topic)

    assert seen(rows) == [0, 1, 2]
    assert columns_of(str(rows[0]["columns"])) == COLUMNS
    assert [row["columns"] for row in rows[1:]] == [None, None]
    assert (rows[2]["run"], rows[2]["source"], rows[2]["values"]) == ("r1", "probe@b", (2.0, 2.0))


def test_columns_of_an_earlier_batch_are_looked_for_once() -> None:
    """By a process that has not seen them; what it has looked through it does not read again."""
    topic = FakeTopic()
    topic.write(columns_text_line())
    for k in range(23):
        topic.write(record_line(k))
    known = KnownColumns()

    rows = rows_of(topic, 20, known=known)
    again = len(topic.reads)
    topic.write(record_line(23))
    more = rows_of(topic, 24, known=known)

    assert seen(rows) == [19, 20, 21, 22]
    assert columns_of(str(rows[0]["columns"])) == COLUMNS
    assert (seen(more), columns_of(str(more[0]["columns"]))) == ([23], COLUMNS)
    assert topic.reads[again:] == [(0, 24, 25)]


def test_a_record_without_columns_is_a_gap_and_costs_one_look() -> None:
    """Retention has deleted the line; the sender repeats it soon."""
    topic, known = FakeTopic(), KnownColumns()
    for k in range(5):
        topic.write(record_line(k))

    rows = rows_of(topic, 2, known=known)

    name = columns_line(COLUMNS).id
    assert gaps(rows) == [
        f"topic t, partition 0, offset {offset}: no columns line {name}" for offset in (2, 3, 4)
    ]
    assert topic.reads == [(0, 2, 5), (0, 0, 2)]


def test_columns_that_are_repeated_later_in_a_batch_serve_records_before() -> None:
    topic = FakeTopic()
    for k in range(3):
        topic.write(record_line(k))
    topic.write(columns_text_line())
    topic.write(record_line(3))

    rows = rows_of(topic, 1)

    assert sorted(map(str, seen(rows))) == ["1", "2", "3"]
    assert [bool(row["columns"]) for row in rows] == [True, False, False]


def test_columns_are_of_their_own_source() -> None:
    """Another source, or another run, may use the same id for other columns."""
    topic = FakeTopic()
    topic.write(columns_text_line())
    topic.write(record_line(1), key=b"probe@c")
    topic.write(record_line(2), run="r2")

    assert len(gaps(rows_of(topic))) == 2


def test_an_id_with_other_columns_is_refused() -> None:
    topic, letters = FakeTopic(), KeptLetters()
    topic.write(columns_text_line())
    topic.write(encode(Columns(columns_line(COLUMNS).id, (Column("c"), Column("d")))))
    topic.write(record_line(1))

    rows = rows_of(topic, letters=letters)

    assert columns_of(str(rows[-1]["columns"])) == COLUMNS
    assert len(letters.kept) == 1


@pytest.mark.parametrize(
    ("value", "key", "headers", "reason"),
    [
        (b"not json", b"probe@b", NAMED, "invalid literal"),
        (None, b"probe@b", NAMED, "invalid literal"),
        (record_line(1)[:-1] + b"x", b"probe@b", NAMED, "invalid literal"),
        (record_line(1)[:-9] + b"\t00000000", b"probe@b", NAMED, "crc does not match"),
        (record_line(-1), b"probe@b", NAMED, "interval is -1, not a whole number"),
        (record_line(2**33), b"probe@b", NAMED, "not a whole number"),
        (record_line(1, -1), b"probe@b", NAMED, "epoch is -1, not a whole number"),
        (record_line(1), None, NAMED, "the key is not the name of a source"),
        (record_line(1), b"../../etc@b", NAMED, "the key is not the name of a source"),
        (record_line(1), b"\xff@b", NAMED, "the key is not the name of a source"),
        (record_line(1), b"probe@b", [], "the header `run` is not the id of a run"),
        (
            record_line(1),
            b"probe@b",
            [("run", b"../r"), NAMED[1]],
            "the header `run` is not the id of a run",
        ),
        (record_line(1), b"probe@b", NAMED[:1], "the header `start_ns`"),
    ],
)
def test_a_poisoned_record_is_a_gap_and_a_dead_letter(
    value: bytes | None,
    key: bytes | None,
    headers: list[tuple[str, bytes | None]],
    reason: str,
) -> None:
    """And those around it are read."""
    topic, letters = FakeTopic(), KeptLetters()
    topic.write(columns_text_line())
    topic.write(record_line(0))
    topic.write(value, key=key, headers=headers)
    topic.write(record_line(2))

    rows = rows_of(topic, letters=letters)

    assert seen(rows) == [0, 2]
    assert gaps(rows)[0].startswith("topic t, partition 0, offset 2: ")
    assert reason in gaps(rows)[0] or "crc" in gaps(rows)[0]
    assert [offset for offset, _ in letters.kept] == [2]


def test_columns_of_a_newer_version_name_it() -> None:
    import zlib  # noqa: PLC0415  # for one line of a later program

    body = json.dumps({"t": "c", "version": 99, "id": "x", "columns": []}).encode()
    topic = FakeTopic()
    topic.write(b"%s\t%08x" % (body, zlib.crc32(body)))

    (gap,) = gaps(rows_of(topic))

    assert "journal of version 99; this program reads up to 1" in gap


def test_one_producer_of_waste_makes_few_rows() -> None:
    topic = FakeTopic()
    topic.write(columns_text_line())
    for _ in range(100):
        topic.write(b"waste")
    topic.write(record_line(1))

    rows = rows_of(topic)

    assert seen(rows) == [1]
    assert len(gaps(rows)) == MAX_GAPS + 1
    assert gaps(rows)[-1] == f"topic t, partition 0: {100 - MAX_GAPS} further records"


def test_what_retention_deleted_is_said_with_its_place() -> None:
    topic = FakeTopic()
    for k in range(9):
        topic.write(columns_text_line() if k % 2 else record_line(k))
    topic.delete_before(5)

    rows = rows_of(topic, 2)

    assert gaps(rows) == [
        "topic t, partition 0, offset 2 to 4: deleted before they were read",
    ]
    assert seen(rows) == [6, 8]


def test_notes_and_lost_letters_are_said() -> None:
    rows = rows_of(FakeTopic(), note="partition 0 is new", letters=KeptLetters("no answer"))

    assert gaps(rows) == ["topic t: partition 0 is new", "t.dead: no answer"]


def test_an_announcement_is_a_row_on_request() -> None:
    topic = FakeTopic()
    sent = Announcement("x", "r7", START_NS, 23, is_over=False, sent_wall_ns=START_NS + 5)
    headers: list[tuple[str, bytes | None]] = [(ANNOUNCEMENT_HEADER, b"x")]
    topic.write(sent.to_json().encode(), key=b"x", headers=headers)
    topic.write(b"{}", key=b"x", headers=headers)

    silent = rows_of(topic)
    rows = TopicRows("t", topic, KnownColumns(), is_announcing=True)
    found = list(rows.of(Range(0, 0, 2)))

    (event,) = json.loads(str(found[0]["events"]))
    assert silent == []
    assert (found[0]["run"], found[0]["source"], event["kind"]) == ("r7", "", ANNOUNCED)
    assert event["fields"]["end_k"] == 23
    assert len(gaps(found)) == 1


def test_what_a_process_keeps_of_columns_is_bounded() -> None:
    """What it dropped it looks for again."""
    topic, known = FakeTopic(), KnownColumns(max_bytes=200)
    for name in ("a", "b", "c"):
        topic.write(columns_text_line(), key=f"probe@{name}".encode())
    for name in ("a", "b", "c"):
        topic.write(record_line(1), key=f"probe@{name}".encode())

    rows = rows_of(topic, 3, known=known)

    assert [row["source"] for row in rows if row.get("columns")] == [
        "probe@a",
        "probe@b",
        "probe@c",
    ]


PIECES = st.lists(
    st.tuples(st.sampled_from("abc"), st.sampled_from(["record", "columns", "waste", "skip"])),
    max_size=40,
)


@given(pieces=PIECES, cuts=st.lists(st.integers(0, 40), max_size=6), workers=st.integers(1, 3))
def test_batches_give_the_rows_of_one(
    pieces: list[tuple[str, str]], cuts: list[int], workers: int
) -> None:
    """However the topic is cut, and whichever process reads a part: the same records with columns."""
    topic = FakeTopic()
    for k, (name, what) in enumerate(pieces):
        if what == "skip":
            topic.skip(1)
        else:
            line = {"record": record_line(k), "columns": columns_text_line(), "waste": b"x"}[what]
            topic.write(line, key=f"probe@{name}".encode())
    whole = rows_of(topic)
    edges = sorted({0, topic.end[0], *(cut for cut in cuts if cut < topic.end[0])})
    processes = [KnownColumns() for _ in range(workers)]
    parts: list[Row] = []
    for at, (begin, end) in enumerate(pairwise(edges)):
        found = list(TopicRows("t", topic, processes[at % workers]).of(Range(0, begin, end)))
        carried = {row["source"] for row in found if row.get("columns")}
        assert carried == {row["source"] for row in found if row.get("gap") is None}
        parts += found

    assert records_of(parts) <= records_of(whole)  # what waits for columns may be cut off from them
    assert records_of(parts) >= records_of(whole, late=pieces)


def records_of(
    rows: Sequence[Row], late: Sequence[tuple[str, str]] = ()
) -> set[tuple[object, object]]:
    """Return source and second of each record; `late`: without those before a source's first columns."""
    first: dict[str, int] = {}
    for k, (name, what) in enumerate(late):
        if what == "columns":
            first.setdefault(f"probe@{name}", k)
    return {
        (row["source"], row["k"])
        for row in rows
        if row.get("gap") is None and int(str(row["k"])) >= first.get(str(row["source"]), 0)
    }
