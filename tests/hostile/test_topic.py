"""The gate of the samples topic: who may say what, and what an announcement may hold."""

from __future__ import annotations

import json
import tracemalloc
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from soak.core.errors import BrokerError
from soak.core.journal_format import MAX_TIME_NS, columns_line, encode
from soak.core.model import Column
from soak.core.plan.plan import Ship
from soak.shipping.ingest import MAX_AHEAD_SECONDS, MAX_EPOCHS_AHEAD, Ingest
from soak.store.admission import (
    MAX_GROUPS,
    SIGNATURE_HEADER,
    Refused,
    RefusedLines,
    Signer,
    is_same,
    read_refused,
    signer_of,
)
from soak.store.journal.reader import read_source
from soak.store.run_announcements import (
    MAX_AGE_NS,
    Announcement,
    admitted,
    parse_announcement,
)
from soak.store.run_folder import read_plan
from soak.store.samples_topic import ANNOUNCEMENT_HEADER, ShippedLine, headers_of
from spark.sources.topic_offsets import Range
from spark.sources.topic_rows import KnownColumns, TopicRows
from tests.support.fakes import FakeClock
from tests.support.hostile import COLUMNS, INPUTS, line_of, record_body
from tests.support.shipping.shipped_run import START_NS, folder_of
from tests.support.spark.fake_topic import FakeTopic, columns_text_line, record_line
from tests.support.spark.synthetic_run import Shape, write_synthetic_run

SIGNER = Signer(b"a secret of the deployment")
HEADERS = headers_of("r1", START_NS)
NOW_NS = START_NS + 100 * 10**9
OURS = Announcement("p", "r1", START_NS, 3600, is_over=False, sent_wall_ns=NOW_NS)
TEXTS = st.text(max_size=8)


def announced(one: Announcement, signer: Signer | None = SIGNER) -> tuple[bytes, dict[str, bytes]]:
    """Return the message of an announcement."""
    raw, plan = one.to_json().encode(), one.plan.encode()
    headers = {ANNOUNCEMENT_HEADER: plan}
    if signer is not None:
        headers[SIGNATURE_HEADER] = signer.announcement(plan, raw)
    return raw, headers


@given(
    st.lists(st.tuples(TEXTS, TEXTS, TEXTS, TEXTS, st.binary(max_size=9)), min_size=2, max_size=2)
)
def test_a_signature_holds_for_nothing_else(
    lines: list[tuple[str, str, str, str, bytes]],
) -> None:
    """Not for another run, start, source, sender or text, wherever one ends and the next begins."""
    INPUTS["signatures"] += 1
    first, second = (
        SIGNER.line({"run": run.encode(), "start_ns": start.encode()}, source, sender, raw)
        for run, start, source, sender, raw in lines
    )

    assert is_same(first, second) == (lines[0] == lines[1])


@pytest.mark.parametrize("signature", [None, b"", b"x" * 32])
def test_what_nobody_signed_does_not_hold(signature: bytes | None) -> None:
    assert not is_same(signature, SIGNER.line(HEADERS, "probe@b", "", b"x"))


@pytest.mark.parametrize(
    ("secret", "message"), [("short", "shorter than 16"), (None, "no environment variable")]
)
def test_a_key_that_is_none_is_an_error(
    monkeypatch: pytest.MonkeyPatch, secret: str | None, message: str
) -> None:
    """Nothing is sent or taken without it."""
    monkeypatch.delenv("SHIP_KEY", raising=False)
    if secret is not None:
        monkeypatch.setenv("SHIP_KEY", secret)

    with pytest.raises(BrokerError, match=message):
        signer_of(Ship(key="${env:SHIP_KEY}"))


def test_a_plan_without_a_key_signs_nothing() -> None:
    assert signer_of(Ship()) is None


