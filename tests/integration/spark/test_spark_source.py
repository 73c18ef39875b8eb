"""The journal source inside a real Spark."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyspark
import pytest
from pyspark.sql import SparkSession

from soak.store.run_folder import RunFolder
from spark.sources.journals import NAME, JournalSource
from spark.sources.offsets import Offset
from spark.streaming.checkpoint import committed
from spark.streaming.progress import observed
from tests.support.spark.synthetic_run import PRODUCER, Shape, write_synthetic_run
from tests.unit.spark.test_spark_offsets import HEAD, line

pytestmark = pytest.mark.spark


def options(folder: RunFolder) -> dict[str, str]:
    return {"run_dir": str(folder.path), "run": "synthetic-1"}


def test_python_workers_import_the_installed_pyspark(spark_session: SparkSession) -> None:
    """Not Spark's own archive of it, which each worker would compile again."""

    def place(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            yield pa.RecordBatch.from_pydict({"place": [sys.modules["pyspark"].__file__]})

    (row,) = spark_session.range(1).mapInArrow(place, "place string").collect()

    assert row["place"] == pyspark.__file__


def test_a_report_reads_every_record(spark_session: SparkSession, tmp_path: Path) -> None:
    """All sources, all seconds, columns where they are first needed."""
    folder = write_synthetic_run(tmp_path / "r", Shape(seconds=53))
    spark_session.dataSource.register(JournalSource)
    rows = spark_session.read.format(NAME).options(**options(folder)).load()
    counted = {row["source"]: row["count"] for row in rows.groupBy("source").count().collect()}

    assert counted == {"consume.0@host": 53, "probe@host": 53, "produce.0@host": 53}


def test_a_stream_goes_on_from_its_checkpoint(spark_session: SparkSession, tmp_path: Path) -> None:
    """What was appended while it was away comes once; what was read does not come again."""
    folder = write_synthetic_run(tmp_path / "r", Shape(seconds=51, is_ended=False))
    checkpoint = tmp_path / "checkpoint"
    taken: list[tuple[str, int]] = []
    spark_session.dataSource.register(JournalSource)

    def once() -> Offset | None:
        stream = spark_session.readStream.format(NAME).options(**options(folder)).load()
        query = (
            observed(stream)
            .select("source", "k")
            .writeStream.queryName("test")
            .option("checkpointLocation", str(checkpoint))
            .foreachBatch(lambda frame, _: taken.extend(map(tuple, frame.collect())))
            .start()
        )
        query.processAllAvailable()
        query.stop()
        return committed(checkpoint)

    once()
    first = len(taken)
    with (folder.journal / PRODUCER / "000000.jsonl").open("ab") as file:
        file.write(HEAD + line(51) + line(52)[:9])
    (folder.journal / PRODUCER / "000001.jsonl").write_bytes(HEAD + line(53, 2))
    offset = once()

    assert (first, taken[first:]) == (153, [(PRODUCER, 51), (PRODUCER, 53)])
    assert offset is not None
    assert offset[PRODUCER][0] == 1
