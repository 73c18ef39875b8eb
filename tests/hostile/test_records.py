"""The gate of records: what somebody forged is refused where it enters, and everything behind it goes on."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pandas as pd
import pytest
from pyspark.sql.streaming.tws_tester import TwsTester

from detectors.level_shift import Config
from soak.core.journal_format import columns_line, encode
from soak.shipping.ingest import Ingest
from soak.store.audit import audit_run
from soak.store.journal.reader import read_source
from soak.store.run_folder import RunFolder, read_plan, read_run
from soak.store.samples_topic import ShippedLine
from spark.batch.coverage import coverage
from spark.batch.timeline import assemble, digest_rows
from spark.sources.journals import batches, rows
from spark.sources.offsets import ColumnsIndex, newest, spans
from spark.streaming.panel_state import PanelProcessor
from tests.support.fakes import FakeClock
from tests.support.hostile import COLUMNS, Forged, forged_records
from tests.support.spark.synthetic_run import (
    CONSUMER,
    PRODUCER,
    START_WALL_NS,
    Shape,
    write_synthetic_run,
)

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
    return dict(timeline.audit), dict(audit), found.seconds, found.ratio, found.doubts


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
