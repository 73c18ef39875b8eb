"""The report's Spark job: what the tasks read is what one process reads, however many files there are."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from spark.batch.digest import Scope
from spark.batch.digest_cache import Row, digest_row
from spark.batch.tasks import in_tasks
from spark.batch.timeline import Timeline, assemble, read_timeline
from spark.report import job as report
from spark.report.summary import EXIT_CODE
from tests.support.spark.synthetic_run import CONSUMER, PRODUCER, Shape, write_synthetic_run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SHAPE = Shape(gaps=((CONSUMER, range(60, 63)),), damaged_k=80, invalid=range(40, 42))
LONG = Shape(
    seconds=1700,
    fault_k=900,
    lifted_k=1200,
    deletions_k=898,
    gaps=((CONSUMER, range(60, 63)),),
    invalid=range(40, 42),
)


def _alone(paths: Sequence[Path], step: int, scope: Scope) -> list[Row]:
    return [digest_row(path, step, scope).to_pylist()[0] for path in paths]


def _split(folder: Path, lines_each: int) -> None:
    """Spread a source over several files, each with its columns line, as hours of a run are."""
    (path,) = folder.glob("*.jsonl")
    head, *lines = path.read_bytes().splitlines(keepends=True)
    for number, at in enumerate(range(0, len(lines), lines_each)):
        part = b"".join([head, *lines[at : at + lines_each]])
        (folder / f"{number:06d}.jsonl").write_bytes(part)


def _parts(timeline: Timeline) -> tuple[object, ...]:
    series = {name: (k.tolist(), v.tolist()) for name, (k, v) in timeline.series.items()}
    seconds = {name: k.tolist() for name, k in timeline.seconds.items()}
    events = {kind: k.tolist() for kind, k in timeline.event_seconds.items()}
    return series, seconds, events, timeline.invalid, sorted(timeline.damage), timeline.audit


@pytest.mark.spark
def test_tasks_read_what_one_process_reads(spark_session: SparkSession, tmp_path: Path) -> None:
    """Every number, gap, event, damaged place and count of the audit, over eleven files."""
    folder = write_synthetic_run(tmp_path / "run", SHAPE)
    _split(folder.journal / PRODUCER, 27)

    each = in_tasks(spark_session.sparkContext)
    spread, alone = read_timeline(each, folder), assemble(folder, _alone)

    assert _parts(spread) == _parts(alone)
    assert spread.audit["sent"] == 400 * 234


@pytest.mark.spark
@pytest.mark.parametrize("shape", [LONG, replace(LONG, is_ended=False)], ids=["ended", "cut"])
def test_tasks_report_what_one_process_reports(
    spark_session: SparkSession, tmp_path: Path, shape: Shape
) -> None:
    """Summary and page are the same to the byte, of a run with an incident and of one cut short."""
    folder = write_synthetic_run(tmp_path / "run", shape)
    _split(folder.journal / PRODUCER, 270)

    report.write(assemble(folder, _alone), [])
    alone = folder.summary.read_text(), folder.report.read_text()
    each = in_tasks(spark_session.sparkContext)
    report.write(read_timeline(each, folder), [], each=each)
    spread = folder.summary.read_text(), folder.report.read_text()

    assert len(json.loads(alone[0])["findings"]) > 0
    assert "false alarms" in alone[1]
    assert spread == alone


@pytest.mark.spark
def test_a_step_is_reported_from_journals_alone(
    spark_session: SparkSession, tmp_path: Path
) -> None:
    """Without a findings file, as after a detector that never came up."""
    folder = write_synthetic_run(tmp_path / "run", Shape())

    code = report.write(read_timeline(in_tasks(spark_session.sparkContext), folder), [], None)

    summary = json.loads(folder.summary.read_text())
    (found,) = summary["findings"]
    assert (code, summary["verdict"], found["found"]) == (3, "regressed", "offline")
    assert found["cause"] == "retention_cliff"
    assert found["ratio"] == pytest.approx(15, rel=0.2)
    assert summary["audit"]["lost"] == 0
    assert folder.report.stat().st_size < 1_000_000


@pytest.mark.spark
def test_a_run_without_a_journal_is_inconclusive(
    spark_session: SparkSession, tmp_path: Path
) -> None:
    """Cut short before its first second: a report says so instead of failing."""
    folder = write_synthetic_run(tmp_path / "run", Shape(seconds=30, warm_up=5))
    folder.journal.rename(folder.path / "moved")

    code = report.write(read_timeline(in_tasks(spark_session.sparkContext), folder), [], None)

    assert code == EXIT_CODE["inconclusive"]
