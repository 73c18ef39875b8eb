"""The panel in its Spark clothes, without a JVM."""

from __future__ import annotations

from dataclasses import fields, replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.tws_tester import TwsTester
from pyspark.sql.types import StructType

from detectors.level_shift import Config
from detectors.objectives import settings_of
from detectors.panel import Panel
from soak.core.journal_format import Columns, encode
from soak.core.model import Change, Column, Record
from spark.batch.outcomes import judge
from spark.batch.timeline import assemble, digest_rows
from spark.sources.journals import batches, rows
from spark.sources.offsets import ColumnsIndex, newest, spans
from spark.sources.schema import ARROW_ROWS, CHANGES, ROWS, columns_of, columns_text
from spark.streaming.panel_state import OBJECTIVES, PanelProcessor, take_apart
from spark.streaming.stored_panel import StoredPanel
from tests.support.spark.synthetic_run import Shape, write_synthetic_run

pytestmark = pytest.mark.long

KEY = ("synthetic-1", 0)
SHAPE = Shape(seconds=320, deletions_k=200, fault_k=202)


@pytest.fixture(scope="module")
def frame(tmp_path_factory: pytest.TempPathFactory) -> pd.DataFrame:
    """All rows of a run with one step."""
    folder = write_synthetic_run(tmp_path_factory.mktemp("run") / "r", SHAPE)
    listed = spans(folder.journal, {}, newest(folder.journal, {}, None), ColumnsIndex())
    parts: list[pd.DataFrame] = [
        batch.to_pandas() for batch in batches(rows(folder.path, "synthetic-1", listed))
    ]
    whole: pd.DataFrame = pd.concat(parts, ignore_index=True)
    return whole


def found(tester: TwsTester, frame: pd.DataFrame) -> list[Change]:
    answer = tester.testInPandas(KEY, frame)
    return [
        Change.from_row(dict(zip(answer.columns, row, strict=True))) for row in answer.to_numpy()
    ]


def stored(tester: TwsTester) -> bytes:
    """Return the bytes of the panel as the state has it."""
    tester.handle.setGroupingKey(KEY)
    parts = tester.handle.getMapState("parts", "name string", "bytes binary")
    config = Config()
    read = partial(Panel.from_bytes, config=config)
    return StoredPanel(parts, partial(Panel, config), read).panel().to_bytes()


def parts_of(frame: pd.DataFrame, count: int) -> list[pd.DataFrame]:
    """Cut a run into batches as Spark would see them: by time, columns announced in each."""
    edges = np.linspace(0, SHAPE.seconds, count + 1)
    texts = dict(frame.dropna(subset=["columns"])[["columns_id", "columns"]].to_numpy())
    whole = frame.assign(columns=frame["columns_id"].map(texts))
    return [whole[(whole["k"] >= low) & (whole["k"] < high)] for low, high in pairwise(edges)]


@pytest.fixture(scope="module")
def in_forty(frame: pd.DataFrame) -> list[Change]:
    """What forty batches give, the panel stored and read between them."""
    tester = TwsTester(PanelProcessor(Config()))
    return [change for part in parts_of(frame, 40) for change in found(tester, part)]


def test_the_step_is_found_through_the_state(in_forty: list[Change]) -> None:
    confirmed = [change for change in in_forty if change.state == "confirmed"]

    assert any("end_to_end_latency" in change.series for change in confirmed)
    assert all(abs(change.onset_k - 202) <= 3 for change in confirmed if "latency" in change.series)


def test_batches_and_order_of_rows_do_not_matter(
    frame: pd.DataFrame, in_forty: list[Change]
) -> None:
    """One shuffled batch of all gives what forty in order give."""
    one = found(TwsTester(PanelProcessor(Config())), frame.sample(frac=1.0, random_state=3))

    assert sorted(map(repr, one)) == sorted(map(repr, in_forty))
    assert one