@given(
    st.binary(max_size=60)
    | st.recursive(
        st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | TEXTS,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
        max_leaves=8,
    ).map(lambda body: json.dumps(body).encode())
    | st.fixed_dictionaries(
        {
            "plan": TEXTS | st.integers(),
            "run_id": st.sampled_from(["r1", "../x", "", "a" * 200]),
            "start_wall_ns": st.integers(-(2**65), 2**65),
            "end_k": st.none() | st.integers(-(2**65), 2**65),
            "is_over": st.booleans() | st.integers(),
            "said_wall_ns": st.integers(-(2**65), 2**65),
        },
        optional={
            "phases": st.lists(st.lists(st.integers() | st.just("soak"), max_size=3), max_size=3),
            "detection": TEXTS | st.integers(),
        },
    ).map(lambda body: json.dumps(body).encode())
)
def test_any_bytes_are_an_announcement_within_bounds_or_none(raw: bytes) -> None:
    INPUTS["announcements"] += 1
    with suppress(ValueError):
        found = parse_announcement(raw)
        assert 0 <= found.start_wall_ns <= MAX_TIME_NS
        assert 0 <= found.sent_wall_ns <= MAX_TIME_NS
        assert found.end_k is None or 0 <= found.end_k <= MAX_TIME_NS
        assert parse_announcement(found.to_json().encode()) == found
        found.is_ongoing(NOW_NS)


@pytest.mark.parametrize(
    "raw",
    [
        b"[" * 100_000,
        b'{"plan": ' * 5000,
        b'{"said_wall_ns": 1' + b"0" * 4000 + b"}",
        b" " * 2**20 + b"{}",
        b"\xff\xfe",
    ],
    ids=["lists", "objects", "number", "size", "bytes"],
)
def test_an_announcement_that_is_too_much_is_none(raw: bytes) -> None:
    """One of these ended the probe daemon on every host."""
    with pytest.raises(ValueError, match=r"."):
        parse_announcement(raw)


@pytest.mark.parametrize(
    "forged",
    [
        replace(OURS, is_over=True),
        replace(OURS, end_k=1),
        replace(OURS, start_wall_ns=START_NS + 10**9),
        replace(OURS, run_id="r2", start_wall_ns=START_NS + 50 * 10**9),
    ],
    ids=["ends", "shortens", "moves", "replaces"],
)
def test_an_announcement_that_nobody_signed_ends_and_moves_no_run(forged: Announcement) -> None:
    """Nor one with the signature of a real one."""
    raw, _ = announced(forged)
    _, real = announced(OURS)

    for headers in ({ANNOUNCEMENT_HEADER: b"p"}, real):
        with pytest.raises(ValueError, match="its signature does not hold"):
            admitted(raw, headers, SIGNER, NOW_NS)
    assert admitted(*announced(forged), SIGNER, NOW_NS) == forged


@pytest.mark.parametrize("by_ns", [MAX_AGE_NS + 1, -MAX_AGE_NS - 1])
def test_an_announcement_of_another_time_is_refused(by_ns: int) -> None:
    """Somebody has kept a signed one, and sends it again."""
    with pytest.raises(ValueError, match="check the clocks, or it was sent again"):
        admitted(*announced(OURS), SIGNER, NOW_NS + by_ns)


@pytest.mark.parametrize("depth", [900, *range(930, 1010)])
def test_an_announcement_that_is_nested_deeply_is_none(depth: int) -> None:
    """Also where it can just be read, and not be shown."""
    nested = "[" * depth + "]" * depth
    for field in ("plan", "run_id", "phases", "detection"):
        body = json.loads(OURS.to_json()) | {field: "@"}
        with pytest.raises(ValueError, match=r"."):
            parse_announcement(json.dumps(body).replace('"@"', nested).encode())


def lines_of(*bodies: dict[str, object], is_signed: bool | None = None) -> list[ShippedLine]:
    columns = encode(columns_line(COLUMNS)).rstrip()
    raws = [columns, *map(line_of, bodies)]
    return [
        ShippedLine("probe@b", raw, place=(0, at), is_signed=is_signed)
        for at, raw in enumerate(raws)
    ]


