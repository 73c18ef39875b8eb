"""`make bench-load`: our load daemons against the brokers' own tools and the OpenMessaging Benchmark.

Side by side in one run: same broker, same settings, in turn. Writes `build/bench/load.json`.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from rich.console import Console

from soak.core.errors import NotAvailableError
from soak.lab.brokers import kafka, pulsar
from soak.service.signals import exit_on_sigterm
from tests.bench import fixed_rate, omb
from tests.bench.figures import Figure, Measures, figures, side_by_side, table, write
from tests.bench.fixed_rate import FixedRate
from tests.bench.kafka_full_speed import (
    LONG,
    SETTINGS,
    SHORT,
    FullSpeed,
    Length,
    consumer_specs,
    producer_specs,
)

RESULT = Path("build/bench/load.json")
LEAST_ROUNDS = 5
TABLE_WIDTH = 140
FILLS = "128 KiB batches"  # the log that consumers read

Broker = TypeVar("Broker", kafka.Kafka, pulsar.Pulsar)


@dataclass(frozen=True, slots=True)
class Options:
    rounds: int
    lengths: tuple[Length, ...]  # of rounds at full speed
    fixed_seconds: int
    omb: Path
    folder: Path


def kafka_producer(options: Options) -> list[Figure]:
    found: list[Figure] = []
    with stopping(kafka.start(options.folder / "kafka", {})) as broker:
        for name in SETTINGS:
            for length in options.lengths:
                speed = full_speed(options, broker, "producer", name, length)
                speed.peer_producer(-1)  # a broker that is still being compiled is no baseline
                pairs = side_by_side(options.rounds, speed.our_producer, speed.peer_producer)
                found += figures(producer_specs(name, length), pairs)
    return found


def kafka_consumer(options: Options) -> list[Figure]:
    found: list[Figure] = []
    with stopping(kafka.start(options.folder / "kafka", {})) as broker:
        for length in options.lengths:
            found += _consumer_of(full_speed(options, broker, "consumer", FILLS, length), options)
    return found


def _consumer_of(speed: FullSpeed, options: Options) -> list[Figure]:
    plan, count = speed.filled()
    pairs = side_by_side(
        options.rounds,
        lambda number: speed.our_consumer(plan, count, number),
        lambda number: speed.peer_consumer(plan, count, number),
    )
    return figures(consumer_specs(speed.length), pairs)


@contextmanager
def stopping(broker: Broker) -> Iterator[Broker]:
    try:
        yield broker
    finally:
        broker.stop()


def full_speed(
    options: Options, broker: kafka.Kafka, side: str, settings: str, length: Length
) -> FullSpeed:
    name = f"{side}-{settings}-{length.name}".replace(" ", "-")
    folder = options.folder / name
    return FullSpeed(broker.bootstrap_servers, folder, length, SETTINGS[settings])


def kafka_fixed(options: Options) -> list[Figure]:
    script = omb.runner(options.omb)
    with stopping(kafka.start(options.folder / "kafka-fixed", {})) as broker:
        fixed = FixedRate(
            "kafka",
            {"producer": fixed_rate.KAFKA_SETTINGS},
            fixed_rate.KAFKA_TOPIC,
            broker.addresses,
            fixed_rate.KAFKA_RATE,
            options.fixed_seconds,
            script,
            options.folder / "fixed-kafka",
        )
        return figures(fixed_rate.KAFKA_SPECS, _after_a_first(options.rounds, fixed))


def pulsar_fixed(options: Options) -> list[Figure]:
    script = omb.runner(options.omb)
    with stopping(pulsar.start(options.folder / "pulsar-fixed", {})) as broker:
        fixed = FixedRate(
            "pulsar",
            {},
            {},
            broker.addresses,
            fixed_rate.PULSAR_RATE,
            options.fixed_seconds,
            script,
            options.folder / "fixed-pulsar",
        )
        return figures(fixed_rate.PULSAR_SPECS, _after_a_first(options.rounds, fixed))


PARTS: dict[str, Callable[[Options], list[Figure]]] = {
    "producer": kafka_producer,
    "consumer": kafka_consumer,
    "kafka": kafka_fixed,
    "pulsar": pulsar_fixed,
}


def main() -> None:
    arguments = _parsed()
    console = Console(width=max(Console().width, TABLE_WIDTH))
    found: list[Figure] = []
    exit_on_sigterm()
    work = Path(tempfile.mkdtemp(prefix="soakd-bench-", dir=arguments.work))
    try:
        for name in arguments.part or PARTS:
            options = _options(arguments, work)
            try:
                part = PARTS[name](options)
            except NotAvailableError as reason:
                console.print(f"{name}: skipped: {reason}")
                continue
            found += part
            console.print(table(f"{name}, {options.rounds} rounds", part))
            write(RESULT, found)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    console.print(f"{RESULT}: {len(found)} figures")


def _after_a_first(rounds: int, fixed: FixedRate) -> list[tuple[Measures, Measures]]:
    """Return the rounds after one of ours that is not counted: the broker is warm then."""
    fixed.ours(rounds)
    return side_by_side(rounds, fixed.ours, fixed.peer)


def _options(arguments: argparse.Namespace, work: Path) -> Options:
    if arguments.quick:
        return Options(1, (SHORT,), 10, arguments.omb, work)
    return Options(arguments.rounds, (SHORT, LONG), 60, arguments.omb, work)


def _parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench-load", description=__doc__)
    parser.add_argument("--rounds", type=int, default=LEAST_ROUNDS, help="rounds of each part")
    parser.add_argument("--quick", action="store_true", help="one short round: does it work at all")
    parser.add_argument("--part", action="append", choices=PARTS, help="only this; may come again")
    parser.add_argument("--omb", type=Path, default=Path("../shared/peers/omb"), help="its folder")
    parser.add_argument("--work", type=Path, help="folder for brokers' data; some 10 GB")
    return parser.parse_args()


if __name__ == "__main__":
    main()
