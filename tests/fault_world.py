"""A process with every kind of fault in it, to be ended somehow: `python -m tests.fault_world FOLDER`.

Its broker does nothing, on an injected drive. It says `ready` when all faults are active, and ends when it
reads a line: with an exception, or in order, as the line says.
"""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

from soak.core import plugins
from soak.core.clock import SystemClock
from soak.lab import drive
from soak.lab.ports import Target
from soak.lab.throttle import Throttle
from soak.service import children
from tests.sleeping_broker import asleep

FAULTS = ("noisy_neighbour", "disk_full", "cpu_hog", "consumer_pause", "broker_pause", "drive_hang")


def main() -> None:
    folder = Path(sys.argv[1])
    with contextlib.ExitStack() as stack:
        made = drive.start(folder / "drive", capacity_bytes=2**26)
        stack.callback(made.close)
        broker = asleep(made.mount_point)
        broker.log_path = folder / "broker.log"
        stack.callback(broker.kill)
        daemon = children.spawn(["sleep", "600"], log_path=folder / "log")
        stack.callback(children.kill, daemon)
        target = Target(
            broker,
            lambda _: None,
            SystemClock(),
            {1: made},
            lambda: {"consume.0": daemon.pid},
        )
        names = FAULTS if Throttle(made.device, 5).lack else ("fsync_throttle", *FAULTS)
        for name in names:
            fault = plugins.load("soak.lab.faults", name)
            stack.callback(fault.inject(target, fault.Config()).lift)
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        if sys.stdin.readline().startswith("raise"):
            raise RuntimeError("as it was told")


if __name__ == "__main__":
    main()
