"""Writes a run folder as a real run would, in a second: known step, deletions, gaps, and audit.

Latencies of a second are log-normal messages put through the product's own histogram, so that
quantiles and counts above thresholds agree with each other.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from soak.core.header import instance_of, stream_name
from soak.core.histogram import Histogram
from soak.core.journal_format import Columns, End, columns_line, encode
from soak.core.model import THRESHOLDS_SECONDS, Column, Event, Record
from soak.core.plan import text
from soak.core.plan.phases import decision_line
from soak.core.units import SECOND_NS
from soak.store.run_folder import Run, RunFolder, write_run

START_WALL_NS = 1_790_000_000 * SECOND_NS  # 2026-09-21T14:13:20Z
PRODUCER, CONSUMER, PROBE = "produce.0@host", "consume.0@host", "probe@host"
QUANTILES = {"0.5": 0.5, "0.99": 0.99, "0.999": 0.999, "max": 1.0}

Samples = list[tuple[Column, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What happens in the run; seconds are k. `step` multiplies the slow tail from `fault_k` on."""

    seconds: int = 240
    warm_up: int = 20
    drain: int = 5
    rate: int = 400
    deletions_k: int | None = 110
    fault_k: int | None = 112
    lifted_k: int | None = None
    step: float = 15.0
    gaps: tuple[tuple[str, range], ...] = ()  # sources and the seconds that they lack
    invalid: range = range(0)
    damaged_k: int | None = None  # the producer's line of this second is overwritten
    busy: range = range(0)  # seconds in which the detector takes one of two processors
    lost: int = 0  # so many acknowledged messages never arrive
    missed: int = 0  # of the rate, in each second: the cluster takes no more
    is_read: bool = True  # the consumer may read
    is_drill: bool = False
    is_ended: bool = True
    sinks: str = "{}"
    objectives: str = "[]"
    seed: int = 7


def write_synthetic_run(path: Path, shape: Shape | None = None) -> RunFolder:
    """Write plan, run.json, phases, journals and a file for findings; return the folder."""
    shape = shape or Shape()
    folder = RunFolder(path)
    path.mkdir(parents=True)
    folder.plan.write_text(text.dump(text.load(_plan(shape), "plan.yaml").plan))
    folder.findings.touch()
    write_run(folder, Run("synthetic-1", START_WALL_NS, "host", {}, "ended", "synthetic"))
    steps = [("warm-up", 0), ("soak", shape.warm_up), ("drain", shape.seconds - shape.drain)]
    ends = [("end", shape.seconds)] if shape.is_ended else []
    folder.phases.write_text("".join(decision_line(name, k) for name, k in (*steps, *ends)))  # type: ignore[arg-type]  # literals
    for source, lines in _journals(replace(shape, sinks="{}", objectives="[]", is_drill=False)):
        (folder.journal / source).mkdir(parents=True)
        (folder.journal / source / "000000.jsonl").write_bytes(lines)
    if shape.is_drill:
        folder.lab.mkdir()
        head = {"name": "retention_cliff", "fault": {"kind": "deletion_stall"}}
        folder.faults.write_text(json.dumps(head) + "\n")
    return folder


@lru_cache(maxsize=8)
def _journals(shape: Shape) -> tuple[tuple[str, bytes], ...]:
    """Return what each source has recorded; many tests read the same run."""
    rng = np.random.default_rng(shape.seed)
    slow = _slowness(shape, rng)
    return (
        (PRODUCER, _lines(shape, PRODUCER, lambda k: _produced(shape, k, slow[k] * 0.7, rng))),
        (CONSUMER, _lines(shape, CONSUMER, lambda k: _consumed(shape, k, slow[k], rng))),
        (PROBE, _lines(shape, PROBE, lambda k: _probed(shape, k, rng))),
    )


def _plan(shape: Shape) -> str:
    soak = shape.seconds - shape.warm_up - shape.drain
    return f"""
name: synthetic
broker: {{kafka: {{bootstrap_servers: "127.0.0.1:9"}}}}
load: {{rate: {shape.rate}/s, message_size: 1KiB}}
phases: {{warm_up: {shape.warm_up}s, soak: {soak}s, drain: 30s}}
sinks: {shape.sinks}
objectives: {shape.objectives}
"""


