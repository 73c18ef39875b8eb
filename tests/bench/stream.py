"""`python -m tests.bench.stream`: what the streaming detector costs: state written, CPU, catch-up.

A trigger is imitated: the seconds between two are appended to the journals, the query takes them, and so on
without a pause. So an hour of state is measured in minutes; cores are the CPU of a batch over its trigger.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from detectors.objectives import settings_of
from soak.core.plan.plan import OUTAGE_DETECTOR, STREAM_DETECTOR, Plan
from soak.store.run_folder import RunFolder, read_plan
from spark.cluster.session import build_session
from spark.sources.journals import NAME, JournalSource
from spark.streaming.panel_state import detect, shard_labels
from tests.support.spark.growing_run import begun
from tests.support.spark.long_run import RUN, LongShape, write_long_run

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_HOUR = 3600
_HISTORY_SECONDS = (
    900  # taken in before anything is counted, so that the windows of all series are full
)
_WARM_BATCHES = 5
_MILLISECONDS = 1000.0


@dataclass(slots=True)
class Feed:
    """The journals of a whole run, given out second by second."""

    whole: RunFolder
    folder: RunFolder
    _lines: dict[str, list[bytes]] = field(default_factory=dict)
    _at: int = 0

    def __post_init__(self) -> None:
        for path in sorted(self.whole.journal.glob("*/000000.jsonl")):
            self._lines[path.parent.name] = path.read_bytes().splitlines(keepends=True)
            (self.folder.journal / path.parent.name).mkdir(parents=True)

    def give(self, seconds: int) -> None:
        """Append so many seconds of every source; the columns line is before the first."""
        first = self._at + 1 if self._at else 0
        self._at += seconds
        for source, lines in self._lines.items():
            with (self.folder.journal / source / "000000.jsonl").open("ab") as file:
                file.write(b"".join(lines[first : self._at + 1]))


@dataclass(slots=True)
class Written:
    """Bytes of all files that ever appeared below a folder, each at its largest."""

    folder: Path
    sizes: dict[Path, int] = field(default_factory=dict)

    def look(self) -> int:
        for path in self.folder.rglob("*"):
            with suppress(FileNotFoundError):
                if path.is_file():
                    self.sizes[path] = max(self.sizes.get(path, 0), path.stat().st_size)
        return sum(self.sizes.values())


def cpu_seconds() -> float:
    """Return the CPU time of this process and all below it."""
    total = 0.0
    for one in [psutil.Process(), *psutil.Process().children(recursive=True)]:
        with suppress(psutil.Error):
            total += sum(one.cpu_times()[:2])
    return total


def cpu_by_program() -> dict[str, float]:
    """Return the CPU time of the driver, of the JVM, of Spark's Python workers and of its other Python."""
    found = dict.fromkeys(("driver", "jvm", "workers", "planning"), 0.0)
    own = psutil.Process()
    for one in [own, *own.children(recursive=True)]:
        with suppress(psutil.Error):
            name = "driver" if one == own else "planning"
            if "java" in one.name():
                name = "jvm"
            elif one.name() == "worker":  # as `fork_server` calls it
                name = "workers"
            found[name] += sum(one.cpu_times()[:2])
    return found


def pss_mib() -> float:
    total = 0.0
    for one in [psutil.Process(), *psutil.Process().children(recursive=True)]:
        with suppress(psutil.Error):
            total += one.memory_full_info().pss / 2**20
    return total


Job = Callable[["SparkSession", "DataFrame", Plan], "DataFrame"]
"""Makes the changes of the rows of a run."""


def in_shards(shards: int) -> Job:
    """Return what the daemon does."""

    def job(session: SparkSession, rows: DataFrame, plan: Plan) -> DataFrame:
        detectors = plan.detection.detectors
        return detect(
            rows,
            detectors[STREAM_DETECTOR],
            detectors[OUTAGE_DETECTOR],
            settings_of(plan),
            shard_labels(session, RUN, shards),
        )

    return job


@contextmanager
def query_on(
    session: SparkSession, folder: RunFolder, job: Job | None = None, tasks: int = 1
) -> Iterator[StreamingQuery]:
    """Run the detector as the daemon does, or a `job`, without attribution and as fast as it can."""
    session.dataSource.register(JournalSource)
    options = {"run_dir": str(folder.path), "run": RUN, "tasks": str(tasks)}
    rows = session.readStream.format(NAME).options(**options).load()
    changes = (job or in_shards(1))(session, rows, read_plan(folder))

    def on_batch(frame: DataFrame, _batch: int) -> None:
        frame.collect()

    query = (
        changes.writeStream.option("checkpointLocation", str(folder.checkpoint))
        .foreachBatch(on_batch)
        .start()
    )
    try:
        yield query
    finally:
        query.stop()


