"""A process with every kind of fault in it, to be ended: `python -m tests.support.lab.fault_world FOLDER`.

Its brokers do nothing, some of them on an injected drive, behind a relay. It says `ready` when all faults are
active, and ends when it reads a line: with an exception, or in order, as the line says.
"""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from soak.core.clock import SystemClock
from soak.lab.broker_setup import free_ports
from soak.lab.drive import drive
from soak.lab.faults import all_faults
from soak.lab.ports import Target
from soak.lab.relay import Relay
from soak.service import children
from tests.support.lab.sleeping_broker import SleepingBroker

EXCUSED = {
    "client_quota": "a Kafka",
    "compaction": "a bookie",
    "create_partitions": "a Kafka",
    "foreign_flood": "a Kafka",
    "foreign_reads": "a Kafka",
    "gc_pause": "a JVM",
    "leader_move": "a Kafka",
    "retention_limit": "a Kafka",
    "rolling_restart": "a Kafka",
    "segment_roll": "a Kafka",
    "topic_compaction": "a Kafka",
}
"""Faults that touch nothing but a cluster, which is a child of the lab; and what they would need here."""

SETTINGS = {
    "broker_kill": {"node": 5},
    "cold_catch_up": {"node": 2},
    "cpu_hog": {"hogs": 1},
    "disk_full": {"node": 2},
    "drive_delay": {"node": 2},
    "drive_error": {"node": 3},
    "drive_gc": {"node": 2},
    "drive_hang": {"node": 4},
    "noisy_neighbour": {"bytes_per_second": 2**20},
}
"""Each is for a broker where it keeps no other from doing its work; a small drive must not fill up."""

BROKERS = 5
WITH_DRIVE = range(1, 5)


@dataclass
class Node(SleepingBroker):
    """One that can be started again, and knows its cluster."""

    others: tuple[SleepingBroker, ...] = ()
    relay: Relay | None = None

    @property
    def nodes(self) -> tuple[SleepingBroker, ...]:
        return (self, *self.others)

    def restart(self) -> None:
        self.stop()
        self.process = children.spawn(["sleep", "600"], log_path=self.log_path)


def node(folder: Path, number: int, where: Path) -> Node:
    data, log = where / "data" / "soak-x-0", folder / f"broker-{number}.log"
    data.mkdir(parents=True)
    process = children.spawn(["sleep", "600"], log_path=log)
    return Node(process, data.parent, log_path=log, number=number)


def cluster(folder: Path, stack: contextlib.ExitStack, drives: Mapping[int, drive.Drive]) -> Node:
    first, *others = (
        node(folder, number, drives[number].mount_point if number in drives else folder)
        for number in range(1, BROKERS + 1)
    )
    here, there = free_ports(2)
    first.relay, first.others = Relay(folder / "relay", {here: there}), tuple(others)
    first.relay.start()
    stack.callback(first.relay.stop)
    for one in first.nodes:
        stack.callback(one.kill)
    return first


def main() -> None:
    folder = Path(sys.argv[1])
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background ignores it
    with contextlib.ExitStack() as stack:
        drives = {}
        for number in WITH_DRIVE:
            drives[number] = drive.start_drive(folder / f"drive-{number}", capacity_bytes=2**26)
            stack.callback(drives[number].close)
        daemons = {
            name: children.spawn(["sleep", "600"], log_path=folder / "log")
            for name in ("produce.0", "consume.0")
        }
        for daemon in daemons.values():
            stack.callback(children.kill, daemon)
        pids = {name: daemon.pid for name, daemon in daemons.items()}
        broker = cluster(folder, stack, drives)
        for name, fault in all_faults().items():
            if name in EXCUSED or fault.missing_on_machine():
                continue
            environment = fault.environment(folder) if fault.environment else {}
            target = Target(
                broker, lambda _: None, SystemClock(), drives, lambda: pids, environment
            )
            stack.callback(fault.inject(target, fault.config(**SETTINGS.get(name, {}))).close)
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        if sys.stdin.readline().startswith("raise"):
            raise RuntimeError("as it was asked")


if __name__ == "__main__":
    main()
