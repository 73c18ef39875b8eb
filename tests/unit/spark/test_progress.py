"""What the detector's metrics page and the live view say of the streaming query."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.listener import StreamingQueryProgress

from soak.core.units import SECOND_NS
from soak.service.metrics import MetricsPage
from soak.store.run_folder import RunFolder
from spark.streaming.progress import Progress
from tests.support.fakes import FakeClock
from tests.support.spark.growing_run import begun, grow
from tests.support.spark.synthetic_run import Shape, write_synthetic_run

ID = "00000000-0000-0000-0000-000000000001"


def progress_of(rows: int, k: int | None, batch: int = 3) -> StreamingQueryProgress:
    state: dict[str, Any] = dict.fromkeys(
        (
            *("allUpdatesTimeMs", "numRowsRemoved", "allRemovalsTimeMs", "commitTimeMs"),
            *("numRowsDroppedByWatermark", "numShufflePartitions", "numStateStoreInstances"),
        ),
        0,
    )
    state |= {"operatorName": "t", "numRowsTotal": 23, "numRowsUpdated": 2, "memoryUsedBytes": 900}
    state["customMetrics"] = {"rocksdbSstFileSize": 700, "rocksdbTotalBytesWritten": 80}
    found: dict[str, Any] = {"id": ID, "runId": ID, "name": "detect", "timestamp": "t"}
    found |= {"batchId": batch, "batchDuration": 250, "durationMs": {"triggerExecution": 250}}
    found |= {"numInputRows": rows, "processedRowsPerSecond": rows / 0.25, "sources": []}
    found |= {"stateOperators": [state], "sink": {"description": "s", "numOutputRows": -1}}
    found["observedMetrics"] = {} if k is None else {"seen": {"k": k, "damaged": 1}}
    return StreamingQueryProgress.fromJson(found)


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    """A run whose sources have recorded 30 seconds."""
    whole = write_synthetic_run(tmp_path / "whole", Shape(seconds=60))
    found = begun(whole, tmp_path / "r")
    grow(whole, found, 30)
    found.spark.mkdir(exist_ok=True)
    return found


def shown(page: MetricsPage) -> dict[str, float]:
    return {
        sample.name.removeprefix("soak_"): sample.value
        for family in page.collect()
        for sample in family.samples
        if sample.name.startswith("soak_detect_")
    }


def test_the_page_says_how_fast_the_query_is_how_far_behind_and_how_large(
    folder: RunFolder,
) -> None:
    page = MetricsPage(FakeClock(), {})
    Progress(folder, FakeClock(), page).show(progress_of(50, 22), failures=2, is_running=True)

    assert shown(page) == {
        "detect_batch_seconds": 0.25,
        "detect_batch_rows": 50,
        "detect_rows_per_second": 200,
        "detect_newest_second": 22,
        "detect_lag_seconds": 7,
        "detect_state_rows": 23,
        "detect_state_memory_bytes": 900,
        "detect_state_bytes": 700,
        "detect_state_written_bytes": 80,
        "detect_attribution_failures_total": 2,
        "detect_damaged_lines_total": 1,
        "detect_set_aside_records_total": 0,
    }


def test_a_query_without_news_keeps_what_it_said_and_its_lag_grows(folder: RunFolder) -> None:
    """Spark reports every ten seconds that there was nothing."""
    clock, page = FakeClock(), MetricsPage(FakeClock(), {})
    progress = Progress(folder, clock, page)
    progress.show(progress_of(50, 29), failures=0, is_running=True)
    before = shown(page)
    grow(RunFolder(folder.path.parent / "whole"), folder, 40)
    clock.advance(60.0)
    progress.show(progress_of(0, None, batch=4), failures=0, is_running=True)
    body = json.loads((folder.spark / "progress.json").read_text())

    assert shown(page) == {**before, "detect_lag_seconds": 10}
    assert (body["batch"], body["k"], body["rows"]) == (3, 29, 50)
    assert body["wall_ns"] - FakeClock().wall_ns() == 60 * SECOND_NS


def test_nothing_is_shown_before_the_first_batch(folder: RunFolder) -> None:
    page = MetricsPage(FakeClock(), {})
    Progress(folder, FakeClock(), page).show(None, failures=0, is_running=True)

    assert shown(page) == {}
    assert not (folder.spark / "progress.json").exists()
