"""The gate of records: what somebody forged is refused where it enters, and everything behind it goes on.

The corpus holds what once stopped the detector, killed a report or was taken although it says nothing; the
properties make up more of it.
"""

from __future__ import annotations

import base64
import json
import math
import shutil
import struct
import tracemalloc
import zlib
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.streaming.tws_tester import TwsTester

from detectors.level_shift import Config
from soak.core.audit import Audit
from soak.core.errors import JournalError
from soak.core.histogram import counts_of
from soak.core.histogram import decode as decode_histogram
from soak.core.journal_format import (
    CHECKED_EVENTS,
    MAX_EPOCH,
    MAX_INTERVAL,
    MAX_LINE_BYTES,
    MAX_TEXT_CHARACTERS,
    Columns,
    DamagedLineError,
    checked_places,
    columns_line,
    decode,
    encode,
    wrong_count,
)
from soak.core.model import Event, Record
from soak.core.series import parse_series
from soak.shipping.ingest import MAX_AHEAD_SECONDS, Ingest
from soak.store.admission import read_refused
from soak.store.audit import audit_run, pack_part
from soak.store.journal.history import position_of_interval
from soak.store.journal.merged import SegmentRecord
from soak.store.journal.reader import Damage, SourceReader, read_source
from soak.store.run_folder import RunFolder, read_plan, read_run
from soak.store.samples_topic import ShippedLine
from spark.batch.coverage import coverage
from spark.batch.timeline import assemble, digest_rows
from spark.sources.journals import batches, rows
from spark.sources.offsets import ColumnsIndex, columns_at, newest, spans
from spark.sources.schema import record_row
from spark.streaming.panel_state import PanelProcessor
from tests.support.fakes import FakeClock
from tests.support.hostile import (
    COLUMNS,
    INPUTS,
    Forged,
    forged_records,
    line_of,
    record_body,
)
from tests.support.shipping.shipped_run import START_NS, folder_of
from tests.support.spark.synthetic_run import (
    CONSUMER,
    PRODUCER,
    START_WALL_NS,
    Shape,
    write_synthetic_run,
)

pytestmark = pytest.mark.long
SHAPE = Shape(seconds=60, warm_up=5, drain=5, rate=20, deletions_k=None, fault_k=None)
FORGED = forged_records(30, START_WALL_NS + 31 * 10**9)
READ = [one for one in FORGED if not one.is_newer]
named = partial(pytest.mark.parametrize, ids=lambda one: one.kind.replace(" ", "-"))


def with_lines(path: Path, sources: tuple[str, ...], lines: list[bytes]) -> RunFolder:
    """Return a run into whose own journals somebody has written these lines."""
    folder = write_synthetic_run(path, SHAPE)
    for source in sources:
        with (folder.journal / source / "000000.jsonl").open("ab") as file:
            file.writelines(
                line + b"\n" for line in (encode(columns_line(COLUMNS)).rstrip(), *lines)
            )
    return folder


def judged(folder: RunFolder) -> tuple[object, ...]:
    """Return what a report says: the audit, and how much of the run was recorded."""
    timeline = assemble(folder, digest_rows)
    found = coverage(timeline)
    audit = audit_run(folder, read_run(folder), read_plan(folder)).verdict()
    return dict(timeline.audit), dict(audit), found.seconds, found.ratio, found.blockers


def changes(folder: RunFolder) -> int:
    """Return how many rows the streaming detector takes; it must not fail."""
    tester = TwsTester(PanelProcessor(Config()))
    listed = spans(folder.journal, {}, newest(folder.journal, {}, None), ColumnsIndex())
    frames: list[pd.DataFrame] = [
        batch.to_pandas() for batch in batches(rows(folder.path, "synthetic-1", listed))
    ]
    frame = pd.concat(frames, ignore_index=True)
    taken = frame[frame["gap"].isna()].astype({"k": "int64", "epoch": "int64"})
    tester.testInPandas(("synthetic-1", 0), taken)
    return len(taken)


@pytest.fixture(scope="module")
def untouched(tmp_path_factory: pytest.TempPathFactory) -> tuple[tuple[object, ...], int]:
    folder = with_lines(tmp_path_factory.mktemp("plain") / "r", (), [])
    return judged(folder), changes(folder)


@named("forged", READ)
def test_a_forged_record_kills_no_report(
    tmp_path: Path, forged: Forged, untouched: tuple[tuple[object, ...], int]
) -> None:
    """In the journals of a producer and a consumer, as `soak merge` brings them: the figures are the same."""
    folder = with_lines(tmp_path / "r", (PRODUCER, CONSUMER), [forged.line])

    assert judged(folder) == untouched[0]


