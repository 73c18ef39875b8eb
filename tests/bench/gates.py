"""What the gate of records costs, and work a batch under a flood: `python -m tests.bench.gates`.

Prints records per second through `decode` for three shapes of records, the time of a look at 1,000 and 5,000
settled findings, and of a consumer's batches while 100,000 foreign instances write to its topic.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import numpy as np

from soak.core.journal_format import columns_line, decode, encode
from soak.core.model import Column, Record, Span


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


def main() -> None:
    shapes = {"60 columns": (60, 0, 0), "500 columns": (500, 0, 0), "load": (120, 64, 4)}
    for name, (columns, streams, histograms) in {**shapes, "wide": (120, 1000, 4)}.items():
        lines = [encode(record(columns, streams, histograms, k)) for k in range(200)]
        rate = per_second(lambda lines=lines: [decode(one) for one in lines], 200)  # type: ignore[misc]
        sys.stdout.write(f"decode {name}: {rate:,.0f} records/s\n")
    sys.stdout.write(f"numpy {np.__version__}\n")


if __name__ == "__main__":
    main()