def live(whole: RunFolder, path: Path, trigger: int, batches: int) -> dict[str, float]:
    """Return what batches of `trigger` seconds cost, by hour and as cores."""
    folder = begun(whole, path / f"live-{trigger}")
    session = build_session("bench", temporary=path / "tmp", cores=1)
    try:
        with query_on(session, folder) as query:
            feed, written = Feed(whole, folder), Written(folder.checkpoint / "state")
            feed.give(_HISTORY_SECONDS)
            query.processAllAvailable()
            for _ in range(_WARM_BATCHES):
                feed.give(trigger)
                query.processAllAvailable()
            before, cpu, began = written.look(), cpu_seconds(), time.monotonic()
            feeding = 0.0
            for _ in range(batches):
                own = time.process_time()
                feed.give(trigger)
                feeding += time.process_time() - own
                query.processAllAvailable()
                own = time.process_time()
                written.look()
                feeding += time.process_time() - own
            seconds = batches * trigger
            last = query.lastProgress
            assert last is not None
            return {
                "state_gb_per_hour": (written.look() - before) / seconds * _HOUR / 1e9,
                "cores": (cpu_seconds() - cpu - feeding) / seconds,
                "batch_seconds": (time.monotonic() - began) / batches,
                "pss_mib": pss_mib(),
                "state_rows": sum(one.numRowsTotal for one in last.stateOperators),
            }
    finally:
        session.stop()


def backlog(whole: RunFolder, path: Path, shards: int, job: Job | None = None) -> dict[str, float]:
    """Return how fast a whole run is taken in that is there at the start, on `shards` cores."""
    folder = begun(whole, path / f"backlog-{len(list(path.iterdir()))}")
    shutil.copytree(whole.journal, folder.journal)
    session = build_session("bench", temporary=path / "tmp", cores=shards)
    session.conf.set("spark.sql.streaming.numRecentProgressUpdates", "1000")
    try:
        before, began = cpu_by_program(), time.monotonic()
        with query_on(session, folder, job or in_shards(shards), shards) as query:
            query.processAllAvailable()
            cpu = {name: used - before[name] for name, used in cpu_by_program().items()}
            took = time.monotonic() - began
            done = [one for one in query.recentProgress if one.numInputRows]
            rows = sum(one.numInputRows for one in done)
            batches = [one.durationMs["triggerExecution"] / _MILLISECONDS for one in done]
            return {
                "shards": shards,
                "rows": rows,
                "rows_per_second": rows / sum(batches),
                "first_batch_seconds": batches[0],  # which starts the workers
                "longest_batch_seconds": max(batches[1:]),
                "batches": len(batches),
                "seconds": took,
                "cpu_seconds": sum(cpu.values()),
                **{f"{name}_cpu_seconds": used for name, used in cpu.items()},
                "pss_mib": pss_mib(),
            }
    finally:
        session.stop()


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.stream", description=__doc__)
    parser.add_argument("--series", type=int, default=500)
    parser.add_argument("--batches", type=int, default=120)
    parser.add_argument("--trigger", type=int, action="append")
    parser.add_argument("--backlog", type=int, default=0, help="seconds of a backlog instead")
    parser.add_argument("--shards", type=int, default=1, help="of the backlog's detector")
    arguments = parser.parse_args()
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory(prefix="bench-stream-") as name:
        path = Path(name)
        triggers = [] if arguments.backlog else arguments.trigger or [1, 5]
        longest = max([t * (arguments.batches + _WARM_BATCHES) for t in triggers], default=0)
        longest += _HISTORY_SECONDS
        seconds = arguments.backlog or longest
        shape = LongShape(
            seconds=seconds + 30, series=arguments.series, warm_up=10, segment_seconds=10**6
        )
        whole = write_long_run(path / "whole", shape)
        if arguments.backlog:
            sys.stdout.write(json.dumps({"backlog": backlog(whole, path, arguments.shards)}) + "\n")
        for trigger in triggers:
            found = live(whole, path, trigger, arguments.batches)
            sys.stdout.write(json.dumps({"trigger": trigger, **found}) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
