"""What the topic source costs, alone and with the detectors of a fleet, on a real Kafka with 8 partitions.

Prints rows a second of CPU for decoding and for a range read from the broker, then cores, seconds a batch and
the age of the newest record of a query that is fed in real time. CPU and memory are those of this process, of
Spark's JVM and of its Python workers; broker and feeder are left out.

    python -m tests.bench.topic_source --runs 500 --series 60 --seconds 60 [--detect] [--rest]
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import psutil
from confluent_kafka import Producer

from detectors import outage
from detectors.level_shift import Config
from soak.core.clock import SystemClock
from soak.core.journal_format import columns_line, encode
from soak.core.model import Column, Record
from soak.core.plan.plan import Ship
from soak.core.units import SECOND_NS
from soak.lab.brokers import kafka
from soak.store.samples_topic import SamplesClients, headers_of
from spark.cluster.session import build_session
from spark.sources.journals import batches as arrow_batches
from spark.sources.samples_topic import NAME, SamplesSource, TopicOptions
from spark.sources.schema import columns_text
from spark.sources.topic_log import KafkaTopicLog
from spark.sources.topic_offsets import Range
from spark.sources.topic_rows import KnownColumns, TopicRows
from spark.streaming.fleet import observed
from spark.streaming.fleet_state import USED, FleetProcessor, detect_all
from spark.streaming.stored_panel import LivePanels
from tests.support.spark.fake_topic import START_NS, FakeTopic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TOPIC = "bench"
ROWS = 20_000
_WARM_SECONDS = 30


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def columns_of(series: int) -> tuple[Column, ...]:
    names = (f"metric_{at}_seconds" for at in range(series))
    return tuple(Column(name, (("leader", "10.0.0.1:9092"),), "seconds") for name in names)


def lines_of(series: int, k: int, count: int, dice: random.Random) -> list[bytes]:
    name = columns_line(columns_of(series)).id
    at_ns = time.time_ns()
    return [
        encode(
            Record(k, 1, at_ns, SECOND_NS, name, tuple(dice.gauss(1, 0.1) for _ in range(series)))
        ).rstrip(b"\n")
        for _ in range(count)
    ]


def feed(servers: str, runs: int, series: int, seconds: float, rate: float) -> None:
    """Send a record of each run a second, `rate` times as fast; the runs of a second share its values."""
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 50, "compression.type": "lz4"})
    head = encode(columns_line(columns_of(series))).rstrip(b"\n")
    dice, begin, k = random.Random(1), time.monotonic(), 0
    headers: list[list[tuple[str, str | bytes | None]]] = [
        list(headers_of(f"run-{at}", START_NS).items()) for at in range(runs)
    ]
    while k < seconds:
        (line,) = lines_of(series, k, 1, dice)
        for at in range(runs):
            if k % 60 == 0:
                producer.produce(TOPIC, head, f"produce.0@host-{at}", headers=headers[at])
            producer.produce(TOPIC, line, f"produce.0@host-{at}", headers=headers[at])
            if at % 100 == 0:
                producer.poll(0)
        k += 1
        time.sleep(max(0.0, begin + k / rate - time.monotonic()))
    producer.flush(60)


def decoding(series: int) -> float:
    topic = FakeTopic()
    topic.write(encode(columns_line(columns_of(series))).rstrip(b"\n"))
    for line in lines_of(series, 0, ROWS, random.Random(1)):
        topic.write(line)
    began = time.process_time()
    for _ in arrow_batches(TopicRows("t", topic, KnownColumns()).of(Range(0, 0, topic.end[0]))):
        pass
    return ROWS / (time.process_time() - began)


def reading(ship: Ship) -> tuple[float, float]:
    """Return rows a second of CPU and of the clock, of all partitions one after the other."""
    log = KafkaTopicLog(ship, SystemClock())
    ends = log.ends()
    assert ends is not None
    count, cpu, began = 0, time.process_time(), time.monotonic()
    for partition, end in ends.ends.items():
        rows = TopicRows(ship.topic, log, KnownColumns())
        count += sum(one.num_rows for one in arrow_batches(rows.of(Range(partition, 0, end))))
    return count / (time.process_time() - cpu), count / (time.monotonic() - began)


class _State:
    """A value or a map of the state, in memory, of the key in hand."""

    def __init__(self, keys: list[Any]) -> None:
        self._keys = keys
        self._kept: dict[Any, Any] = {}

    def get(self) -> Any:
        return self._kept.get(self._keys[0])

    def update(self, value: Any) -> None:
        self._kept[self._keys[0]] = value

    def getValue(self, name: Any) -> Any:  # noqa: N802  # Spark's name
        return self._kept.get((self._keys[0], name))

    def updateValue(self, name: Any, value: Any) -> None:  # noqa: N802  # Spark's name
        self._kept[self._keys[0], name] = value

    def removeKey(self, name: Any) -> None:  # noqa: N802  # Spark's name
        del self._kept[self._keys[0], name]


class _Handle:
    """What a processor asks Spark for, without Spark."""

    def __init__(self) -> None:
        self.keys: list[Any] = [None]  # the one in hand
        self._states: dict[str, _State] = {}

    def getValueState(self, name: str, *_: Any) -> _State:  # noqa: N802  # Spark's name
        return self._states.setdefault(name, _State(self.keys))

    getMapState = getValueState  # noqa: N815  # Spark's name

    def registerTimer(self, at_ms: int) -> None:  # noqa: N802  # Spark's name
        pass

    def getCurrentProcessingTimeInMs(self) -> int:  # noqa: N802  # Spark's name
        return 0


def detecting(series: int, workers: int, runs: int = 20, batches: int = 60, rows: int = 5) -> float:
    """Return the CPU seconds a row of a fleet's detector in one process; the first half is not counted.

    `workers`: so many take turns at random, by run and batch, each with the panels that it had last.
    """
    text, dice = columns_text(columns_of(series)), random.Random(1)
    handle, live = _Handle(), [LivePanels() for _ in range(workers)]
    processors = [FleetProcessor(Config(), outage.Config(), 3600, one) for one in live]
    for one in processors:
        one.init(handle)  # type: ignore[arg-type]  # what it asks for is there
    used = 0.0
    for batch in range(batches):
        values = [np.array([dice.gauss(1, 0.1) for _ in range(series)]) for _ in range(rows)]
        for run in range(runs):
            handle.keys[0] = key = (f"run-{run}", 0)
            given = [
                (*key, "produce.0@host", 1, batch * rows + at, "id", text, one, True, "", None)
                for at, one in enumerate(values)
            ]
            began = time.process_time()
            frame = pd.DataFrame(given, columns=[*USED])  # as Spark's worker does
            for _ in dice.choice(processors).handleInputRows(key, iter([frame]), handle):  # type: ignore[arg-type]  # as above
                pass
            used += time.process_time() - began if 2 * batch >= batches else 0.0
    return used / (runs * rows * (batches - batches // 2))


class Meter:
    """CPU, as last seen, and memory of a tree of processes; `left_out` are trees that do not count."""

    def __init__(self, left_out: list[int]) -> None:
        self._left_out = left_out
        self._seen: dict[int, tuple[str, float]] = {}

    def note(self) -> None:
        for one in [psutil.Process(), *self._children(psutil.Process())]:
            with suppress(psutil.Error):
                self._seen[one.pid] = (one.name(), sum(one.cpu_times()[:2]))

    def total(self) -> dict[str, float]:
        self.note()
        found: dict[str, float] = {}
        for name, seconds in self._seen.values():
            found[name] = found.get(name, 0.0) + seconds
        return found

    def pss_mib(self) -> float:
        found = 0.0
        for one in [psutil.Process(), *self._children(psutil.Process())]:
            with suppress(psutil.Error):
                found += one.memory_full_info().pss / 2**20
        return found

    def _children(self, process: psutil.Process) -> Iterator[psutil.Process]:
        with suppress(psutil.Error):
            for one in process.children():
                if one.pid not in self._left_out:
                    yield one
                    yield from self._children(one)


def streaming(
    session: SparkSession,
    rows: DataFrame,
    folder: Path,
    trigger: float,
    seconds: float,
    meter: Meter,
) -> None:
    """Run the query for so long after it is warm, and print what it cost."""
    ages: list[float] = []
    durations: list[float] = []
    counts: list[int] = []

    def on_batch(frame: DataFrame, _: int) -> None:
        frame.collect()

    query = (
        rows.writeStream.option("checkpointLocation", str(folder / f"checkpoint-{time.time_ns()}"))
        .trigger(processingTime=f"{int(trigger * 1000)} milliseconds")
        .foreachBatch(on_batch)
        .start()
    )
    _follow(query, _WARM_SECONDS, meter, lambda _: None)
    before, began = meter.total(), time.monotonic()

    def note(last: Any) -> None:
        durations.append(last.durationMs.get("triggerExecution", 0) / 1000)
        counts.append(last.numInputRows)
        seen = last.observedMetrics.get("seen")
        if seen is not None and seen["at_ns"] is not None:
            ages.append(time.time() - seen["at_ns"] / 1e9)

    _follow(query, seconds, meter, note)
    after, spent = meter.total(), time.monotonic() - began
    memory_mib = meter.pss_mib()
    query.stop()
    cores = {name: (after[name] - before.get(name, 0.0)) / spent for name in after}
    _say(
        json.dumps(
            {
                "cores": round(sum(cores.values()), 3),
                "by_process": {name: round(one, 3) for name, one in cores.items() if one > 0.002},
                "batches": len(durations),
                "batch_seconds": [round(one, 2) for one in sorted(durations)],
                "pss_mib": round(memory_mib),
                "rows": sum(counts),
                "newest_record_age_seconds": [round(one, 1) for one in sorted(ages)],
            }
        )
    )
    session.catalog.clearCache()


def _follow(query: Any, seconds: float, meter: Meter, note: Callable[[Any], None]) -> None:
    end, seen = time.monotonic() + seconds, ""
    while time.monotonic() < end:
        query.awaitTermination(0.25)
        meter.note()
        last = query.lastProgress
        if last is not None and last.timestamp != seen:
            seen = last.timestamp
            note(last)


@contextmanager
def fed(servers: str, arguments: argparse.Namespace, rate: float, seconds: float) -> Iterator[int]:
    command = [sys.executable, "-m", "tests.bench.topic_source", "--feed", servers]
    command += ["--runs", str(arguments.runs), "--series", str(arguments.series)]
    command += ["--seconds", str(seconds), "--rate", str(rate)]
    process = subprocess.Popen(command)
    try:
        yield process.pid
    finally:
        process.kill()
        process.wait()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=500)
    parser.add_argument("--series", type=int, default=60)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--trigger", type=float, default=5)
    parser.add_argument("--partitions", type=int, default=1, help="of the state")
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--detect", action="store_true", help="with the detectors of a fleet")
    parser.add_argument("--rest", action="store_true", help="also without any records")
    parser.add_argument("--feed", default="", help=argparse.SUPPRESS)
    parser.add_argument("--rate", type=float, default=1, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.feed:
        feed(arguments.feed, arguments.runs, arguments.series, arguments.seconds, arguments.rate)
        return 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _say(f"decoding: {decoding(arguments.series):,.0f} rows a second of CPU")
        for workers in (1, 2):
            cpu = detecting(arguments.series, workers)
            _say(f"detecting, {workers} workers: {cpu * 1e6:,.0f} us of CPU a row")
        broker = kafka.start(folder / "kafka", {})
        try:
            _measure(arguments, folder, broker.bootstrap_servers)
        finally:
            broker.kill()
    return 0


def _measure(arguments: argparse.Namespace, folder: Path, servers: str) -> None:
    left_out = [one.pid for one in psutil.Process().children()]
    ship = Ship(bootstrap_servers=servers, topic=TOPIC, timeout=10 * SECOND_NS)
    SamplesClients(ship, "bench", SystemClock()).ensure_topic()
    feed(servers, arguments.runs, arguments.series, 60, 1000)
    cpu, clock = reading(ship)
    _say(f"reading from the broker: {cpu:,.0f} rows a second of CPU, {clock:,.0f} by the clock")
    session = build_session("bench", temporary=folder / "spark", cores=arguments.cores)
    session.conf.set("spark.sql.shuffle.partitions", str(arguments.partitions))
    session.dataSource.register(SamplesSource)
    now_ms = time.time_ns() // 10**6
    options = TopicOptions(ship=ship, since_ms=now_ms, has_announcements=arguments.detect)
    rows = observed(session.readStream.format(NAME).options(**options.to_options()).load())
    found = rows.selectExpr("run", "values").where("values[0] < 0")  # none, and all are looked at
    if arguments.detect:
        found = detect_all(rows, Config(), outage.Config(), 3600)
    if arguments.rest:
        _say("at rest:")
        streaming(session, found, folder, arguments.trigger, arguments.seconds, Meter(left_out))
    with fed(servers, arguments, 1, arguments.seconds + 2 * _WARM_SECONDS + 60) as feeder:
        _say("fed in real time:")
        streaming(
            session,
            found,
            folder,
            arguments.trigger,
            arguments.seconds,
            Meter([*left_out, feeder]),
        )
    session.stop()


if __name__ == "__main__":
    sys.exit(main())