def test_a_line_whose_signature_does_not_hold_is_refused_with_its_place(tmp_path: Path) -> None:
    """It is counted, shown, and never written."""
    folder = folder_of(tmp_path / "r")
    ingest = Ingest(folder, FakeClock(wall_ns=NOW_NS), "host")
    ingest.write(lines_of(record_body(3, NOW_NS, {}), is_signed=False))
    ingest.write(lines_of(record_body(4, NOW_NS, {}), is_signed=True))
    ingest.close()

    (one,) = read_refused(folder.refused)
    assert (one.source, one.reason, one.count) == ("probe@b", "its signature does not hold", 2)
    assert one.place == "partition 0, offset 0"
    assert (ingest.records, ingest.refused, ingest.unsigned) == (1, 2, 0)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"k": 100 + MAX_AHEAD_SECONDS + 1}, "not within the run so far"),
        ({"inc": 200 + MAX_EPOCHS_AHEAD}, "far ahead of the last one"),
        ({"v": [1e300, 1.0]}, "a count of"),
        ({"h": {"publish_latency_seconds": "abc"}}, "histogram publish_latency_seconds"),
    ],
)
def test_a_record_of_another_time_or_of_nonsense_holds_up_none(
    tmp_path: Path, changes: dict[str, object], reason: str
) -> None:
    """The records after it are taken as if it had not come; after a restart too."""
    folder = folder_of(tmp_path / "r")
    clock = FakeClock(wall_ns=NOW_NS)
    ours = [record_body(at, NOW_NS, {}) for at in range(80)]
    taken = 0
    for lines in (lines_of(*ours[:5], record_body(50, NOW_NS, changes)), lines_of(*ours)):
        ingest = Ingest(folder, clock, "host")
        ingest.write(lines)
        ingest.close()
        taken += ingest.records

    (one,) = read_refused(folder.refused)
    assert reason in one.reason
    assert taken == 80


def test_a_source_that_the_plan_does_not_know_is_refused(tmp_path: Path) -> None:
    """A tenth producer with acknowledged messages that nobody received would be a loss."""
    folder = write_synthetic_run(tmp_path / "r", Shape(seconds=60))
    ingest = Ingest(folder, FakeClock(wall_ns=NOW_NS), "host", read_plan(folder))
    sources = [
        "produce.9@b",
        "consume.x@b",
        "conduct@b",
        "produce.0@../x",
        "produce.0@b",
        "probe@b",
    ]
    ingest.write([ShippedLine(source, columns_text_line()) for source in sources])
    ingest.close()

    assert sorted(one.source for one in read_refused(folder.refused)) == sorted(sources[:4])


def test_a_record_that_comes_again_is_counted(tmp_path: Path) -> None:
    """Whether its sender repeats it, or somebody else does."""
    ingest = Ingest(folder_of(tmp_path / "r"), FakeClock(wall_ns=NOW_NS), "host")
    for _ in range(3):
        ingest.write(lines_of(record_body(3, NOW_NS, {}), is_signed=True))
    ingest.close()

    assert (ingest.records, ingest.repeated, ingest.refused) == (1, 2, 0)


def test_what_is_sent_again_uses_up_no_room_of_a_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Anybody may copy signed lines; those that were not heard yet are still taken, in the same hour."""
    monkeypatch.setattr("soak.shipping.ingest.MAX_HOUR_BYTES", 20_000)
    folder = folder_of(tmp_path / "r")
    ingest = Ingest(folder, FakeClock(wall_ns=NOW_NS), "host")
    ours = lines_of(*(record_body(at, NOW_NS, {}) for at in range(20)), is_signed=True)
    for _ in range(50):
        ingest.write(ours[:11])
    ingest.write(ours)
    ingest.close()

    assert (ingest.records, ingest.refused) == (20, 0)


def test_a_source_fills_no_drive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither by records that go from hour to hour and back, nor by columns that take turns."""
    monkeypatch.setattr("soak.shipping.ingest.MAX_HOUR_BYTES", 20_000)
    folder = folder_of(tmp_path / "r")
    ingest = Ingest(folder, FakeClock(wall_ns=START_NS + 7200 * 10**9), "host")
    wide = [(Column(f"a{at}_seconds", (("b", "x" * 500),), "seconds"), *COLUMNS) for at in range(2)]
    lines = []
    for at in range(300):
        columns = wide[at % 2]
        body = record_body(3600 * (at % 2), NOW_NS, {"inc": 2 + at}, columns)
        lines += [encode(columns_line(columns)).rstrip(), line_of(body)]
        lines += [encode(columns_line(one)).rstrip() for one in wide]
    ingest.write([ShippedLine("probe@b", raw) for raw in lines])
    ingest.close()

    written = sum(path.stat().st_size for path in folder.journal.rglob("*.jsonl"))
    assert 20_000 < written < 2 * 20_000 + 2000
    (one,) = read_refused(folder.refused)
    assert one.reason == "more than N MiB in an hour"