def _slowness(
    shape: Shape, rng: np.random.Generator
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return by how much each second's tail is slower; the noise has a little memory."""
    noise = np.zeros(shape.seconds)
    for k in range(1, shape.seconds):
        noise[k] = 0.4 * noise[k - 1] + rng.normal(0.0, 0.06)
    slow = np.exp(noise)
    if shape.fault_k is not None:
        slow[shape.fault_k : shape.lifted_k] *= shape.step
    return slow


def _messages(shape: Shape, k: int) -> int:
    return shape.rate - shape.missed if k < shape.seconds - shape.drain else 0


def _latency(metric: str, count: int, slow: float, rng: np.random.Generator) -> Samples:
    seconds = 0.0012 * np.exp(rng.normal(0.0, 0.25, count))
    tail = rng.random(count) < 0.03
    seconds[tail] = slow * 0.0035 * np.exp(rng.normal(0.0, 0.15, int(tail.sum())))
    histogram = Histogram()
    histogram.record_ns((seconds * 1e9).astype(np.int64))
    values = histogram.quantiles_seconds(tuple(QUANTILES.values()))
    family = f"{metric}_latency_seconds"
    samples: Samples = [
        (Column(family, (("quantile", name),), "seconds"), value)
        for name, value in zip(QUANTILES, values, strict=True)
    ]
    above = zip(THRESHOLDS_SECONDS, histogram.above(), strict=True)
    samples += [
        (Column(f"{metric}_latency_above_messages", (("threshold", f"{at:g}"),), "messages"), n)
        for at, n in above
    ]
    return samples


def _counts(**counts: float) -> Samples:
    return [(Column(name, (), "messages"), value) for name, value in counts.items()]


def _record(shape: Shape, k: int, samples: Samples, **other: object) -> Record:
    reason = "schedule_lag" if k in shape.invalid else ""
    values: dict[str, object] = {
        "k": k,
        "epoch": 1,
        "at_ns": START_WALL_NS + (k + 1) * SECOND_NS,
        "length_ns": SECOND_NS,
        "columns_id": _columns(tuple(column for column, _ in samples)).id,
        "values": tuple(value for _, value in samples),
        "validity": {"reason": reason},
    }
    return Record(**{**values, **other})  # type: ignore[arg-type]  # the fields of a record


def _spans(shape: Shape, k: int) -> dict[str, tuple[tuple[int, int, int, int], ...]]:
    count, first = _messages(shape, k), k * shape.rate
    name = stream_name(instance_of("synthetic-1", PRODUCER), 1, 0)
    return {name: ((first, first + count - 1, first, first + count - 1),)} if count else {}


def _produced(
    shape: Shape, k: int, slow: float, rng: np.random.Generator
) -> tuple[Samples, Record]:
    count = _messages(shape, k)
    lag = 0.004 if k in shape.invalid else 0.0003
    samples = _latency("publish", count, slow, rng)
    samples += _counts(sent_messages=count, acked_messages=count, failed_messages=0)
    missed = shape.missed if count else 0
    samples += _counts(missed_messages=missed, queue_full_messages=missed)
    samples += [
        (Column("schedule_lag_seconds", (("quantile", "0.99"),), "seconds"), lag * rng.lognormal()),
        (Column("process_cpu_ratio", (), "ratio"), 0.2 + 0.02 * rng.random()),
    ]
    following = {stream_name(instance_of("synthetic-1", PRODUCER), 1, 0): (k + 1) * shape.rate}
    return samples, _record(
        shape, k, samples, acknowledged=_spans(shape, k), sent_next=following if count else {}
    )


def _consumed(
    shape: Shape, k: int, slow: float, rng: np.random.Generator
) -> tuple[Samples, Record]:
    received = _spans(shape, k) if shape.is_read else {}
    if shape.lost and k == shape.warm_up:
        received = {
            name: tuple((a + shape.lost, b, c + shape.lost, d) for a, b, c, d in spans)
            for name, spans in received.items()
        }
    count = _messages(shape, k) if shape.is_read else 0
    samples = _latency("end_to_end", count, slow, rng)
    samples += _counts(received_messages=count, duplicated_messages=0)
    lag = round(float(rng.uniform(0, 20))) * (_messages(shape, k) > 0)
    samples += _counts(reordered_messages=0, lag_messages=lag)
    samples += [(Column("process_cpu_ratio", (), "ratio"), 0.15 + 0.02 * rng.random())]
    return samples, _record(shape, k, samples, received=received)


def _probed(shape: Shape, k: int, rng: np.random.Generator) -> tuple[Samples, Record]:
    is_deleting = shape.deletions_k is not None and k >= shape.deletions_k
    deletions = int(is_deleting) * int(rng.integers(1, 3))
    device, topic = (("device", "vda"),), (("topic", "soak-synthetic-1"),)
    fsync = (("directory", "/data"), ("quantile", "0.99"))
    samples: Samples = [
        (Column("fsync_latency_seconds", fsync, "seconds"), 0.002 * rng.lognormal(0.0, 0.2)),
        (Column("disk_write_await_seconds", device, "seconds"), 0.001 * rng.lognormal(0.0, 0.2)),
        (Column("node_disk_io_time_seconds", device, "seconds"), 0.1 * rng.lognormal(0.0, 0.2)),
        (Column("retention_deletions", topic, "deletions", 60.0), deletions),
        (Column("retention_deleted_bytes", topic, "bytes", 60.0), deletions * 2**20),
        (Column("host_cpu_ratio", (), "ratio"), 0.4 + 0.05 * rng.random()),
    ]
    if shape.busy:
        daemon = Column("host_daemon_cpu_cores", (("daemon", "detect-stream"),), "cores")
        samples += [
            (Column("host_cpu_count", (), "processors"), 2.0),
            (daemon, 1.0 if k in shape.busy else 0.05),
        ]
    end_ns = START_WALL_NS + (k + 1) * SECOND_NS
    events = tuple(
        Event(
            "retention_deletion",
            end_ns - SECOND_NS // 2 + at,
            end_ns - SECOND_NS + at,
            {
                "topic": topic[0][1],
                "partition": at,
                "from_offset": k,
                "to_offset": k + 1,
                "bytes": 1,
            },
        )
        for at in range(deletions)
    )
    return samples, _record(shape, k, samples, events=events)


def _lines(shape: Shape, source: str, second: Callable[[int], tuple[Samples, Record]]) -> bytes:
    missing = {k for name, span in shape.gaps if name == source for k in span}
    damaged_k = shape.damaged_k if source == PRODUCER else None
    known, lines = "", []
    for k in range(shape.seconds):
        samples, record = second(k)
        if record.columns_id != known:
            known = record.columns_id
            lines.append(encode(_columns(tuple(column for column, _ in samples))))
        if k not in missing:
            line = encode(record)
            lines.append(b"#" * 40 + line[40:] if k == damaged_k else line)
    if shape.is_ended:
        lines.append(encode(End(1)))
    return b"".join(lines)


@lru_cache(maxsize=8)
def _columns(columns: tuple[Column, ...]) -> Columns:
    """Return the line that lists a source's columns, which are the same in every second."""
    return columns_line(columns)
