"""Our pipeline beside naive forms of the same work, on the same run: `python -m tests.bench.naive`.

The backlog of a run by one vectorised panel a shard, by one key and state a series, and by the driver alone
without Spark; and the medians of 10 s, in tasks that each read some journal files and as SQL over one row a
value. CPU is that of all processes, without the start of Spark.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from zlib import crc32

import pandas as pd
from pyspark.sql import functions as F  # noqa: N812  # as Spark's own documentation has it
from pyspark.sql.functions import col

from detectors.panel import Panel
from soak.core.plan.plan import OUTAGE_DETECTOR, STREAM_DETECTOR, Plan
from soak.core.series import series_name
from soak.store.journal.reader import segments, sources
from soak.store.run_folder import RunFolder, read_plan
from spark.batch.digest import Scope
from spark.batch.digest_cache import digest_row
from spark.batch.tasks import in_tasks
from spark.batch.timeline import COARSE_STEP
from spark.cluster.session import build_session
from spark.sources.journals import NAME, JournalSource, batches, rows
from spark.sources.offsets import ColumnsIndex, newest, spans
from spark.sources.schema import CHANGES, ROWS, columns_of, columns_text
from spark.streaming.panel_state import PanelProcessor, rows_of
from spark.streaming.stored_panel import LivePanel
from tests.bench.stream import backlog, cpu_seconds
from tests.support.spark.long_run import RUN, LongShape, write_long_run

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RESULT = Path("build/bench/naive.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """One form of the work; `values` is the number of values that it took in."""

    work: str
    form: str
    values: int
    cpu_seconds: float
    seconds: float

    @property
    def microseconds_a_value(self) -> float:
        return 1e6 * self.cpu_seconds / self.values


def by_series(_session: SparkSession, frame: DataFrame, plan: Plan) -> DataFrame:
    """Return the changes as a detector finds them that has a key for each series."""
    detectors = plan.detection.detectors
    processor = PanelProcessor(detectors[STREAM_DETECTOR], detectors[OUTAGE_DETECTOR])
    one_each = frame.where(col("gap").isNull()).coalesce(1).mapInPandas(_one_series_a_row, ROWS)
    return one_each.groupBy("run", "shard").transformWithStateInPandas(
        processor, CHANGES, "Append", "None"
    )


def _one_series_a_row(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    names: dict[tuple[str, str], list[tuple[str, str, int]]] = {}
    for frame in frames:
        found = []
        for row in frame.to_dict("records"):
            source = row["source"], row["columns_id"]
            if row["columns"] is not None:
                names[source] = [
                    (
                        one.name,
                        columns_text([one]),
                        crc32(series_name(source[0], one.name).encode()),
                    )
                    for one in columns_of(row["columns"])
                ]
            found += [
                {**row, "columns_id": name, "columns": text, "shard": key, "values": [value]}
                for (name, text, key), value in zip(names[source], row["values"], strict=True)
            ]
        yield pd.DataFrame(found, columns=frame.columns)


def driver_alone(whole: RunFolder) -> float:
    """Take in the run with one panel in this process; return its CPU seconds."""
    plan, began = read_plan(whole), time.process_time()
    detectors = plan.detection.detectors
    panel = LivePanel(Panel(detectors[STREAM_DETECTOR], outages=detectors[OUTAGE_DETECTOR]))
    listed = spans(whole.journal, {}, newest(whole.journal, {}, None), ColumnsIndex())
    for batch in batches(rows(whole.path, RUN, listed)):
        frame = batch.to_pandas()
        panel.take(*rows_of(frame[frame["gap"].isna()]))
    return time.process_time() - began


def medians_in_tasks(session: SparkSession, whole: RunFolder) -> None:
    """Make what the report needs of each journal file, medians among it, in tasks."""
    paths = [path for name in sources(whole.journal) for path in segments(whole.journal / name)]
    in_tasks(session.sparkContext)(partial(digest_row, step=COARSE_STEP, scope=Scope()), paths)


def medians_in_sql(session: SparkSession, whole: RunFolder) -> None:
    """Make the medians of ten seconds of each column as SQL over one row a value."""
    session.dataSource.register(JournalSource)
    frame = session.read.format(NAME).options(run_dir=str(whole.path), run=RUN).load()
    frame.where(col("gap").isNull()).select(
        "source", "columns_id", F.floor(col("k") / COARSE_STEP).alias("at"), F.posexplode("values")
    ).groupBy("source", "columns_id", "pos", "at").agg(F.median("col")).toArrow()


def main() -> int:
    """Measure, print and write the result."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.naive", description=__doc__)
    parser.add_argument("--series", type=int, default=500)
    parser.add_argument("--seconds", type=int, default=600)
    arguments = parser.parse_args()
    values = arguments.series * arguments.seconds
    with tempfile.TemporaryDirectory(prefix="bench-naive-") as name:
        path = Path(name)
        shape = LongShape(seconds=arguments.seconds, series=arguments.series, warm_up=10)
        whole = write_long_run(path / "whole", shape)
        found = [*_backlogs(whole, path, values), *_medians(whole, path, values)]
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    RESULT.write_text(json.dumps([asdict(one) for one in found], indent=1) + "\n")
    return 0


def _backlogs(whole: RunFolder, path: Path, values: int) -> Iterator[Form]:
    for form, job in (("a panel a shard", None), ("a key a series", by_series)):
        cost = backlog(whole, path, 1, job)
        yield _noted("backlog", form, values, cost["cpu_seconds"], cost["seconds"])
    began = time.monotonic()
    cpu = driver_alone(whole)
    yield _noted("backlog", "the driver alone", values, cpu, time.monotonic() - began)


def _medians(whole: RunFolder, path: Path, values: int) -> Iterator[Form]:
    session = build_session("bench", temporary=path / "tmp", cores=1)
    try:
        in_tasks(session.sparkContext)(str, [1, 2])  # starts the workers
        for form, work in (("tasks", medians_in_tasks), ("SQL", medians_in_sql)):
            cpu, began = cpu_seconds(), time.monotonic()
            work(session, whole)
            yield _noted(
                "medians of 10 s", form, values, cpu_seconds() - cpu, time.monotonic() - began
            )
    finally:
        session.stop()


def _noted(work: str, form: str, values: int, cpu: float, seconds: float) -> Form:
    found = Form(work=work, form=form, values=values, cpu_seconds=cpu, seconds=seconds)
    sys.stdout.write(
        f"{work}, {form}: {cpu:.1f} CPU s, {found.microseconds_a_value:.1f} us a value\n"
    )
    sys.stdout.flush()
    return found


if __name__ == "__main__":
    raise SystemExit(main())