def test_columns_that_come_again_are_written_once(tmp_path: Path) -> None:
    """Until a record is there; a later process knows them by then."""
    folder = folder_of(tmp_path / "r")
    other = (*COLUMNS, Column("a_seconds", (), "seconds"))
    lines = [encode(columns_line(columns)).rstrip() for columns in (COLUMNS, other)]
    for last in (1, 2):
        ingest = Ingest(folder, FakeClock(wall_ns=NOW_NS), "host")
        ingest.write([ShippedLine("probe@b", raw) for raw in 100 * lines])
        ingest.write([ShippedLine("probe@b", line_of(record_body(last, NOW_NS, {})))])
        ingest.close()

    raw = b"".join(path.read_bytes() for path in sorted(folder.journal.rglob("*.jsonl")))
    assert raw.count(b'"t":"c"') <= 6
    assert (ingest.records, ingest.refused) == (1, 0)


def columns_of(host: str, bytes_: int = 8000) -> tuple[Column, ...]:
    """Return columns that take so many bytes of memory, and some."""
    labels = tuple((f"{host}{at}", "x" * min(8000, bytes_)) for at in range(max(1, bytes_ // 8000)))
    return (*COLUMNS, Column("a_seconds", labels, "seconds"))


def columns_and_record(
    host: str, k: int, columns: tuple[Column, ...]
) -> tuple[ShippedLine, ShippedLine]:
    raw = encode(columns_line(columns)).rstrip(), line_of(record_body(k, NOW_NS, {}, columns))
    first, second = (ShippedLine(f"probe@{host}", one, is_signed=True) for one in raw)
    return first, second


def test_columns_that_were_used_longest_ago_are_forgotten_first(tmp_path: Path) -> None:
    """The records that name them are refused until their sender repeats them, and those of others taken."""
    folder = folder_of(tmp_path / "r")
    ingest = Ingest(folder, FakeClock(wall_ns=NOW_NS), "host", max_columns_bytes=20_000)
    lines = {
        (host, k): columns_and_record(host, k, columns_of(host))
        for host in "bcd"
        for k in (1, 2, 3)
    }
    for host in "bc":
        ingest.write(lines[host, 1])
    ingest.write([lines["b", 2][1]])
    ingest.write(lines["d", 1])  # c is the one that was used longest ago
    ingest.write([lines["b", 3][1], lines["c", 2][1]])
    ingest.write(lines["c", 3])
    ingest.close()

    (one,) = read_refused(folder.refused)
    assert (one.source, one.count, one.reason[:26]) == ("probe@c", 1, "its columns were forgotten")
    assert {
        host: [
            (found.k, columns) for found, columns in read_source(folder.journal, f"probe@{host}")
        ]
        for host in "bcd"
    } == {
        host: [(k, columns_of(host)) for k in taken]
        for host, taken in (("b", (1, 2, 3)), ("c", (1, 3)), ("d", (1,)))
    }


@pytest.mark.long
def test_columns_of_any_number_of_sources_take_bounded_memory(tmp_path: Path) -> None:
    """With records and without; those that an earlier process took too."""
    folder = folder_of(tmp_path / "r")
    lines = [columns_and_record(f"b{at}", 1, columns_of(f"{at}.", 400_000)) for at in range(16)]
    for _ in range(2):
        ingest = Ingest(folder, FakeClock(wall_ns=NOW_NS), "host", max_columns_bytes=2**20)
        tracemalloc.start()
        try:
            for at, (columns, record) in enumerate(lines):
                ingest.write([columns, record][: 1 + at % 2])
            held, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        ingest.close()
        assert held < 3 * 2**20

    assert (ingest.refused, ingest.repeated) == (0, 8)


def test_a_line_in_the_name_of_this_host_that_nobody_signed_is_counted(tmp_path: Path) -> None:
    """Its journal is here already, so nothing is taken; the report says that somebody tried."""
    folder = folder_of(tmp_path / "r")
    ingest = Ingest(folder, FakeClock(wall_ns=NOW_NS), "b")
    ingest.write(lines_of(record_body(3, NOW_NS, {}), is_signed=False))
    ingest.write(lines_of(record_body(3, NOW_NS, {}), is_signed=True))
    ingest.close()

    assert (ingest.records, ingest.refused) == (0, 2)


@pytest.mark.parametrize("again", [0, 2, 4])
def test_what_is_read_again_after_a_crash_is_counted_once(tmp_path: Path, again: int) -> None:
    """From whichever line on the next process reads: the offsets are stored some time after the counts."""
    folder = folder_of(tmp_path / "r")
    lines = [ShippedLine("probe@b", b"x", place=(at % 2, at)) for at in range(8)]
    total = []
    for part in (lines[:5], lines[again:]):
        ingest = Ingest(folder, FakeClock(wall_ns=NOW_NS), "host")
        ingest.write(part)
        ingest.close()
        total.append(ingest.refused)

    assert total == [5, 8]
    assert sum(one.count for one in read_refused(folder.refused)) == 8


def test_a_topic_that_was_made_anew_is_counted_from_its_beginning(tmp_path: Path) -> None:
    """Its offsets begin at nothing again, while the process lives."""
    ingest = Ingest(folder_of(tmp_path / "r"), FakeClock(wall_ns=NOW_NS), "host")
    for at in (7, 8, 0, 1):
        ingest.write([ShippedLine("probe@b", b"x", place=(0, at))])
    ingest.close()

    assert ingest.refused == 4


def test_a_list_of_before_is_read_and_counted_on(tmp_path: Path) -> None:
    """It says nothing of places."""
    folder = folder_of(tmp_path / "r")
    one = Refused("probe@b", "crc does not match", 3, 1, 2, "partition 0, offset 9", "x")
    folder.refused.mkdir()
    (folder.refused / "receive.json").write_text(json.dumps([asdict(one)]))
    ingest = Ingest(folder, FakeClock(wall_ns=NOW_NS), "host")
    ingest.write([ShippedLine("probe@c", b"x", place=(0, 4))])
    ingest.close()

    assert [found.count for found in read_refused(folder.refused)] == [3, 1]


def test_what_is_refused_is_bounded(tmp_path: Path) -> None:
    """A stranger may make up any number of sources and reasons."""
    refused = RefusedLines(tmp_path / "refused" / "receive.json", FakeClock())
    for at in range(5 * MAX_GROUPS):
        refused.add(f"probe@{at}", "x" * 10_000, "somewhere", b"\x1b[31m" * 1000)
    refused.store(is_due=True)

    found = read_refused(tmp_path / "refused")
    again = RefusedLines(tmp_path / "refused" / "receive.json", FakeClock())
    assert len(found) == MAX_GROUPS + 1
    assert sum(one.count for one in found) == again.total == 5 * MAX_GROUPS
    assert (tmp_path / "refused" / "receive.json").stat().st_size < 2**18 + 2**16
    assert "\x1b" not in found[0].example


@pytest.mark.parametrize(
    "text",
    [
        *("", "[", "[1]", '[{"source": 1}]', "[" * 100_000, "{}", '{"refused": 1, "counted": {}}'),
        *('{"refused": [], "counted": [1]}', '{"refused": [{}], "counted": {}}'),
    ],
)
def test_a_damaged_list_of_what_was_refused_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "receive.json").write_text(text)

    assert read_refused(tmp_path) == []


def test_the_detector_of_many_runs_takes_what_is_signed_alone() -> None:
    """What is not goes to the dead letters, with its place."""
    topic = FakeTopic()
    for raw in (columns_text_line(), record_line(1)):
        signature = SIGNER.line(HEADERS, "probe@b", "", raw)
        topic.write(raw, headers=[*HEADERS.items(), (SIGNATURE_HEADER, signature)])
    topic.write(record_line(2))
    topic.write(record_line(3), headers=[*HEADERS.items(), (SIGNATURE_HEADER, b"x" * 32)])

    rows = list(TopicRows("t", topic, KnownColumns(), signer=SIGNER).of(Range(0, 0, 4)))

    assert [row["k"] for row in rows if row["gap"] is None] == [1]
    assert [row["gap"] for row in rows if row["gap"]] == [
        f"topic t, partition 0, offset {at}: its signature does not hold" for at in (2, 3)
    ]
