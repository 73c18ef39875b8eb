"""Writes small runs to compare: a producer whose latencies are known, and a report's summary."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from soak.core import wording
from soak.core.histogram import Histogram
from soak.core.journal_format import columns_line, encode
from soak.core.model import Column, Record
from soak.core.plan import text
from soak.core.plan.phases import decision_line
from soak.core.units import SECOND_NS
from soak.store.run_folder import Run, RunFolder, write_run

START_WALL_NS = 1_790_000_000 * SECOND_NS
WARM_UP = 5
_MESSAGES = 200
_COUNTS = (
    "sent_messages",
    "acked_messages",
    "failed_messages",
    "missed_messages",
    "overflow_messages",
)
_LIMIT_SECONDS = 0.05
_ABOVE = Column("publish_latency_above_messages", (("threshold", str(_LIMIT_SECONDS)),), "messages")
_COLUMNS = (*(Column(name, (), "messages") for name in _COUNTS), _ABOVE)
OBJECTIVE = "p99 publish <= 50ms for 90% of minutes"


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedShape:
    """A run: seconds of soak, how much slower than 2 ms, and what its report says."""

    seconds: int = 120
    factor: float = 1.0
    seed: int = 1
    day: int = 0
    name: str = "compared"
    level: int = 2
    is_ended: bool = True
    incidents: Sequence[str] = ()
    objectives: Sequence[dict[str, Any]] = ()
    first_deletion: float | None = None
    rate: int = _MESSAGES
    slow: tuple[int, int] = (0, 0)
    """Seconds [from, to) of the run with a hundred times the latency: the first incident is about them."""
    broker: str = "kafka: {bootstrap_servers: '127.0.0.1:9'}"
    lab: str = "null"
    brokers: tuple[str, ...] = ()
    versions: tuple[tuple[str, str], ...] = (("soakd", "0.1.0"),)


def write_compared_run(path: Path, shape: ComparedShape | None = None) -> Path:
    """Write run.json, plan, phases, a journal and the summary; return the folder."""
    shape = shape or ComparedShape()
    folder = RunFolder(path)
    folder.summary.parent.mkdir(parents=True)
    start_ns = _start_ns(shape)
    versions, brokers = dict(shape.versions), shape.brokers
    run = Run(f"run-{path.name}", start_ns, "host", versions, "ended", shape.name, brokers=brokers)
    write_run(folder, run)
    plan = (
        f"name: compared\nbroker: {{{shape.broker}}}\nlab: {shape.lab}\n"
        f"load: {{rate: {shape.rate}/s}}\nphases: {{warm_up: {WARM_UP}s, soak: {shape.seconds}s}}\n"
        f"objectives: [{OBJECTIVE}]\n"
    )
    folder.plan.write_text(text.dump(text.load(plan, "plan.yaml").plan))
    end = WARM_UP + shape.seconds
    steps = [decision_line("warm-up", 0), decision_line("soak", WARM_UP)]
    steps += [decision_line("end", end)] if shape.is_ended else []
    folder.phases.write_text("".join(steps))
    source = folder.journal / "produce.0@host"
    source.mkdir(parents=True)
    (source / "000000.jsonl").write_bytes(_journal(shape, end))
    write_summary(folder, shape)
    return path


def _start_ns(shape: ComparedShape) -> int:
    return START_WALL_NS + shape.day * 86_400 * SECOND_NS


def write_summary(folder: RunFolder, shape: ComparedShape) -> None:
    """Write the part of `summary.json` that a comparison reads."""
    spans = [shape.slow, *[(0, 0)] * len(shape.incidents)]
    findings = [
        {
            "key": f"run-{folder.path.name}-{cause}",
            "kind": "step",
            "what": f"p99 stepped because of {cause}",
            "at": wording.iso(_start_ns(shape) + begin * SECOND_NS),
            "interval_seconds": [-1, 1],
            "seconds": end - begin,
            "is_over": end > begin,
            "cause": cause,
            "state": "open",
            "is_about_cluster": True,
        }
        for cause, (begin, end) in zip(shape.incidents, spans, strict=False)
    ]
    body = {
        "verdict": "regressed" if findings else "clean",
        "findings": findings,
        "audit": {"acked": shape.seconds * shape.rate, "lost": 0},
        "soak": {"latency_seconds": {"publish": {"p99": 0.004}}},
        "durability": {
            "level": shape.level,
            "settings": [{"name": "acks", "value": "all" if shape.level > 1 else "1"}],
        },
        "objectives": list(shape.objectives),
        "retention": {"happened": {"first_deletion_seconds": shape.first_deletion}},
    }
    folder.summary.write_text(json.dumps(body))


def _journal(shape: ComparedShape, end: int) -> bytes:
    rng = np.random.default_rng(shape.seed)
    columns = columns_line(_COLUMNS)
    lines = [encode(columns)]
    level = 0.0
    for k in range(end):
        level = 0.5 * level + rng.normal(0.0, 0.01)
        # The warm-up is slow, which must not count.
        slow = shape.factor * (50.0 if k < WARM_UP else 1.0)
        slow *= 100.0 if shape.slow[0] <= k < shape.slow[1] else 1.0
        seconds = 0.002 * slow * np.exp(level + rng.normal(0.0, 0.1, shape.rate))
        above = float((seconds >= _LIMIT_SECONDS).sum())
        histogram = Histogram()
        histogram.record_ns((seconds * 1e9).astype(np.int64))
        record = Record(
            k,
            1,
            START_WALL_NS + (k + 1) * SECOND_NS,
            SECOND_NS,
            columns.id,
            (float(shape.rate), float(shape.rate), 0.0, 0.0, 0.0, above),
            dict.fromkeys(
                ("publish_latency_seconds", "publish_service_seconds"), histogram.encode()
            ),
        )
        lines.append(encode(record))
    return b"".join(lines)
