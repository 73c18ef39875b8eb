"""The receiving daemon: write the records that other hosts shipped into the journal of the run.

It says meanwhile which run that is, so that hosts which only probe can join it.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Protocol

from soak.core.errors import BrokerError
from soak.core.model import Column
from soak.core.plan.plan import Ship
from soak.core.ports import Clock
from soak.core.retry import Backoff
from soak.core.units import SECOND_NS
from soak.runtime.context import PhaseFile, open_page
from soak.runtime.grid import grid_of, host_name
from soak.service.files import file_lock, write_atomically
from soak.service.systemd import Notifier, notifier
from soak.shipping.announcements import RunAnnouncer
from soak.shipping.ingest import Ingest
from soak.store.run_announcements import AnnouncementWriter
from soak.store.run_folder import Run, RunFolder, read_plan, read_run
from soak.store.samples_topic import SamplesReader, ShippedLine

LOG = logging.getLogger("soak.shipping.receiver")
BATCH = 1000
POLL_SECONDS = 0.5
KEEP_NS = 5 * SECOND_NS
SILENCE_NS = 60 * SECOND_NS
OPEN_BACKOFF = Backoff(SECOND_NS, 30 * SECOND_NS)


class LineSource(Protocol):
    """Where lines are read; see `SamplesReader`."""

    offsets: dict[int, int]

    def open(self) -> None: ...
    def ends(self, partitions: Iterable[int]) -> dict[int, int]: ...
    def take(self, limit: int, timeout_seconds: float) -> list[ShippedLine]: ...


def run(
    run_dir: Path,
    stop: threading.Event,
    clock: Clock,
    *,
    is_once: bool = False,
    tell: Callable[[int], None] = lambda _: None,
) -> int:
    """Take what comes until `stop`, or with `is_once` what is there now; return the exit code.

    With `is_once`, `tell` gets how many records were taken.

    Raises:
        SoakError: no run folder, or another process receives into it.
        BrokerError: with `is_once`, the cluster does not answer.
    """
    folder = RunFolder(run_dir)
    plan, known = read_plan(folder), read_run(folder)
    if plan.ship is None:
        LOG.error("ship_not_configured plan=%s", folder.plan)
        return 1
    page = open_page(folder, plan, known, "receive", clock)
    manager = notifier()
    with file_lock(folder.path / "receive.lock", "the receiving of this run"):
        intake = Ingest(folder, clock, host_name())
        offsets = OffsetFile(folder.path / "receive.json", plan.ship.topic, clock)
        reader = SamplesReader(plan.ship, known.id, known.start_wall_ns, offsets.kept(), clock)
        manager.ready()
        try:
            if is_once:
                reader.open()
                receive_available(reader, intake, stop, plan.ship.timeout, clock)
            else:
                announcing = _announcing(folder, plan.ship, known, clock)
                for _ in receive_until_stop(reader, intake, stop, manager, clock):
                    announcing.poll()
                    if not intake.is_behind:
                        offsets.keep(reader.offsets)
                    page.show([*intake.samples(), *_skipped(reader)])
                announcing.close()
        finally:
            manager.stopping()
            intake.close()
            reader.close()
        if intake.is_behind:
            LOG.error("lines_not_written: they are read again by the next process")
            return 1
        offsets.keep_now(reader.offsets)
    if is_once:
        tell(intake.records)
    return 0


def _announcing(folder: RunFolder, ship: Ship, run: Run, clock: Clock) -> RunAnnouncer:
    grid, voice = grid_of(folder, run, clock), AnnouncementWriter(ship, clock)
    return RunAnnouncer(voice, run, PhaseFile(folder.phases), grid, clock)


def receive_until_stop(
    reader: LineSource, intake: Ingest, stop: threading.Event, manager: Notifier, clock: Clock
) -> Iterator[None]:
    """Take what comes until told to stop, and yield after each look.

    The client does not say that a topic was deleted, so after a minute of silence it is opened anew.
    """
    is_open = _open_until_stop(reader, stop, manager)
    heard, heard_ns = dict(reader.offsets), clock.mono_ns()
    while is_open and not stop.is_set():
        manager.alive()
        _receive_batch(reader, intake, stop)
        yield
        if reader.offsets != heard:
            heard, heard_ns = dict(reader.offsets), clock.mono_ns()
        elif clock.mono_ns() - heard_ns >= SILENCE_NS:
            is_open = _open_until_stop(reader, stop, manager)
            heard, heard_ns = dict(reader.offsets), clock.mono_ns()


def _receive_batch(reader: LineSource, intake: Ingest, stop: threading.Event) -> None:
    """Write what has come; while the disk takes nothing, lines wait on the topic."""
    if intake.is_behind:
        stop.wait(POLL_SECONDS)
        intake.take(())
    else:
        intake.take(reader.take(BATCH, POLL_SECONDS))


def _skipped(reader: SamplesReader) -> list[tuple[Column, float]]:
    return [(Column("receive_skipped_offsets_total", (), "messages"), float(reader.skipped))]


def _open_until_stop(reader: LineSource, stop: threading.Event, manager: Notifier) -> bool:
    """Try until the cluster answers; False when told to stop before."""
    failures = 0
    while not stop.is_set():
        manager.alive()
        try:
            reader.open()
        except BrokerError as error:
            LOG.warning("receiving_put_off error=%s", error)
            manager.alive()
            failures += 1
            stop.wait(OPEN_BACKOFF.wait_ns(failures) / SECOND_NS)
        else:
            return True
    return False


def receive_available(
    reader: LineSource, intake: Ingest, stop: threading.Event, patience_ns: int, clock: Clock
) -> None:
    """Take what was there at the beginning, or until nothing has come for so long.

    The last offset need not be that of a message (a transaction's end has one, too), and retention may
    be faster than we are.
    """
    ends = reader.ends(reader.offsets)
    limit_ns = clock.mono_ns() + patience_ns
    while not stop.is_set() and any(reader.offsets[at] < end for at, end in ends.items()):
        before = dict(reader.offsets)
        _receive_batch(reader, intake, stop)
        if reader.offsets != before:
            limit_ns = clock.mono_ns() + patience_ns
        elif clock.mono_ns() >= limit_ns:
            LOG.warning("nothing_comes_any_more offsets=%s ends=%s", before, ends)
            return


class OffsetFile:
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
        if not offsets or offsets == self.kept():
            return
        try:
            write_atomically(self._path, json.dumps({self._topic: offsets}) + "\n")
        except OSError as error:  # what came since is read again after a restart, and written once
            LOG.warning("offsets_not_kept error=%s", error)