@named("forged", READ)
def test_a_forged_record_stops_no_stream(
    tmp_path: Path, forged: Forged, untouched: tuple[tuple[object, ...], int]
) -> None:
    """The batch is taken, without it."""
    folder = with_lines(tmp_path / "r", (PRODUCER, CONSUMER), [forged.line])

    assert changes(folder) == untouched[1]


@named("forged", FORGED)
def test_a_forged_record_is_refused_where_it_arrives(tmp_path: Path, forged: Forged) -> None:
    """Nothing of it is written into the run, and it is counted."""
    folder = write_synthetic_run(tmp_path / "r", SHAPE)
    clock = FakeClock(wall_ns=START_WALL_NS + 60 * 10**9)
    ingest = Ingest(folder, clock, "host")
    source = "probe@other"
    ingest.write([ShippedLine(source, encode(columns_line(COLUMNS)).rstrip())])
    ingest.write([ShippedLine(source, forged.line)])
    ingest.close()

    assert ingest.refused == 1
    assert list(read_source(folder.journal, source)) == []


TEXTS = st.text(max_size=12) | st.sampled_from(["r", "c", "end", "1.1.0", "final_position", "lane"])
NUMBERS = (
    st.integers(-3, 100)
    | st.integers(-(2**65), 2**65)
    | st.sampled_from([2**31, 2**32, 2**53, 2**62, 2**63 - 1, 2**63])
)
LEAVES = st.none() | st.booleans() | NUMBERS | st.floats(allow_nan=False) | TEXTS
ANYTHING = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)
SPANS = st.lists(st.lists(NUMBERS, min_size=3, max_size=5), max_size=3)
STREAMS = st.dictionaries(st.sampled_from(["1.1.0", "7.2.3", "x", "1.1"]), SPANS, max_size=3)
EVENTS = st.lists(
    st.fixed_dictionaries(
        {
            "kind": st.sampled_from(sorted(CHECKED_EVENTS)) | TEXTS,
            "at_ns": NUMBERS,
            "since_ns": NUMBERS,
            "fields": st.dictionaries(
                st.sampled_from(
                    [
                        "partition",
                        "from_offset",
                        "to_offset",
                        "position",
                        "log_end",
                        "lane",
                        "first",
                        "last",
                        "seconds",
                    ]
                ),
                LEAVES,
                max_size=5,
            ),
        }
    ),
    max_size=3,
)
CHANGES = st.fixed_dictionaries(
    {},
    optional={
        "k": NUMBERS,
        "inc": NUMBERS,
        "at_ns": NUMBERS,
        "length_ns": NUMBERS,
        "v": st.lists(st.none() | NUMBERS | st.floats(allow_nan=False), min_size=2, max_size=2),
        "a": STREAMS,
        "g": STREAMS,
        "n": st.dictionaries(st.sampled_from(["1.1.0", "x"]), NUMBERS, max_size=2),
        "e": EVENTS,
        "h": ANYTHING,
        "trust": ANYTHING,
    },
)


@given(ANYTHING | CHANGES.map(lambda changes: record_body(30, 10**18, changes)))
def test_any_json_is_a_line_within_bounds_or_is_refused(body: object) -> None:
    """Whatever its checksum says; a record that is taken can be added up, and be a row of Spark."""
    INPUTS["records"] += 1
    try:
        line = decode(line_of(body))
    except (DamagedLineError, JournalError):
        return

    if isinstance(line, Record):
        assert 0 <= line.k <= MAX_INTERVAL
        assert 0 <= line.epoch <= MAX_EPOCH
        assert decode(encode(line)) == line or any(map(math.isnan, line.values))
        if len(line.values) == len(COLUMNS) and not wrong_count(line, checked_places(COLUMNS)):
            audit = Audit(1)
            for epoch in (line.epoch, line.epoch + 1):
                audit.add(replace(line, epoch=epoch), COLUMNS)
            audit.missed(0, [0])
            json.dumps(audit.verdict(), allow_nan=False)
            pack_part([SegmentRecord(line, COLUMNS, is_after_damage=False)] * 2, -1)
        list(batches(iter([record_row("r", "probe@b", line, COLUMNS, "soak")])))


