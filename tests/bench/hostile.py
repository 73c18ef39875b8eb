"""`make bench-hostile`: what floods cost the detector and a consumer, compared with their usual work.

Batches of five seconds of 500 series, each with a look at 5,000 findings, are compared with those with a look
at ten, and a consumer's batch after 100,000 foreign producers with one without. Each side is a process of its
own, for its memory.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median

import numpy as np
from rich.console import Console

from soak.core import header
from soak.core.clock import SystemClock
from soak.core.model import Change
from soak.core.ports import EARLIEST
from soak.load.consumer.sequence_tracker import SequenceTracker
from soak.service.scheduling import keep_present_objects, reduce_garbage_collection
from soak.store.run_folder import read_plan
from spark.cluster.session import build_session
from spark.streaming.attribution import Attribution
from tests.bench.figures import Goal, Spec, figures, side_by_side, table, write
from tests.bench.stream import Feed, pss_mib, query_on
from tests.bench.stream import cpu_seconds as cpu_of_all
from tests.support.spark.growing_run import advance, begun
from tests.support.spark.long_run import RUN, LongShape, write_long_run

RESULT = Path("build/bench/hostile.json")
FINDINGS = {"usual": 10, "flooded": 5000}
PRODUCERS = {"usual": 0, "flooded": 100_000}
BATCH_SECONDS, SERIES, HISTORY_SECONDS = 5, 500, 300
MESSAGES = 2000  # of a consumer's batch
REPEATS = 7
GOAL = Goal(ratio_most=2.0)
SPECS = (
    Spec("batch_cpu_seconds", "detector: CPU of a batch of 5 s and of the look, s", GOAL),
    Spec("batch_seconds", "detector: time of a batch, s", GOAL),
    Spec("look_seconds", "of the CPU the look, s", Goal()),
    Spec("detector_mib", "detector: memory of all its processes, MiB", GOAL),
    Spec("consumer_seconds", "consumer: CPU of a batch of 2,000 messages, s", GOAL),
    Spec("consumer_mib", "consumer: resident memory, MiB", GOAL),
)


def detector(path: Path, count: int) -> dict[str, float]:
    """Return what a batch costs, with all processes, while so many incidents are known, all of them over.

    With each batch a rise is found, so that the findings are looked at, in a thread of its own.
    """
    seconds = HISTORY_SECONDS + (REPEATS + 2) * BATCH_SECONDS
    shape = LongShape(seconds=seconds + 30, series=SERIES, warm_up=10, segment_seconds=10**6)
    whole = write_long_run(path / "whole", shape)
    folder = begun(whole, path / "run")
    attribution = Attribution(folder, RUN, read_plan(folder), SystemClock())
    advance(attribution, [change(at) for at in range(count)])
    attribution.conclude()
    session = build_session("bench", temporary=path / "tmp", cores=1)
    found: list[tuple[float, float]] = []
    looks: list[float] = []
    with query_on(session, folder) as query:
        feed = Feed(whole, folder)
        feed.give(HISTORY_SECONDS)
        query.processAllAvailable()
        keep_present_objects()
        for at in range(REPEATS + 1):
            feed.give(BATCH_SECONDS)
            before, began = cpu_of_all(), time.monotonic()
            look = threading.Thread(target=_look, args=(attribution, count + at, looks))
            look.start()
            query.processAllAvailable()
            took = time.monotonic() - began
            look.join()
            found.append((cpu_of_all() - before, took))
        memory_mib = pss_mib()
    session.stop()
    return {
        "batch_cpu_seconds": median(cpu for cpu, _ in found[1:]),
        "batch_seconds": median(took for _, took in found[1:]),
        "look_seconds": median(looks[1:]),
        "detector_mib": memory_mib,
    }


def _look(attribution: Attribution, at: int, looks: list[float]) -> None:
    begin = time.thread_time()
    advance(attribution, [change(at)])
    looks.append(time.thread_time() - begin)


def change(at: int) -> Change:
    """Return a rise that is over: an incident of its own."""
    k = -(10**6) + 200 * at  # long before the records: nothing of it can be seen
    series = f'produce.{at % 100}@h{at // 100}|publish_latency_seconds{{quantile="0.99"}}'
    return Change(series, k, k, (k, k), 1.0, 2.0, "gone", 0.99, "step", resolved_k=k + 30)


def consumer(_path: Path, foreign: int) -> dict[str, float]:
    """Return what batches cost of which each message is of the run, after so many producers that are not."""
    tracker, at = SequenceTracker({0: EARLIEST}, own=frozenset({2**31})), 0
    spent = []
    reduce_garbage_collection()  # as the consumer does
    for first in range(0, foreign, MESSAGES):
        block = header.headers(MESSAGES, 5, 1, 9).copy()
        block["instance"] = np.arange(first, first + MESSAGES)
        take(tracker, block, at)
        at += MESSAGES
    for batch in range(200):
        block = header.headers(MESSAGES, 2**31, 1, 9).copy()
        block["sequence"] = np.arange(batch * MESSAGES, (batch + 1) * MESSAGES)
        spent.append(cpu_seconds(lambda block=block, at=at: take(tracker, block, at)))  # type: ignore[misc]  # bound here
        at += MESSAGES
    return {"consumer_seconds": median(spent), "consumer_mib": resident_mib()}


def take(
    tracker: SequenceTracker, block: np.ndarray[tuple[int], np.dtype[np.void]], at: int
) -> None:
    is_ours = tracker.admitted(block, np.ones(block.size, np.bool_))
    offset = np.arange(at, at + block.size)
    tracker.add(block, is_ours, np.zeros(block.size, np.int64), offset)
    tracker.take_spans()


def cpu_seconds(work: Callable[[], object]) -> float:
    begin = time.process_time()
    work()
    return time.process_time() - begin


def resident_mib() -> float:
    """Return the peak of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


PARTS: Mapping[str, tuple[Callable[[Path, int], dict[str, float]], Mapping[str, int]]] = {
    "detector": (detector, FINDINGS),
    "consumer": (consumer, PRODUCERS),
}


def measured(side: str) -> dict[str, float]:
    """Return what the parts cost, each in a process of its own."""
    found: dict[str, float] = {}
    for part in PARTS:
        command = [sys.executable, "-m", "tests.bench.hostile", "--part", part, "--side", side]
        found |= json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    return found


def main() -> int:
    """Measure, print the table, and write the result."""
    parser = argparse.ArgumentParser(prog="make bench-hostile ARGS=...", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    parser.add_argument("--side", choices=FINDINGS, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.part:
        work, amounts = PARTS[asked.part]
        with tempfile.TemporaryDirectory(prefix="bench-hostile-") as name:
            sys.stdout.write(json.dumps(work(Path(name), amounts[asked.side])))
        return 0
    pairs = side_by_side(asked.rounds, lambda _: measured("flooded"), lambda _: measured("usual"))
    found = figures(SPECS, pairs)
    Console(width=140).print(table("Under a flood (ours), and without one (peer)", found))
    write(RESULT, found)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
