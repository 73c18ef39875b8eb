"""Writes the folder of a run of many hours and many series in seconds: with known steps, deletions and gaps.

Producers and consumers come by turns, then hosts with probes. Latencies are AR(1) noise on the log;
histograms and message spans are those of a steady load.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.signal import lfilter

from soak.core.header import instance_of, stream_name
from soak.core.histogram import Histogram
from soak.core.journal_format import End, columns_line, encode
from soak.core.model import THRESHOLDS_SECONDS, Column, Event, Record
from soak.core.plan import text
from soak.core.plan.phases import decision_line
from soak.core.units import SECOND_NS
from soak.store.journal.reader import segment_name
from soak.store.run_folder import Run, RunFolder, write_run
from tests.support.spark.synthetic_run import START_WALL_NS

RUN = "long-1"
SPIKE_RATIO = 20.0
_DRAIN_SECONDS = 20
_PARTITIONS = 6
_QUANTILES = ("0.5", "0.99", "0.999", "max")


@dataclass(frozen=True, slots=True, kw_only=True)
class LongShape:
    """`series`: columns of all sources; `steps`: (first second, seconds, factor) of all latencies."""

    seconds: int = 36 * 3600
    series: int = 60
    rate: int = 1000
    warm_up: int = 300
    deletions: int = 0  # events, over the second half
    steps: tuple[tuple[int, int, float], ...] = ()
    gap: range = range(0)  # of the first probe
    drift: tuple[int, int, float] | None = (
        None  # first second, seconds, factor in the end, then back
    )
    spikes: tuple[int, ...] = ()  # seconds that are slow by themselves
    segment_seconds: int = 3600
    seed: int = 1


def write_long_run(path: Path, shape: LongShape) -> RunFolder:
    """Write plan, phases and journals; return the folder."""
    folder = RunFolder(path)
    path.mkdir(parents=True)
    clients, probes = _sources(shape.series)
    folder.plan.write_text(text.dump(text.load(_plan(shape, clients), "plan.yaml").plan))
    folder.findings.touch()
    write_run(folder, Run(RUN, START_WALL_NS, "host", {}, "ended", "long"))
    steps = [("warm-up", 0), ("soak", shape.warm_up), ("drain", shape.seconds - _DRAIN_SECONDS)]
    steps.append(("end", shape.seconds))
    folder.phases.write_text("".join(decision_line(name, k) for name, k in steps))  # type: ignore[arg-type]  # literals
    rng = np.random.default_rng(shape.seed)
    slow = _slowness(shape, rng)
    for at in range(clients):
        for source, family in (
            (f"produce.{at}@load", "publish"),
            (f"consume.{at}@load", "end_to_end"),
        ):
            _write(
                folder,
                source,
                shape,
                _client(source, family, shape, slow, rng, is_small=shape.series < 100),
            )
    for at, columns in enumerate(probes):
        _write(folder, f"probe@broker{at}", shape, _probe(at, columns, shape, rng))
    return folder


def _sources(series: int) -> tuple[int, list[int]]:
    """Return the number of producers, as many consumers, and the number of columns of each probe host."""
    clients = max(1, series // 250)
    a_client = 20 if series < 100 else 20 + len(THRESHOLDS_SECONDS)
    left = series - 2 * clients * a_client
    hosts = max(1, round(left / 60))
    return clients, [len(part) for part in np.array_split(np.arange(left), hosts)]


def _plan(shape: LongShape, clients: int) -> str:
    soak = shape.seconds - shape.warm_up - _DRAIN_SECONDS
    return f"""