@given(st.lists(CHANGES, max_size=6), st.integers(0, 90))
def test_whatever_arrives_leaves_a_journal_that_can_be_read(
    changes: list[dict[str, object]], now: int
) -> None:
    """Without damage in it, in order, and with nothing of a time that has not come."""
    INPUTS["records that arrive"] += 1
    with TemporaryDirectory() as name:
        folder = folder_of(Path(name) / "r")
        clock = FakeClock(wall_ns=START_NS + now * 10**9)
        ingest = Ingest(folder, clock, "host")
        lines = [line_of(record_body(at, 10**18, change)) for at, change in enumerate(changes)]
        every = [encode(columns_line(COLUMNS)).rstrip(), *lines, *lines]
        ingest.write([ShippedLine("probe@b", raw, place=(0, at)) for at, raw in enumerate(every)])
        ingest.close()
        reader = SourceReader(folder.journal / "probe@b")
        found = [record for record, _ in read_source(folder.journal, "probe@b", reader)]
        refused = read_refused(folder.refused)

    assert reader.damage == []
    assert [(one.epoch, one.k) for one in found] == sorted({(one.epoch, one.k) for one in found})
    assert all(one.k <= now + MAX_AHEAD_SECONDS for one in found)
    assert ingest.records == len(found)
    assert sum(one.count for one in refused) == ingest.refused


def packed(payload: bytes) -> str:
    """Return a histogram's text with this payload."""
    inner = zlib.compress(payload)
    return base64.b64encode(struct.pack(">ii", 0x1C849314, len(inner)) + inner).decode()


@given(
    st.text(max_size=40)
    | st.binary(max_size=80).map(packed)
    | st.builds(
        lambda digits, low, high, rest: packed(
            struct.pack(">iiiiqqd", 0x1C849313, len(rest), 0, digits, low, high, 1.0) + rest
        ),
        st.integers(-1, 6),
        st.integers(0, 2**40),
        st.integers(0, 2**62),
        st.binary(max_size=60),
    )
)
def test_any_text_is_a_histogram_of_ours_or_is_refused(text: str) -> None:
    INPUTS["histograms"] += 1
    with suppress(ValueError):
        values, counts = counts_of(text)
        assert (values >= 0).all()
        assert (counts >= 0).all()


def test_a_histogram_that_unpacks_to_gigabytes_takes_no_memory() -> None:
    """64 MiB of zeros are 64 KiB of base64; the library would unpack all of it."""
    text = packed(bytes(64 * 2**20))
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="not an HdrHistogram"):
            decode_histogram(text)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak < 4 * 2**20


@pytest.mark.parametrize(
    "line",
    [
        line_of(b'{"t":"r","v":' + b"[" * 200_000),
        line_of({"t": "c", "version": 1, "id": "x", "columns": [{}] * 300_000}),
        line_of(record_body(1, 1, {"e": [{}] * 200_000})),
        line_of(record_body(1, 1, {"h": {f"{at}": "" for at in range(5000)}})),
        line_of(record_body(1, 1, {"trust": {f"{at}": "x" for at in range(5000)}})),
        line_of(record_body(1, 1, {"trust": {"reason": "x" * 100_000}})),
        b"x" * (17 * 2**20),
        b"",
        b"\t",
    ],
    ids=["depth", "columns", "events", "histograms", "validity", "text", "size", "none", "tab"],
)
def test_what_is_too_much_is_refused(line: bytes) -> None:
    """By number or by bytes."""
    with pytest.raises(DamagedLineError):
        decode(line)


@pytest.mark.parametrize("is_foreign", [False, True])
@pytest.mark.parametrize("depth", [900, *range(960, 1030)])
def test_a_line_that_is_nested_deeply_is_refused(depth: int, *, is_foreign: bool) -> None:
    """Wherever it is: a parser goes deeper than what shows a list in an error, or hashes it."""
    nested = b"[" * depth + b"0" + b"]" * depth
    column = b'{"metric":"a","labels":{"b":@},"unit":"","lag_seconds":0}'
    places = [
        *(b'{"t":@}', b'{"t":"end","inc":@}', b'{"t":"c","version":@}', b"@"),
        b'{"t":"c","version":1,"id":@,"columns":[]}',
        b'{"t":"c","version":1,"id":"x","columns":[%s]}' % column,
        *(
            b'{"t":"r","c":"x","k":1,"inc":1,"at_ns":1,"length_ns":1,"v":[],"%s":@}' % key
            for key in (b"e", b"h", b"a", b"g", b"n", b"trust", b"k", b"v", b"c")
        ),
    ]
    for place in places:
        with suppress(DamagedLineError, JournalError):
            decode(line_of(place.replace(b"@", nested)), is_foreign=is_foreign)


LONG_BYTES = 6 * MAX_LINE_BYTES


