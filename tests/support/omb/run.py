"""Writes a run folder whose every latency is known, as its daemons would: two producers, two consumers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from soak.core.histogram import Histogram
from soak.core.journal_format import columns_line, encode
from soak.core.model import Column, Record
from soak.core.plan import text
from soak.core.plan.phases import decision_line
from soak.core.units import SECOND_NS
from soak.store.run_folder import Run, RunFolder, write_run

START_WALL_NS = 1_790_000_000 * SECOND_NS  # 2026-09-21T14:13:20Z
WARM_UP, SOAK = 5, 23

Ints = NDArray[np.int64]

PLAN = f"""
name: known
broker: {{kafka: {{bootstrap_servers: "127.0.0.1:9"}}}}
topic: {{count: 3, partitions: 4}}
load: {{rate: 50/s, producers: 2, message_size: 2KiB, keys: {{kind: round_robin}}}}
consumers: {{subscriptions: 2}}
phases: {{warm_up: {WARM_UP}s, soak: {SOAK}s}}
"""


@dataclass(slots=True)
class KnownRun:
    """What was written: latencies in us by second k, of producers, of consumers, and delays."""

    folder: RunFolder
    publish: dict[int, list[Ints]] = field(default_factory=dict)
    end_to_end: dict[int, list[Ints]] = field(default_factory=dict)
    delay: dict[int, list[Ints]] = field(default_factory=dict)


def write_known_run(
    path: Path,
    *,
    gap: Sequence[int] = (),
    paused: Sequence[int] = (),
    live: int = 0,
    ratios: Sequence[float] = (1.0,) * SOAK,
) -> KnownRun:
    """Write the run; no source records the seconds of `gap`.

    In those of `paused` consumers read nothing, but for the subscriptions that are live. `ratios` are by what
    latencies are multiplied in each second of the soak.
    """
    folder = RunFolder(path)
    path.mkdir(parents=True)
    plan = PLAN.replace("subscriptions: 2", f"subscriptions: 2, live_subscriptions: {live}")
    plan = plan.replace(f"soak: {SOAK}s", f"soak: {len(ratios)}s")
    folder.plan.write_text(text.dump(text.load(plan, "plan.yaml").plan))
    write_run(folder, Run("known-1", START_WALL_NS, "host", {}, "ended", "known"))
    end_k = WARM_UP + len(ratios)
    ratio_at = [1.0] * WARM_UP + list(ratios) + [ratios[-1]] * 2
    steps = [
        decision_line("warm-up", 0),
        decision_line("soak", WARM_UP),
        decision_line("drain", end_k),
    ]
    folder.phases.write_text("".join(steps))
    run, rng = KnownRun(folder), np.random.default_rng(23)
    for index in range(2):
        produced, consumed = [], []
        for k in (k for k in range(end_k + 2) if k not in gap):
            produced.append(_produced(run, k, rng, ratio_at[k]))
            second = _consumed(run, k, rng, ratio_at[k])
            consumed.append(_paused(second) if k in paused and index >= live else second)
        _write(folder, f"produce.{index}@host", produced)
        _write(folder, f"consume.{index}@host", consumed)
    return run


def _latencies(rng: np.random.Generator, scale_us: float) -> Ints:
    found: Ints = (scale_us * rng.lognormal(0.0, 0.9, 25)).astype(np.int64) + 1
    return found


def _histogram(values_us: Ints) -> Histogram:
    found = Histogram()
    found.record_ns(values_us * 1000)
    return found


def _produced(
    run: KnownRun, k: int, rng: np.random.Generator, ratio: float
) -> tuple[list[tuple[Column, float]], Record]:
    latency, delay = _latencies(rng, 2000.0 * ratio), _latencies(rng, 80.0)
    run.publish.setdefault(k, []).append(latency)
    run.delay.setdefault(k, []).append(delay)
    histogram, lag = _histogram(latency), _histogram(delay)
    samples = [
        *_quantiles("publish_latency_seconds", histogram),
        *_quantiles("publish_service_seconds", histogram),
        *_quantiles("schedule_lag_seconds", lag),
        *_counts(sent_messages=27, acked_messages=25, failed_messages=2, overflow_messages=0),
    ]
    texts = {
        "publish_latency_seconds": histogram.encode(),
        'publish_latency_seconds{leader="1"}': histogram.encode(),  # a part of the whole
        "publish_service_seconds": histogram.encode(),
        "schedule_lag_seconds": lag.encode(),
    }
    return samples, _record(k, samples, texts)


def _consumed(
    run: KnownRun, k: int, rng: np.random.Generator, ratio: float
) -> tuple[list[tuple[Column, float]], Record]:
    latency = _latencies(rng, 5000.0 * ratio)
    run.end_to_end.setdefault(k, []).append(latency)
    histogram = _histogram(latency)
    samples = [
        *_quantiles("end_to_end_latency_seconds", histogram),
        *_counts(received_messages=25, overflow_messages=0, lag_messages=k),
    ]
    return samples, _record(k, samples, {"end_to_end_latency_seconds": histogram.encode()})


def _paused(
    consumed: tuple[list[tuple[Column, float]], Record],
) -> tuple[list[tuple[Column, float]], Record]:
    """Return the second of a consumer that reads nothing: counts of 0, latencies of nothing."""
    columns, record = consumed
    samples = [(column, math.nan if column.unit == "seconds" else 0.0) for column, _ in columns]
    return samples, _record(record.k, samples, {})


def _quantiles(metric: str, histogram: Histogram) -> list[tuple[Column, float]]:
    names = {"0.5": 0.5, "0.99": 0.99, "max": 1.0}
    values = histogram.quantiles_seconds(tuple(names.values()))
    values[-1] = histogram.max_ns / 1e9
    return [
        (Column(metric, (("quantile", name),), "seconds"), value)
        for name, value in zip(names, values, strict=True)
    ]


def _counts(**counts: float) -> list[tuple[Column, float]]:
    return [(Column(name, (), "messages"), float(value)) for name, value in counts.items()]


def _record(k: int, samples: list[tuple[Column, float]], texts: dict[str, str]) -> Record:
    return Record(
        k=k,
        epoch=1,
        at_ns=START_WALL_NS + (k + 1) * SECOND_NS,
        length_ns=SECOND_NS,
        columns_id=columns_line([column for column, _ in samples]).id,
        values=tuple(value for _, value in samples),
        histograms=texts,
    )


def _write(
    folder: RunFolder, source: str, seconds: list[tuple[list[tuple[Column, float]], Record]]
) -> None:
    home = folder.journal / source
    home.mkdir(parents=True)
    head = encode(columns_line([column for column, _ in seconds[0][0]]))
    lines = [encode(record) for _, record in seconds]
    (home / "000000.jsonl").write_bytes(b"".join([head, *lines]))
