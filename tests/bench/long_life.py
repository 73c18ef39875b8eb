"""`make bench-long`: whether the streaming detector stays as it is: thousands of batches, as a month has.

Journals grow by some seconds, the query takes them, and so on without a pause, so that 3,000 batches of a
trigger of five seconds take an hour or two. Ten times on the way heap after a collection, resident memory,
descriptors, threads and files of the checkpoint are noted, and how long batches take.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from soak.store.run_folder import RunFolder
from spark.cluster.session import build_session
from tests.bench.stream import Feed, cpu_seconds, query_on
from tests.support.spark.growing_run import begun
from tests.support.spark.long_run import LongShape, write_long_run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RESULT = Path("build/bench/long_life.json")
_HISTORY_SECONDS = (
    900  # taken in before anything is noted, so that the windows of all series are full
)
_LOOKS = 10
_MAY_GROW = 1.1  # of the second look, at the last one: the first is before all code is compiled


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What the processes of the query have at one moment."""

    batch: int
    heap_mib: float  # of the JVM, after collections
    jvm_mib: float  # resident
    python_mib: float  # resident, driver and workers
    descriptors: int
    threads: int
    checkpoint_files: int
    checkpoint_mib: float
    batch_seconds: float  # median since the last look
    batch_cpu_seconds: float  # mean since the last look

    @property
    def files_a_batch(self) -> float:
        """Return the files of the checkpoint by the batches that may have some."""
        return self.checkpoint_files / (_KEPT_BATCHES + _REMOVED_SECONDS / self.batch_seconds)


FLAT = ("heap_mib", "jvm_mib", "python_mib", "descriptors", "threads", "files_a_batch")
"""What must not grow; batches are compared by their CPU."""
_KEPT_BATCHES, _REMOVED_SECONDS = (
    10,
    60.0,
)  # how many batches Spark keeps, and how often it removes others


def live_through(whole: RunFolder, path: Path, batches: int, trigger: int) -> list[Look]:
    """Return what was seen while a query took so many batches of `trigger` seconds each."""
    folder = begun(whole, path / "run")
    session = build_session("bench", temporary=path / "tmp", cores=1)
    looks: list[Look] = []
    try:
        with query_on(session, folder) as query:
            feed = Feed(whole, folder)
            feed.give(_HISTORY_SECONDS)
            query.processAllAvailable()
            took: list[float] = []
            cpu = cpu_seconds()
            for at in range(1, batches + 1):
                feed.give(trigger)
                began = time.monotonic()
                query.processAllAvailable()
                took.append(time.monotonic() - began)
                if at % max(1, batches // _LOOKS) == 0:
                    used = (cpu_seconds() - cpu) / len(took)
                    looks.append(look(session, folder, at, statistics.median(took), used))
                    sys.stdout.write(json.dumps(asdict(looks[-1])) + "\n")
                    sys.stdout.flush()
                    took, cpu = [], cpu_seconds()
    finally:
        session.stop()
    return looks


def look(session: SparkSession, folder: RunFolder, batch: int, seconds: float, cpu: float) -> Look:
    """Return what the processes have now."""
    jvm: Any = session.sparkContext._jvm  # the only way to the JVM
    runtime = jvm.java.lang.Runtime.getRuntime()
    heap_bytes = []
    for _ in range(3):  # what waits to be closed is collected by the next collection
        jvm.java.lang.System.gc()
        heap_bytes.append(runtime.totalMemory() - runtime.freeMemory())
    own = psutil.Process()
    memory = {True: 0.0, False: 0.0}  # of Java, of Python
    descriptors = threads = 0
    for one in [own, *own.children(recursive=True)]:
        with suppress(psutil.Error):
            memory["java" in one.name()] += one.memory_info().rss / 2**20
            descriptors += one.num_fds()
            threads += one.num_threads()
    files = [one for one in folder.checkpoint.rglob("*") if one.is_file()]
    sizes = []
    for file in files:
        with suppress(FileNotFoundError):
            sizes.append(file.stat().st_size)
    return Look(
        batch=batch,
        heap_mib=round(min(heap_bytes) / 2**20, 1),
        jvm_mib=round(memory[True], 1),
        python_mib=round(memory[False], 1),
        descriptors=descriptors,
        threads=threads,
        checkpoint_files=len(sizes),
        checkpoint_mib=round(sum(sizes) / 2**20, 1),
        batch_seconds=round(seconds, 3),
        batch_cpu_seconds=round(cpu, 3),
    )


def growth(looks: Sequence[Look]) -> dict[str, float]:
    """Return by how much each figure grew: the median of later looks over that of earlier ones.

    The first two looks are of processes that are still starting. What Spark removes now and then, as
    files of the checkpoint, is sometimes more and sometimes less. Of the heap the lowest looks are compared:
    the JVM lets go of some 40 MiB in every second or third look only.
    """
    lived = looks[2:] if len(looks) > 3 else looks[-2:]
    half = len(lived) // 2
    names = (*FLAT, "batch_cpu_seconds")
    return {
        name: round(_level(lived[half:], name) / max(_level(lived[:half], name), 1e-9), 3)
        for name in names
    }


def _level(looks: Sequence[Look], name: str) -> float:
    values = [getattr(one, name) for one in looks]
    return float(min(values) if name == "heap_mib" else statistics.median(values))


def main() -> int:
    """Measure, print, and write the result; return 1 where something grew by more than a tenth."""
    parser = argparse.ArgumentParser(prog="make bench-long", description=__doc__)
    parser.add_argument("--batches", type=int, default=3000)
    parser.add_argument("--trigger", type=int, default=5, help="seconds a batch")
    parser.add_argument("--series", type=int, default=60)
    arguments = parser.parse_args()
    seconds = arguments.batches * arguments.trigger + _HISTORY_SECONDS + 30
    with tempfile.TemporaryDirectory(prefix="bench-long-") as name:
        shape = LongShape(
            seconds=seconds, series=arguments.series, warm_up=10, segment_seconds=10**7
        )
        whole = write_long_run(Path(name) / "whole", shape)
        looks = live_through(whole, Path(name), arguments.batches, arguments.trigger)
    grown = growth(looks)
    is_flat = all(ratio <= _MAY_GROW for ratio in grown.values())
    result = {"looks": [asdict(one) for one in looks], "growth": grown, "is_flat": is_flat}
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    RESULT.write_text(json.dumps(result, indent=1) + "\n")
    sys.stdout.write(json.dumps({"growth": grown, "is_flat": is_flat}) + "\n")
    return 0 if is_flat else 1


if __name__ == "__main__":
    raise SystemExit(main())