def test_stream_and_report_judge_objectives_alike(frame: pd.DataFrame, tmp_path: Path) -> None:
    """The budget is spent in the minute of the step; forty batches say what the whole run says."""
    texts = (
        "p99 publish <= 10ms for 90% of minutes",
        "p99 end-to-end <= 1s for 90% of minutes",
        "99.9% of messages acknowledged within 10ms",
    )
    shape = replace(SHAPE, objectives=f"[{', '.join(texts)}]")
    timeline = assemble(write_synthetic_run(tmp_path / "r", shape), digest_rows)
    tester = TwsTester(PanelProcessor(Config(), settings=settings_of(timeline.plan)))

    clients = frame[~frame["source"].str.startswith("probe")].assign(shard=OBJECTIVES)
    changes = [change for part in parts_of(clients, 40) for change in found(tester, part)]

    online = {change.series: change for change in changes if change.kind == "objective"}
    offline = {change.series: change for change in judge(timeline).breaches}
    assert online == offline
    assert [one.onset_k for one in offline.values()] == [180, 180]


def test_an_id_of_columns_holds_within_its_source_and_is_given_once(tmp_path: Path) -> None:
    """Otherwise a copied journal would give the numbers of a source the names of another."""
    folder = write_synthetic_run(tmp_path / "r", Shape(seconds=60))
    columns = {"probe@a": (Column("x"), Column("y"), Column("z")), "probe@b": (Column("w"),)}
    for source, own in columns.items():
        record = Record(0, 1, 0, 10**9, "abc", tuple(map(float, range(len(own)))))
        path = folder.journal / source / "000000.jsonl"
        path.parent.mkdir()
        others = Columns("abc", tuple(reversed(own)) if len(own) > 1 else (Column("v"),))
        path.write_bytes(encode(Columns("abc", own)) + encode(others) + encode(record))
    listed = spans(folder.journal, {}, newest(folder.journal, {}, None), ColumnsIndex())
    frame = pd.concat([part.to_pandas() for part in batches(rows(folder.path, "r", listed))])

    added = frame[frame["source"].isin(columns)]
    assert [gap.partition(": ")[2] for gap in added["gap"].dropna()] == 2 * [
        "columns line abc has other columns than before"
    ]
    taken = added[added["gap"].isna()]
    named = [[column.name for column in columns_of(text)] for text in taken["columns"]]
    assert dict(zip(taken["source"], named, strict=True)) == {
        "probe@a": ["x", "y", "z"],
        "probe@b": ["w"],
    }
    assert frame[~frame["source"].isin(columns)]["gap"].isna().all()


def with_wrong_rows(frame: pd.DataFrame, at: list[int]) -> pd.DataFrame:
    """Return the batch with rows that have more values than columns."""
    values = list(frame["values"])
    for place in at:
        values[place] = np.ones(3)
    return frame.assign(values=values)


@pytest.mark.parametrize("count", [1, 5, 30])
def test_a_record_that_no_panel_takes_is_set_aside_alone(frame: pd.DataFrame, count: int) -> None:
    """The others of its batch are taken, as in a run without it; of a source with many all are set aside."""
    (whole,) = parts_of(frame, 1)
    whole = whole.reset_index(drop=True)
    probes = whole.index[whole["source"] == "probe@host"]
    at = [int(place) for place in probes[10 : 10 + count]]
    bad, good = TwsTester(PanelProcessor(Config())), TwsTester(PanelProcessor(Config()))
    answer = bad.testInPandas(KEY, with_wrong_rows(whole, at))
    rows_ = [dict(zip(answer.columns, row, strict=True)) for row in answer.to_numpy()]

    changes, aside = take_apart(rows_)

    left_out = set(at) if count < 9 else set(probes[[*range(10, 18), *range(18, 320), *range(10)]])
    expected = found(good, whole.drop(index=sorted(left_out)))
    assert {(one.source, one.epoch, one.k) for one in aside} == {
        ("probe@host", 1, int(whole["k"][place])) for place in left_out
    }
    assert changes == expected
    assert stored(bad) == stored(good)