@pytest.fixture
def long_line(tmp_path: Path) -> tuple[Path, int, int]:
    """Return a segment with a line of 96 MiB between two records, and where that line begins and ends."""
    path = tmp_path / "journal" / "probe@b" / "000000.jsonl"
    path.parent.mkdir(parents=True)
    plain = [line_of(record_body(k, 10**18, {})) + b"\n" for k in (1, 2)]
    head = encode(columns_line(COLUMNS)) + plain[0]
    with path.open("wb") as file:
        file.write(head)
        file.write(b'{"t":"c"')
        file.truncate(len(head) + LONG_BYTES)
        file.seek(0, 2)
        file.write(b"\n" + plain[1])
    return path, len(head), len(head) + LONG_BYTES + 1


def test_a_huge_line_is_one_gap_with_its_place_and_takes_no_memory(
    long_line: tuple[Path, int, int],
) -> None:
    """The records around it are read, from any place on."""
    path, begin, end = long_line
    reader = SourceReader(path.parent)
    tracemalloc.start()
    try:
        found = [one.k for one, _ in read_source(path.parents[1], path.parent.name, reader)]
        places = ColumnsIndex().before(path, end)
        columns = [columns_at(path, place) for place in places]
        following = newest(path.parents[1], {path.parent.name: [0, begin]}, 1)
        position = position_of_interval(path.parent, 2)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert found == [1, 2]
    assert reader.damage == [Damage(path, begin, f"a line of more than {MAX_LINE_BYTES:,} bytes")]
    assert (places, columns) == ((0, begin), [(columns_line(COLUMNS).id, COLUMNS), None])
    assert following == {path.parent.name: [0, end]}
    assert position == (path, 0)
    assert peak < 5 * MAX_LINE_BYTES


@pytest.mark.timeout(20)
@pytest.mark.parametrize("label", ["k", 'k"', " ", ""])
@pytest.mark.parametrize("value", [" ", "\t, ", '="', "\\", '",', 'a="'])
def test_a_column_that_passes_has_a_name_that_is_parsed_at_once(label: str, value: str) -> None:
    """The longest label that the gate takes, with what a regular expression could try in many ways."""
    labels = {label: (value * MAX_TEXT_CHARACTERS)[:MAX_TEXT_CHARACTERS]}
    column = {"metric": "m", "labels": labels, "unit": "", "lag_seconds": 0}

    found = decode(line_of({"t": "c", "version": 1, "id": "x", "columns": [column]}))

    assert isinstance(found, Columns)
    assert parse_series(f"probe@h|{found.columns[0].name}").labels == tuple(labels.items())


@pytest.mark.timeout(20)
@pytest.mark.parametrize("text", [" ", ", ", ',a="\\', 'a="', '"="', '"\\', "\t"])
def test_a_series_that_somebody_wrote_into_findings_is_parsed_at_once(text: str) -> None:
    """Whatever it holds: a million characters, of which few or none are labels."""
    assert parse_series("probe@h|m{" + text * (10**6 // len(text))).metric == "m"


@pytest.mark.parametrize(
    "source", ["consume.x@b1", "produce.@b1", "produce.1.5@b1", "consume.-1@b"]
)
def test_a_source_without_a_number_kills_no_report(
    tmp_path: Path, source: str, untouched: tuple[tuple[object, ...], int]
) -> None:
    """It is a gap; the figures are those of the others."""
    folder = write_synthetic_run(tmp_path / "r", SHAPE)
    shutil.copytree(folder.journal / PRODUCER, folder.journal / source)

    timeline = assemble(folder, digest_rows)

    assert judged(folder) == untouched[0]
    assert [one for one in timeline.damage if one[0] == source] == [
        (source, 0, "its journal", "no producer or consumer has this name")
    ]


def test_an_interval_long_after_the_run_is_a_gap(tmp_path: Path) -> None:
    """A year of seconds that are expected would take gigabytes, and make the coverage nothing."""
    folder = with_lines(
        tmp_path / "r", (PRODUCER,), [line_of(record_body(10**7, START_WALL_NS, {}))]
    )

    timeline = assemble(folder, digest_rows)

    assert timeline.recorded_k == SHAPE.seconds
    assert [one[3] for one in timeline.damage] == ["interval 10000000 is long after the run"]


@pytest.mark.parametrize(("value", "number"), [("long", 0.0), (2, 2.0), (0.5, 0.5), (True, 1.0)])
def test_a_field_that_should_be_a_number_may_be_a_text(value: str | float, number: float) -> None:
    """Patterns of logs are the user's: causes read what is no number as nothing."""
    assert Event("jvm_gc_pause", 0, 0, {"pause_seconds": value}).number("pause_seconds") == number
