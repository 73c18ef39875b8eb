"""`soak export` in Spark tasks, and the example of its page that reads with Spark."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import pytest

from spark.batch.export import export
from spark.batch.tasks import in_tasks
from tests.support.paths import ROOT
from tests.support.spark.synthetic_run import CONSUMER, Shape, write_synthetic_run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGE = ROOT / "docs/how-to/export.md"


@pytest.mark.spark
def test_tasks_export_what_one_process_exports(spark_session: SparkSession, tmp_path: Path) -> None:
    """And the page's own code finds the slowest series in it."""
    shape = Shape(seconds=60, fault_k=None, gaps=((CONSUMER, range(30, 33)),), damaged_k=40)
    folder = write_synthetic_run(tmp_path / "run", shape)

    alone = export(folder, tmp_path / "alone")
    spread = export(folder, tmp_path / "spread", in_tasks(spark_session.sparkContext))

    assert (spread.samples, spread.events) == (alone.samples, alone.events)
    for table in ("samples", "events.parquet"):
        pd.testing.assert_frame_equal(
            pd.read_parquet(tmp_path / "spread" / table),
            pd.read_parquet(tmp_path / "alone" / table),
        )
    code = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    names: dict[str, Any] = {"session": spark_session, "folder": tmp_path / "spread"}
    exec(next(one for one in code if "session.read" in one), names)
    rows = names["worst"].collect()
    samples = pd.read_parquet(tmp_path / "alone/samples")
    is_judged = (samples["metric"] == "end_to_end_latency_seconds") & (samples["phase"] == "soak")
    assert len(rows) == samples[is_judged]["series"].astype(str).nunique()
    assert rows[0]["max"] == samples[is_judged & samples["valid"]]["value"].max()
