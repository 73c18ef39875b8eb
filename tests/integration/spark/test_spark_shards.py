"""The detector's state inside a real Spark: shards, batches and restarts change nothing of what is found."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from detectors import outage
from detectors.client_seconds import identity
from detectors.level_shift import Config
from detectors.objectives import settings_of
from soak.core.model import Change
from soak.store.run_folder import RunFolder, read_plan
from spark.sources.journals import NAME, JournalSource
from spark.streaming.fleet_state import detect_all
from spark.streaming.panel_state import detect, shard_labels
from tests.support.spark.growing_run import begun, end, grow
from tests.support.spark.synthetic_run import Shape, write_synthetic_run

pytestmark = [pytest.mark.spark, pytest.mark.slow]

RUN = "synthetic-1"
PATIENCE_SECONDS = 180.0
EXPIRE_SECONDS = 8
SHAPE = Shape(
    seconds=320,
    deletions_k=200,
    fault_k=202,
    objectives='["p99 publish <= 10ms for 90% of minutes"]',
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return write_synthetic_run(tmp_path_factory.mktemp("whole") / "r", SHAPE)


def found(
    session: SparkSession, whole: RunFolder, folder: RunFolder, shards: int, stops: Sequence[int]
) -> list[Change]:
    """Return all changes; behind each of the `stops`, which are seconds, the query ends and is resumed."""
    changes: list[Change] = []
    session.dataSource.register(JournalSource)
    plan = read_plan(folder)
    partitions = session.conf.get("spark.sql.shuffle.partitions")
    labels = shard_labels(session, RUN, shards)
    grow(whole, folder, 0)
    for k in [*stops, None]:
        if k is None:
            end(whole, folder)
        else:
            grow(whole, folder, k)
        options = {"run_dir": str(folder.path), "run": RUN, "tasks": str(shards)}
        rows = session.readStream.format(NAME).options(**options).load()
        query = (
            detect(rows, Config(), None, settings_of(plan), labels)
            .writeStream.option("checkpointLocation", str(folder.checkpoint))
            .foreachBatch(
                lambda frame, _: changes.extend(
                    Change.from_row(row.asDict()) for row in frame.collect()
                )
            )
            .start()
        )
        query.processAllAvailable()
        query.stop()
    session.conf.set("spark.sql.shuffle.partitions", partitions or "2")
    return changes


def test_two_shards_that_are_resumed_find_what_one_finds_at_once(
    spark_session: SparkSession, whole: RunFolder, tmp_path: Path
) -> None:
    once = found(spark_session, whole, begun(whole, tmp_path / "1"), 1, ())
    resumed = found(spark_session, whole, begun(whole, tmp_path / "2"), 2, (210, 214, 260))

    ended, whole_run = ({identity(one): one for one in found} for found in (resumed, once))
    assert {"step", "objective"} <= {change.kind for change in once}
    assert ended == whole_run


def test_each_shard_has_a_partition_to_itself(spark_session: SparkSession) -> None:
    partitions = spark_session.conf.get("spark.sql.shuffle.partitions")
    labels = shard_labels(spark_session, RUN, 8)
    frame = spark_session.createDataFrame([(RUN, label) for label in labels], "run string, id long")
    frame.createOrReplaceTempView("labels")
    found = spark_session.sql("SELECT pmod(hash(run, id), 8) AS at FROM labels").collect()
    spark_session.conf.set("spark.sql.shuffle.partitions", partitions or "2")

    assert sorted(row["at"] for row in found) == list(range(8))


def test_the_state_of_a_run_that_has_ended_is_removed(
    spark_session: SparkSession, whole: RunFolder, tmp_path: Path
) -> None:
    """By a timer, in a batch without rows; a record that comes later begins anew."""
    spark_session.dataSource.register(JournalSource)
    folder = begun(whole, tmp_path / "r")
    grow(whole, folder, 60)
    rows = spark_session.readStream.format(NAME).options(run_dir=str(folder.path), run=RUN).load()

    def taken(frame: DataFrame, _batch: int) -> None:
        frame.collect()

    query = (
        detect_all(rows, Config(), outage.Config(), EXPIRE_SECONDS)
        .writeStream.option("checkpointLocation", folder.checkpoint.as_uri())
        .trigger(processingTime="500 milliseconds")
        .foreachBatch(taken)
        .start()
    )

    def state_rows() -> int:
        last = query.lastProgress
        return -1 if last is None else sum(one.numRowsTotal for one in last.stateOperators)

    try:
        wait_for(lambda: state_rows() > 0, "a state")
        wait_for(lambda: state_rows() == 0, "the end of the state")
        grow(whole, folder, 61)
        wait_for(lambda: state_rows() > 0, "a state made anew")
    finally:
        query.stop()


def wait_for(condition: Callable[[], bool], what: str) -> None:
    limit = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        if time.monotonic() > limit:
            pytest.fail(f"waited in vain for {what}")
        time.sleep(0.1)  # between looks
