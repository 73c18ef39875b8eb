"""What the gate of records costs, and work a batch under a flood: `python -m tests.bench.gates`.

Prints records per second through `decode` for three shapes of records, the time of a look at 1,000 and 5,000
settled findings, and of a consumer's batches while 100,000 foreign instances write to its topic.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from detectors.incidents import group
from soak.core import header
from soak.core.journal_format import columns_line, decode, encode
from soak.core.model import Change, Column, Record, Span
from soak.core.ports import EARLIEST
from soak.load.consumer.sequence_tracker import SequenceTracker
from spark.streaming.attribution import finding_of, named


def record(columns: int, streams: int, histograms: int, k: int) -> Record:
    listed = [
        Column(f"metric_{at}_seconds", (("target", "a"),), "seconds") for at in range(columns)
    ]
    spans: dict[str, tuple[Span, ...]] = {
        f"{4_000_000_000 + at % 7}.1.{at}": ((k * 9, k * 9 + 8, k * 9, k * 9 + 8),)
        for at in range(streams)
    }
    return Record(
        k,
        1,
        1_790_000_000 * 10**9 + k,
        10**9,
        columns_line(listed).id,
        tuple(0.001 * at for at in range(columns)),
        {f"publish_latency_seconds{at}": "H" * 2000 for at in range(histograms)},
        acknowledged=spans,
        sent_next={name: spans[name][0][1] + 1 for name in spans},
    )


def per_second(work: Callable[[], object], count: int, tries: int = 5) -> float:
    """Return how many of `count` a second the best of some tries has done."""
    best = 0.0
    for _ in range(tries):
        begin = time.process_time()
        work()
        best = max(best, count / (time.process_time() - begin))
    return best


def flood(count: int, *, is_one: bool) -> list[Change]:
    """Return so many rises that are over: an incident each, or one incident of as many series."""
    found = []
    for at in range(count):
        k = 1000 if is_one else 1000 + 200 * at
        series = f'produce.{at % 100}@h{at // 100}|publish_latency_seconds{{quantile="0.99"}}'
        found.append(
            Change(series, k, k, (k, k), 1.0, 2.0, "gone", 0.99, "step", resolved_k=k + 30)
        )
    return found


def look_seconds(changes: Sequence[Change]) -> float:
    """Return what it takes to group changes and name the incidents, as each look at the findings does."""
    begin = time.process_time()
    found = named("r", group(changes), ())
    for incident in found:
        finding_of("r", incident, None)
    return time.process_time() - begin


def strangers(batches: int, size: int = 2000) -> list[float]:
    """Return the time of each batch while every message is of an instance that nobody knows."""
    tracker, spent = SequenceTracker({0: EARLIEST}), []
    for batch in range(batches):
        block = header.headers(size, 5, 1, 9).copy()
        block["instance"] = np.arange(batch * size, (batch + 1) * size)
        offset = np.arange(batch * size, (batch + 1) * size)
        begin = time.process_time()
        tracker.add(block, np.ones(size, np.bool_), np.zeros(size, np.int64), offset)
        tracker.take_spans()
        spent.append(time.process_time() - begin)
    return spent


def main() -> None:
    """Print all figures; CPU seconds of one core."""
    shapes = {"60 columns": (60, 0, 0), "500 columns": (500, 0, 0), "load": (120, 64, 4)}
    for name, (columns, streams, histograms) in {**shapes, "wide": (120, 1000, 4)}.items():
        lines = [encode(record(columns, streams, histograms, k)) for k in range(200)]
        rate = per_second(partial(_decoded, lines), 200)
        sys.stdout.write(f"decode {name}: {rate:,.0f} records/s\n")
    for count in (1000, 5000):
        for is_one in (False, True):
            spent = look_seconds(flood(count, is_one=is_one))
            kind = "one incident" if is_one else "an incident each"
            sys.stdout.write(f"look at {count} changes, {kind}: {spent:.2f} s\n")
    spent_each = strangers(int(sys.argv[1]) if len(sys.argv) > 1 else 50)
    sys.stdout.write(
        f"2,000 messages of strangers: first batch {spent_each[0]:.3f} s, last {spent_each[-1]:.3f} s\n"
    )


def _decoded(lines: Sequence[bytes]) -> int:
    return len([decode(line) for line in lines])


if __name__ == "__main__":
    main()