name: long
broker: {{kafka: {{bootstrap_servers: "127.0.0.1:9"}}}}
load: {{rate: {shape.rate * clients}/s, message_size: 1KiB, producers: {clients}}}
consumers: {{per_subscription: {clients}}}
phases: {{warm_up: {shape.warm_up}s, soak: {soak}s, drain: 30s}}
"""


def _slowness(shape: LongShape, rng: np.random.Generator) -> NDArray[np.float64]:
    found = np.exp(_noise(shape.seconds, 0.1, rng))
    for first, seconds, factor in shape.steps:
        found[first : first + seconds] *= factor
    if shape.drift is not None:
        first, seconds, factor = shape.drift
        found[first : first + seconds] *= np.exp(np.linspace(0.0, np.log(factor), seconds))
    found[list(shape.spikes)] *= SPIKE_RATIO
    return found


def _noise(seconds: int, sd: float, rng: np.random.Generator) -> NDArray[np.float64]:
    """Return AR(1) noise with a correlation of 0.6 and this standard deviation."""
    return np.asarray(lfilter([1.0], [1.0, -0.6], rng.normal(0.0, 0.8 * sd, seconds)))


@dataclass(frozen=True, slots=True)
class _Source:
    columns: tuple[Column, ...]
    values: NDArray[np.float64]  # (seconds, columns)
    histograms: tuple[dict[str, str], ...] = ({},)  # by second, repeated
    instance: str = ""
    events: tuple[tuple[int, Event], ...] = ()


def _client(
    source: str,
    family: str,
    shape: LongShape,
    slow: NDArray[np.float64],
    rng: np.random.Generator,
    *,
    is_small: bool,
) -> _Source:
    n, metric = shape.seconds, f"{family}_latency_seconds"
    own = slow * np.exp(_noise(n, 0.05, rng))
    columns = [Column(metric, (("quantile", name),), "seconds") for name in _QUANTILES]
    values = [own * base for base in (0.002, 0.008, 0.02, 0.05)]
    names = (
        "sent_messages",
        "acked_messages",
        "failed_messages",
        "missed_messages",
        "queue_full_messages",
    )
    if family != "publish":
        names = (
            "received_messages",
            "duplicated_messages",
            "reordered_messages",
            "reread_messages",
            "lag_messages",
        )
    counts = (shape.rate, shape.rate if family == "publish" else 0, 0, 0, 0)
    columns += [Column(name, (), "messages") for name in names]
    values += [np.full(n, float(count)) for count in counts]
    columns.append(Column("process_cpu_ratio", (), "ratio"))
    values.append(0.2 + 0.02 * rng.random(n))
    for broker in range(3):
        leader = ("leader", str(broker))
        columns += [
            Column(metric, (leader, ("quantile", name)), "seconds")
            for name in ("0.5", "0.99", "max")
        ]
        values += [own * base for base in (0.002, 0.008, 0.05)]
    columns.append(Column("callback_delay_seconds", (), "seconds"))
    values.append(0.01 * np.exp(_noise(n, 0.2, rng)))
    if not is_small:
        above = f"{family}_latency_above_messages"
        columns += [
            Column(above, (("threshold", f"{at:g}"),), "messages") for at in THRESHOLDS_SECONDS
        ]
        values += [np.floor(shape.rate * np.exp(-at / (0.003 * own))) for at in THRESHOLDS_SECONDS]
    texts = []
    for _ in range(16):
        histogram = Histogram()
        histogram.record_ns((rng.lognormal(np.log(0.002), 0.5, shape.rate) * 1e9).astype(np.int64))
        texts.append({metric: histogram.encode()})
    return _Source(
        tuple(columns), np.column_stack(values), tuple(texts), source.replace("consume", "produce")
    )


def _probe(at: int, count: int, shape: LongShape, rng: np.random.Generator) -> _Source:
    n, host = shape.seconds, f"broker{at}"
    metrics = (
        ("fsync_latency_seconds", "seconds", 0.002),
        ("disk_write_await_seconds", "seconds", 0.001),
        ("node_disk_io_time_seconds", "seconds", 0.1),
        ("host_cpu_ratio", "ratio", 0.4),
        ("node_disk_written_bytes", "bytes", 2e6),
        ("host_network_bytes", "bytes", 3e6),
    )
    columns = [Column("host_cpu_count", (), "processors")]
    columns += [
        Column(metric, (("device", f"vd{chr(97 + i // len(metrics))}"), ("host", host)), unit)
        for i, (metric, unit, _) in zip(range(count - 1), list(metrics) * count, strict=False)
    ]
    values = [np.full(n, 4.0)]
    values += [
        base * np.exp(_noise(n, 0.1, rng))
        for _, (_, _, base) in zip(range(count - 1), list(metrics) * count, strict=False)
    ]
    events: tuple[tuple[int, Event], ...] = ()
    if at == 0 and shape.deletions:
        seconds = np.linspace(n // 2, n - 60, shape.deletions).astype(int)
        events = tuple((int(k), _deletion(int(k), i)) for i, k in enumerate(seconds))
    return _Source(tuple(columns), np.column_stack(values), events=events)


def _deletion(k: int, number: int) -> Event:
    end_ns = START_WALL_NS + (k + 1) * SECOND_NS
    fields: dict[str, str | int | float] = {
        "topic": "soak-long-1",
        "partition": number % _PARTITIONS,
        "from_offset": number,
        "to_offset": number + 1,
        "bytes": 2**20,
    }
    return Event("retention_deletion", end_ns - SECOND_NS // 2, end_ns - SECOND_NS, fields)


def _write(folder: RunFolder, source: str, shape: LongShape, found: _Source) -> None:
    target = folder.journal / source
    target.mkdir(parents=True)
    named = columns_line(found.columns)
    events: dict[int, list[Event]] = {}
    for k, event in found.events:
        events.setdefault(k, []).append(event)
    gap = shape.gap if source == "probe@broker0" else range(0)
    for number, first in enumerate(range(0, shape.seconds, shape.segment_seconds)):
        last = min(first + shape.segment_seconds, shape.seconds)
        lines = [encode(named)]
        lines += [
            encode(_record(source, named.id, k, found, shape, tuple(events.get(k, ()))))
            for k in range(first, last)
            if k not in gap
        ]
        if last == shape.seconds:
            lines.append(encode(End(1)))
        (target / segment_name(number)).write_bytes(b"".join(lines))


def _record(
    source: str,
    columns_id: str,
    k: int,
    found: _Source,
    shape: LongShape,
    events: tuple[Event, ...],
) -> Record:
    record = Record(
        k=k,
        epoch=1,
        at_ns=START_WALL_NS + (k + 1) * SECOND_NS,
        length_ns=SECOND_NS,
        columns_id=columns_id,
        values=tuple(found.values[k].tolist()),
        histograms=found.histograms[k % len(found.histograms)],
        events=events,
        validity={"reason": ""},
    )
    share, is_sent = shape.rate // _PARTITIONS, k < shape.seconds - _DRAIN_SECONDS
    if not is_sent or not found.instance:
        return record
    spans = dict(_spans(found.instance, k * share, share))
    if source.startswith("consume"):
        return replace(record, received=spans)
    return replace(record, acknowledged=spans, sent_next=dict.fromkeys(spans, (k + 1) * share))


def _spans(
    source: str, first: int, count: int
) -> Iterator[tuple[str, tuple[tuple[int, int, int, int], ...]]]:
    last = first + count - 1
    for partition in range(_PARTITIONS):
        name = stream_name(instance_of(RUN, source), 1, partition)
        yield name, ((first, last, first, last),)