def test_rows_delivered_again_change_nothing(frame: pd.DataFrame) -> None:
    """After a crash Spark gives a batch a second time."""
    tester = TwsTester(PanelProcessor(Config()))
    for part in parts_of(frame, 10):
        found(tester, part)
    panel = stored(tester)

    assert found(tester, parts_of(frame, 10)[-1]) == []
    assert stored(tester) == panel


def test_a_second_start_with_a_clock_set_back_is_taken_in(frame: pd.DataFrame) -> None:
    """Its seconds are no repeats of those of the first."""
    (whole,) = parts_of(frame, 1)
    tester = TwsTester(PanelProcessor(Config()))
    found(tester, whole)
    again = found(tester, whole.assign(epoch=2))

    assert any("latency" in c.series and c.state == "confirmed" for c in again)


def test_the_state_is_written_once_for_all_frames_of_a_batch(frame: pd.DataFrame) -> None:
    """Spark may deliver a batch in several frames."""
    whole, halves = TwsTester(PanelProcessor(Config())), TwsTester(PanelProcessor(Config()))
    found(whole, frame)
    halves.handle.setGroupingKey(KEY)
    frames = iter([frame.iloc[:500], frame.iloc[500:]])
    changes = list(halves.processor.handleInputRows(KEY, frames, None))  # type: ignore[arg-type]  # unused

    assert len(changes) == 1
    assert halves.peekMapState("parts", KEY) == whole.peekMapState("parts", KEY)


def test_rows_carry_every_field_of_a_record_but_those_named(frame: pd.DataFrame) -> None:
    """The audit and the heat map read the journal itself; `trusted` is whether a second is valid."""
    extra = {"run", "shard", "source", "columns", "trusted", "phase", "gap"}
    stored_as = {"validity": "trust"}
    left_out = {"histograms", "acknowledged", "received", "sent_next"}
    names = {stored_as.get(field.name, field.name) for field in fields(Record)}

    assert set(ROWS.fieldNames()) - extra == names - left_out
    assert list(frame.columns) == ROWS.fieldNames()


def test_a_change_survives_its_row() -> None:
    """And Spark's schema has a place for each of its fields."""
    change = Change("a@h|x", 7, 5, (4, 6), 1.0, 2.0, "confirmed", 0.9, "drift")
    row = {"run": "r", **change.to_row()}

    assert Change.from_row(row) == change
    assert sorted(row) == sorted(CHANGES.fieldNames())


def test_columns_survive_their_text() -> None:
    """Labels stay sorted pairs."""
    columns = (Column("a", (("x", "1"), ("y", 'q"')), "seconds", 2.5), Column("b"))

    assert columns_of(columns_text(columns)) == columns


def test_arrow_batches_are_what_spark_expects() -> None:
    """Otherwise Spark would refuse them, or convert value by value."""
    assert to_arrow_schema(StructType(ROWS.fields), timezone="UTC").equals(ARROW_ROWS)


def test_phases_come_from_what_conduct_decided(frame: pd.DataFrame) -> None:
    """Each row knows its phase."""
    firsts = frame[frame["source"] == "probe@host"].groupby("phase")["k"].min()

    assert firsts.to_dict() == {"warm-up": 0, "soak": 20, "drain": 315}


def test_a_damaged_line_is_a_row_with_a_gap(tmp_path: Path) -> None:
    """And the records around it are there."""
    folder = write_synthetic_run(tmp_path / "r", Shape(seconds=60, damaged_k=30))
    listed = spans(folder.journal, {}, newest(folder.journal, {}, None), ColumnsIndex())
    found = [row for row in rows(folder.path, "r", listed) if row["source"] == "produce.0@host"]

    assert [row.get("k") for row in found if row.get("gap")] == [None]
    assert len(found) == 60
