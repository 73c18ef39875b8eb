"""The receiving daemon: write the records that other hosts shipped into the journal of the run.

Meanwhile it announces the run, so that probe hosts can join it.
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
from soak.core.plan.plan import Plan, Ship
from soak.core.plan.text import detection_text
from soak.core.ports import Clock
from soak.core.retry import Backoff
from soak.core.units import SECOND_NS
from soak.runtime.context import PhaseFile, open_page
from soak.runtime.grid import grid_of, host_name
from soak.service.files import file_lock, raise_descriptor_limit, read_json, write_atomically
from soak.service.systemd import Notifier, notifier
from soak.shipping.announcements import RunAnnouncer
from soak.shipping.ingest import Ingest
from soak.store.run_announcements import AnnouncementWriter, reason_to_refuse
from soak.store.run_folder import Run, RunFolder, read_plan, read_run
from soak.store.samples_topic import SamplesReader, ShippedLine

LOG = logging.getLogger(__name__)
MAX_LINES = 1000  # of one poll
POLL_SECONDS = 0.5
STORE_PERIOD_NS = 5 * SECOND_NS
REOPEN_NS = 60 * SECOND_NS
"""A silent topic is opened again: the client does not report that a topic was deleted."""
OPEN_BACKOFF = Backoff(max_ns=30 * SECOND_NS)


class LineSource(Protocol):
    """Where lines are read; see `SamplesReader`."""

    offsets: dict[int, int]

    def open(self) -> None: ...
    def ends(self, partitions: Iterable[int]) -> dict[int, int]: ...
    def poll(self, limit: int, timeout_seconds: float) -> list[ShippedLine]: ...


def run(
    run_dir: Path,
    stop: threading.Event,
    clock: Clock,
    *,
    is_once: bool = False,
    report: Callable[[int], None] = lambda _: None,  # with `is_once`, the number of records
) -> int:
    """Receive until `stop`, or with `is_once` what the topic holds now; return the exit code.

    Raises:
        SoakError: this is no run folder, or another process receives into it.
        BrokerError: with `is_once`, the cluster does not answer.
    """
    folder = RunFolder(run_dir)
    plan, known = read_plan(folder), read_run(folder)
    if plan.ship is None:
        LOG.error("ship_not_configured plan=%s", folder.plan)
        return 1
    page = open_page(folder, plan, known, "receive", clock)
    manager = notifier()
    raise_descriptor_limit()
    with file_lock(folder.path / "receive.lock", "the receiving of this run"):
        ingest = Ingest(folder, clock, host_name(), plan)
        stored = OffsetFile(folder.path / "receive.json", plan.ship.topic, clock)
        reader = SamplesReader(
            plan.ship,
            known.id,
            known.start_wall_ns,
            stored.read(),
            clock,
            plan.name,
            reason_to_refuse,
        )
        manager.ready()
        try:
            if is_once:
                reader.open()
                receive_available(reader, ingest, stop, plan.ship.timeout, clock)
            else:
                announcer = _announcer(folder, plan, plan.ship, known, clock)
                for _ in receive_until_stop(reader, ingest, stop, manager, clock):
                    announcer.poll()
                    if not ingest.is_behind:
                        stored.update(reader.offsets)
                    page.show([*ingest.samples(), *_skipped(reader)])
                announcer.close()
        finally:
            manager.stopping()
            try:
                ingest.close()
            finally:
                reader.close()
        if ingest.is_behind:
            LOG.error("lines_not_written: the next process reads them again")
            return 1
        stored.write(reader.offsets)
    if is_once:
        report(ingest.records)
    return 0


def _announcer(folder: RunFolder, plan: Plan, ship: Ship, run: Run, clock: Clock) -> RunAnnouncer:
    grid, target = grid_of(folder, run, clock), AnnouncementWriter(ship, clock)
    return RunAnnouncer(target, run, PhaseFile(folder.phases), grid, clock, detection_text(plan))


def receive_until_stop(
    reader: LineSource, ingest: Ingest, stop: threading.Event, manager: Notifier, clock: Clock
) -> Iterator[None]:
    """Write the lines that arrive until `stop`, and yield after each poll."""
    is_open = _open(reader, stop, manager)
    heard, heard_ns = dict(reader.offsets), clock.mono_ns()
    while is_open and not stop.is_set():
        manager.alive()
        _receive(reader, ingest, stop)
        yield
        if reader.offsets != heard:
            heard, heard_ns = dict(reader.offsets), clock.mono_ns()
        elif clock.mono_ns() - heard_ns >= REOPEN_NS:
            is_open = _open(reader, stop, manager)
            heard, heard_ns = dict(reader.offsets), clock.mono_ns()


def _receive(reader: LineSource, ingest: Ingest, stop: threading.Event) -> None:
    """Write the lines of one poll; while the disk is full, further lines stay on the topic."""
    if ingest.is_behind:
        stop.wait(POLL_SECONDS)
        ingest.write(())
    else:
        ingest.write(reader.poll(MAX_LINES, POLL_SECONDS))


def _skipped(reader: SamplesReader) -> list[tuple[Column, float]]:
    return [(Column("receive_skipped_offsets_total", (), "messages"), float(reader.skipped))]


def _open(reader: LineSource, stop: threading.Event, manager: Notifier) -> bool:
    """Try until the cluster answers; return False when `stop` comes first."""
    failures = 0
    while not stop.is_set():
        manager.alive()
        try:
            reader.open()
        except BrokerError as error:
            LOG.warning("receiving_delayed error=%s", error)
            manager.alive()
            failures += 1
            stop.wait(OPEN_BACKOFF.wait_ns(failures) / SECOND_NS)
        else:
            return True
    return False


def receive_available(
    reader: LineSource, ingest: Ingest, stop: threading.Event, patience_ns: int, clock: Clock
) -> None:
    """Write the lines that the topic holds now; give up when none has come for `patience_ns`.

    The last offset need not be that of a message: it may end a transaction, and retention may delete faster
    than this process reads.
    """
    ends = reader.ends(reader.offsets)
    limit_ns = clock.mono_ns() + patience_ns
    while not stop.is_set() and any(reader.offsets[at] < end for at, end in ends.items()):
        before = dict(reader.offsets)
        _receive(reader, ingest, stop)
        if reader.offsets != before:
            limit_ns = clock.mono_ns() + patience_ns
        elif clock.mono_ns() >= limit_ns:
            LOG.warning("no_more_lines offsets=%s ends=%s", before, ends)
            return


class OffsetFile:
    """Stores from which offsets the next process reads: all lines before them are on this drive."""

    def __init__(self, path: Path, topic: str, clock: Clock) -> None:
        self._path = path
        self._topic = topic
        self._clock = clock
        self._noted: dict[int, int] = {}
        self._stored_ns = clock.mono_ns()

    def read(self) -> dict[int, int]:
        """Return the stored offsets by partition; none where the file is missing or damaged."""
        try:
            found = read_json(self._path)
            return {int(at): int(offset) for at, offset in found[self._topic].items()}
        except (OSError, ValueError, TypeError, LookupError, AttributeError):
            return {}

    def update(self, offsets: dict[int, int]) -> None:
        """Every few seconds store the offsets of the time before: by now their lines are on the drive."""
        if self._clock.mono_ns() - self._stored_ns >= STORE_PERIOD_NS:
            self.write(self._noted)
            self._noted = dict(offsets)
            self._stored_ns = self._clock.mono_ns()

    def write(self, offsets: dict[int, int]) -> None:
        """Store these offsets at once: the journals are closed."""
        if not offsets or offsets == self.read():
            return
        try:
            write_atomically(self._path, json.dumps({self._topic: offsets}) + "\n")
        except OSError as error:  # the next process reads the newer lines again and skips them
            LOG.warning("offsets_not_stored error=%s", error)
