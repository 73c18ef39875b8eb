"""`make bench-load`: our load daemons against the brokers' own tools and the OpenMessaging Benchmark.

Side by side in one run: same broker, same settings, in turn. Writes `build/bench/load.json`.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from soak.core.errors import NotAvailableError
from soak.lab.brokers import kafka, pulsar
from soak.service.signals import exit_on_sigterm
from tests.bench import fixed_rate, omb
from tests.bench.figures import Figure, Measures, figures, side_by_side, table, write
from tests.bench.fixed_rate import FixedRate
from tests.bench.kafka_full_speed import CONSUMER_SPECS, PRODUCER_SPECS, FullSpeed

RESULT = Path("build/bench/load.json")
LEAST_ROUNDS = 5
TABLE_WIDTH = 140


@dataclass(frozen=True, slots=True)
class Options:
    rounds: int
    load_seconds: int  # of a round at full speed
    peer_count: int  # messages of the peer in such a round: about as many
    fixed_seconds: int
    omb: Path
    folder: Path


def kafka_full_speed(options: Options, *, with_producer: bool) -> list[Figure]:
    broker = kafka.start(options.folder / "kafka", {})
    try:
        speed = FullSpeed(
            broker.bootstrap_servers,
            options.folder / "full-speed",
            options.load_seconds,
            options.peer_count,
        )
        speed.peer_producer(-1)  # a broker that is still being compiled is no baseline
        if with_producer:
            pairs = side_by_side(options.rounds, speed.our_producer, speed.peer_producer)
            return figures(PRODUCER_SPECS, pairs)
        plan, count = speed.filled()
        pairs = side_by_side(
            options.rounds,
            lambda number: speed.our_consumer(plan, count, number),
            lambda number: speed.peer_consumer(plan, count, number),
        )
        return figures(CONSUMER_SPECS, pairs)
    finally:
        broker.stop()


def kafka_producer(options: Options) -> list[Figure]:
    return kafka_full_speed(options, with_producer=True)


def kafka_consumer(options: Options) -> list[Figure]:
    return kafka_full_speed(options, with_producer=False)


def kafka_fixed(options: Options) -> list[Figure]:
    script = omb.runner(options.omb)
    broker = kafka.start(options.folder / "kafka-fixed", {})
    try:
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
    finally:
        broker.stop()


def pulsar_fixed(options: Options) -> list[Figure]:
    script = omb.runner(options.omb)
    broker = pulsar.start(options.folder / "pulsar-fixed", {})
    try:
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
    finally:
        broker.stop()


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
        return Options(1, 15, 1_000_000, 10, arguments.omb, work)
    return Options(arguments.rounds, 20, 3_000_000, 60, arguments.omb, work)


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
