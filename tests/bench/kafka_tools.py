"""Kafka's own load tools as peers: kafka-producer-perf-test and kafka-consumer-perf-test.

Started as their scripts start them (heap, collector). Throughput is of the time after the warm-up, so
that the compiling of a young JVM is not held against them; their CPU counts from the start, as ours.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from itertools import pairwise
from pathlib import Path

from soak.core.errors import SoakError
from soak.lab.jars import cache
from soak.service import java
from tests.bench import process
from tests.bench.figures import Measures

LOCK = Path(cache.__file__).parent / "kafka-tools.lock"

_JVM = (
    "-Xmx512M",
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
)
_STEADY = re.compile(r"(\d+) steady state records sent, ([\d.]+) records/sec")
_STAMP = "%Y-%m-%d %H:%M:%S:%f"
_ROW = re.compile(
    r"^(?P<at>[\d-]+ [\d:]+), \d+, [\d.]+, [\d.]+, (?P<count>\d+), [\d.]+", re.MULTILINE
)
_LIMIT_SECONDS = 300


def produce(
    servers: str,
    topic: str,
    settings: Mapping[str, str],
    *,
    count: int,
    warm_up: int,
    size: int,
    log_path: Path,
) -> Measures:
    """Send `count` messages as fast as it goes."""
    argv = [
        *_tool("ProducerPerformance"),
        *("--topic", topic),
        *("--num-records", str(count)),
        *("--warmup-records", str(warm_up)),
        *("--record-size", str(size)),
        *("--throughput", "-1"),
        *("--bootstrap-server", servers),
        "--command-property",
        *(f"{key}={value}" for key, value in settings.items()),
    ]
    (usage,) = process.wait_all([process.start(argv, log_path)], _LIMIT_SECONDS)
    return {
        "rate": steady_rate(log_path.read_text(encoding="utf-8")),
        "cpu_us": usage.cpu_seconds * 1e6 / count,
    }


def consume(servers: str, topic: str, *, count: int, log_path: Path) -> dict[str, float]:
    """Read `count` messages from the beginning of a topic; `middle_rate` tells from the log how fast."""
    argv = [
        *_tool("ConsumerPerformance"),
        *("--bootstrap-server", servers),
        *("--topic", topic),
        *("--num-records", str(count)),
        *("--timeout", "30000"),
        "--show-detailed-stats",
        *("--reporting-interval", "1000"),
    ]
    (usage,) = process.wait_all([process.start(argv, log_path)], _LIMIT_SECONDS)
    return {"cpu_us": usage.cpu_seconds * 1e6 / count}


def steady_rate(said: str) -> float:
    """Return messages a second after the warm-up, from what the producer's tool printed."""
    found = _STEADY.search(said)
    if found is None:
        raise SoakError(f"kafka-producer-perf-test did not say its steady rate:\n{said[-800:]}")
    return float(found[2])


def middle_rate(said: str) -> float:
    """Return messages a second from the first to the last report of the consumer's tool."""
    rows = [
        (datetime.strptime(row["at"] + "000", _STAMP), int(row["count"]))  # noqa: DTZ007  # only differences count
        for row in _ROW.finditer(said)
    ]
    steps = [(b_at - a_at, b - a) for (a_at, a), (b_at, b) in pairwise(rows)]
    seconds = sum(step.total_seconds() for step, _ in steps)
    if seconds <= 0:
        raise SoakError(f"kafka-consumer-perf-test reported less than two seconds:\n{said[-800:]}")
    return sum(count for _, count in steps) / seconds


def _tool(name: str) -> list[str]:
    jars = cache.fetch(LOCK)
    program = java.java_home() / "bin" / "java"
    return [str(program), *_JVM, "-cp", f"{jars}/*", f"org.apache.kafka.tools.{name}"]
