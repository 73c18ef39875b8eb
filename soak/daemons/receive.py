"""The receiving daemon: writes what other hosts shipped of this run into its journal, each record once."""

from __future__ import annotations

import json
import logging
import threading
from pathlib import Path

from soak.core.errors import BrokerError
from soak.core.ports import Clock
from soak.core.units import SECOND_NS
from soak.daemons.context import host_name, open_page
from soak.daemons.intake import Intake
from soak.service.notify import notifier
from soak.store.run_folder import (
    RunFolder,
    exclusive,
    read_plan,
    read_run,
    write_atomically,
)
from soak.store.samples_topic import SamplesReader

LOG = logging.getLogger("soak.daemons.receive")
BATCH = 1000
POLL_SECONDS = 0.5
KEEP_NS = 5 * SECOND_NS
FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS = 1.0, 30.0


def run(run_dir: Path, stop: threading.Event, clock: Clock, *, is_once: bool = False) -> int:
    """Take what comes until `stop`, or with `is_once` what is there now; return the exit code.

    Raises:
        SoakError: no run folder, or another process receives into it.
        BrokerError: with `is_once`, the cluster does not answer.
    """
    folder = RunFolder(run_dir)
    plan, known = read_plan(folder), read_run(folder)
    if plan.ship is None:
        LOG.error("nothing_to_receive plan=%s", folder.plan)
        return 1
    page = open_page(folder, plan, known, "receive", clock)
    manager = notifier()
    with exclusive(folder.path / "receive.lock", "the receiving of this run"):
        intake = Intake(folder, clock, host_name())
        offsets = Offsets(folder.path / "receive.json", plan.ship.topic, clock)
        reader = SamplesReader(plan.ship, known.id, known.start_wall_ns, offsets.kept(), clock)
        manager.ready()
        try:
            if is_once:
                reader.open()
                _take_all(reader, intake, stop)
            elif _opened(reader, stop):
                while not stop.is_set():
                    manager.alive()
                    intake.take(reader.take(BATCH, POLL_SECONDS))
                    offsets.keep(reader.offsets)
                    page.show(intake.samples())
        finally:
            manager.stopping()
            intake.close()
            reader.close()
        offsets.keep_now(reader.offsets)
    return 0


def _opened(reader: SamplesReader, stop: threading.Event) -> bool:
    """Try until the cluster answers; False when told to stop before."""
    wait_seconds = FIRST_WAIT_SECONDS
    while not stop.is_set():
        try:
            reader.open()
        except BrokerError as error:
            LOG.warning("receiving_put_off error=%s", error)
            stop.wait(wait_seconds)
            wait_seconds = min(2 * wait_seconds, LONGEST_WAIT_SECONDS)
        else:
            return True
    return False


def _take_all(reader: SamplesReader, intake: Intake, stop: threading.Event) -> None:
    ends = reader.ends(reader.offsets)
    while not stop.is_set() and any(reader.offsets[at] < end for at, end in ends.items()):
        intake.take(reader.take(BATCH, POLL_SECONDS))


class Offsets:
    """Keeps from where on the topic is to be read: what was kept lies before what is on this disk."""

    def __init__(self, path: Path, topic: str, clock: Clock) -> None:
        self._path = path
        self._topic = topic
        self._clock = clock
        self._noted: dict[int, int] = {}
        self._kept_ns = clock.mono_ns()

    def kept(self) -> dict[int, int]:
        """Return the offsets of an earlier process, by partition; none when there are none to be read."""
        try:
            found = json.loads(self._path.read_text())
            return {int(at): int(offset) for at, offset in found[self._topic].items()}
        except (OSError, ValueError, TypeError, LookupError, AttributeError):
            return {}

    def keep(self, offsets: dict[int, int]) -> None:
        """Every few seconds keep what was noted the last time: by now the drive has those lines."""
        if self._clock.mono_ns() - self._kept_ns >= KEEP_NS:
            self._write(self._noted)
            self._noted = dict(offsets)
            self._kept_ns = self._clock.mono_ns()

    def keep_now(self, offsets: dict[int, int]) -> None:
        """Keep the last ones, when the journals are closed."""
        self._write(dict(offsets))

    def _write(self, offsets: dict[int, int]) -> None:
        if offsets and offsets != self.kept():
            write_atomically(self._path, json.dumps({self._topic: offsets}) + "\n")
