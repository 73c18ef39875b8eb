"""The conductor daemon: decides the phases of a run ahead of time, in `phases.jsonl`."""

from __future__ import annotations

import logging
import shutil
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from soak.conductor import catch_up, ramp
from soak.conductor.catch_up import WindowSchedule
from soak.conductor.free_space import FreeSpace, watched_folders
from soak.conductor.load_records import LOAD_SOURCES, Backlog, LoadIntervals, load_values
from soak.core.clock import Grid, RunClock
from soak.core.model import Column
from soak.core.plan.load import Consumers
from soak.core.plan.phases import Decision, Phases, planned_phases
from soak.core.plan.plan import Plan
from soak.core.plan.rates import Point, rates_between
from soak.core.ports import Clock
from soak.core.units import SECOND_NS, format_size
from soak.runtime.context import PhaseFile, open_page
from soak.runtime.grid import grid_of
from soak.service.files import file_lock, read_small_text, write_atomically
from soak.service.systemd import notifier
from soak.store.journal.reader import last_record, sources
from soak.store.journal.tail import Tail, TailedRecord
from soak.store.run_folder import RunFolder, rate_table, read_plan, read_run

LOG = logging.getLogger(__name__)

AHEAD_SECONDS = 5
"""A decision takes effect at least so much later, so that every daemon has read it in time."""
POLL_SECONDS = 0.5
LAG_BEFORE_SECONDS = 5
"""Records from this long before a catch-up give the lag that it begins with."""
MISFIRE_SECONDS = 60
"""A window that was due while no conductor ran, or the host slept, still begins up to so much later."""


def run(run_dir: Path, stop: threading.Event, clock: Clock, *, leaves_on_stop: bool = False) -> int:
    """Decide until the run is over; `stop` ends the run now, or with `leaves_on_stop` only this process.

    A stop request in the run folder (`soak stop`) ends the run with a drain. Decisions that cannot be written
    are made again until they can.
    """
    folder = RunFolder(run_dir)
    plan, run_ = read_plan(folder), read_run(folder)
    grid, table = grid_of(folder, run_, clock), rate_table(plan, folder)
    page = open_page(folder, plan, run_, "conduct", clock)
    with (
        file_lock(run_dir / "conduct.lock", "the conductor of this run"),
        FreeSpace(watched_folders(plan)) as drives,
    ):
        phase_file = PhaseFile(folder.phases)
        if not folder.phases.exists():
            write_planned(folder, planned_phases(plan.phases))
        conductor = Conductor(folder, plan, grid, table)
        seconds = RunClock.on(grid, clock)
        manager = notifier()
        manager.ready()
        while True:
            is_stopped = stop.wait(POLL_SECONDS)
            manager.alive()
            k = seconds.interval_index()
            phases = phase_file.poll()
            if phases.end_k is not None and k >= phases.end_k:
                return 0
            if is_stopped and leaves_on_stop:
                return 0
            if is_stopped:
                return 0 if _try_append(folder, Decision("end", k + 1, "stopped")) else 1
            free = {str(run_dir): shutil.disk_usage(run_dir).free, **drives.free_bytes()}
            page.show(_samples(run_dir, phases, k, free))
            if phases.end_k is not None:
                continue
            if not _try_append(folder, *conductor.next_decisions(phases, k, free)):
                conductor = Conductor(folder, plan, grid, table)  # makes them again


def _samples(
    run_dir: Path, phases: Phases, k: int, free: Mapping[str, int]
) -> list[tuple[Column, float]]:
    """Return the columns of the metrics page; `free` is in bytes by folder."""
    return [
        (Column("run_second", (), "seconds"), float(k)),
        (Column("run_phase", (("phase", phases.at(k)),), "one"), 1.0),
        *(
            (Column("run_folder_free_bytes", (), "bytes"), float(size))
            if directory == str(run_dir)
            else (
                Column("broker_drive_free_bytes", (("directory", directory),), "bytes"),
                float(size),
            )
            for directory, size in free.items()
        ),
    ]


def write_planned(folder: RunFolder, phases: Phases) -> None:
    """Write the phases that the plan implies, atomically."""
    write_atomically(folder.phases, "".join(one.to_line() for one in phases.decisions))


def append_decisions(folder: RunFolder, *decisions: Decision) -> None:
    """Append decisions atomically: they are on disk before a daemon acts on them."""
    if not decisions:
        return
    text = read_small_text(folder.phases) if folder.phases.exists() else ""
    whole = text[: text.rfind("\n") + 1]  # an incomplete last line is dropped
    write_atomically(folder.phases, whole + "".join(one.to_line() for one in decisions))
    first = decisions[0]
    LOG.info("phase_decided phase=%s from_k=%d reason=%s", first.phase, first.from_k, first.reason)


def _try_append(folder: RunFolder, *decisions: Decision) -> bool:
    """Append decisions; return False where they cannot be written. A full drive may be the reason for one."""
    try:
        append_decisions(folder, *decisions)
    except OSError as error:
        LOG.warning("phase_not_written phase=%s error=%s", decisions[0].phase, error)
        return False
    return True


@dataclass(slots=True)
class Conductor:
    """Makes the decisions of one run; reads the records of the load while a ramp or a catch-up needs them."""

    folder: RunFolder
    plan: Plan
    grid: Grid
    table: tuple[Point, ...] = ()
    _k: int | None = None  # the last second that was decided on
    _windows: WindowSchedule | None = None
    _windows_k: int = -1  # windows due up to this second have begun or were skipped
    _tail: Tail | None = None
    _tail_k: int = -1
    _intervals: LoadIntervals = field(init=False)
    _backlog: Backlog = field(init=False)

    def next_decisions(
        self, phases: Phases, k: int, free: Mapping[str, int]
    ) -> tuple[Decision, ...]:
        """Return the decisions of second k, once; `free` holds the free bytes of the folders to watch."""
        if k == self._k:
            return ()
        self._k = k
        return self._decided(phases, k, free)

    def _decided(self, phases: Phases, k: int, free: Mapping[str, int]) -> tuple[Decision, ...]:
        current, ahead_k = phases.decision_at(k), k + AHEAD_SECONDS
        if current is not None and current.phase == "drain":
            return self._end(phases, k)
        reason = self._reason_to_end(free)
        if reason and phases.at(ahead_k) != "drain":
            return (Decision("drain", max(ahead_k, 0), reason),)
        window = self._due_window(phases, k)
        if window or current is None or phases.decision_at(ahead_k - 1) != current:
            return window  # decisions that take effect sooner are kept
        if current.phase == "ramp":
            for found in self._recorded(current.from_k):
                self._intervals.add(*found)
            return ramp.decide(self.plan, current, k, ahead_k, self._intervals.at)
        if current.phase == "catch-up":
            for source, record, columns in self._recorded(_build_k(phases, k), LAG_BEFORE_SECONDS):
                is_building = phases.is_building(record.k)
                self._backlog.add(source, record, columns, is_building=is_building)
            rate = self._rate(phases, k)
            return catch_up.decide(self.plan, phases, k, ahead_k, self._backlog, rate)
        return ()

    def _reason_to_end(self, free: Mapping[str, int]) -> str:
        """Return why the load must end early, or ""."""
        for directory, size in free.items():
            if size < self.plan.free_space_floor:
                text = format_size(size // 2**20 * 2**20)
                return f"{text} free in {directory}, less than free_space_floor"
        return "stopped" if self.folder.stop_request.exists() else ""

    def _end(self, phases: Phases, k: int) -> tuple[Decision, ...]:
        ahead_k = k + AHEAD_SECONDS
        if is_drained(self.folder, self.plan.consumers, phases, k):
            return (Decision("end", ahead_k, "drained"),)
        if ahead_k >= _drain_k(phases) + self.plan.phases.drain // SECOND_NS:
            return (Decision("end", ahead_k, "drain limit reached"),)
        return ()

    def _due_window(self, phases: Phases, k: int) -> tuple[Decision, ...]:
        """Return the catch-up of the window that is due; a window that cannot begin now is skipped."""
        soak_k, ahead_k = phases.first_k("soak"), k + AHEAD_SECONDS
        if soak_k is None or not self.plan.phases.windows:
            return ()
        if self._windows is None:
            self._windows = WindowSchedule(self.plan.phases.windows, self.grid, soak_k)
            begun = [one.from_k for one in phases.decisions if one.part == "build"]
            self._windows_k = max([self._windows_k, *(one for one in begun if one <= ahead_k)])
        self._windows_k = max(self._windows_k, k - MISFIRE_SECONDS)
        due = self._windows.due(self._windows_k, ahead_k)
        self._windows_k = max(self._windows_k, ahead_k)
        decisions: tuple[Decision, ...] = ()
        for due_k, number in due:
            rate = self._rate(phases, ahead_k)
            reason = catch_up.window_refusal(self.plan, phases, number, ahead_k, rate)
            if decisions or reason:
                reason = reason or "falls into another window"
                LOG.warning("window_skipped window=%d due_k=%d reason=%s", number, due_k, reason)
            else:
                decisions = catch_up.window_decisions(self.plan, phases, number, ahead_k)
        return decisions

    def _rate(self, phases: Phases, k: int) -> float:
        return float(next(rates_between(self.plan.load, phases, self.table, k, k + 1))[1])

    def _recorded(self, from_k: int, before: int = 0) -> Iterator[TailedRecord]:
        """Yield the load's records since the last call; the first call begins `before` seconds early."""
        if self._tail is None or from_k != self._tail_k:
            self._tail = Tail(self.folder.journal, LOAD_SOURCES, from_k - before)
            self._tail_k = from_k
            self._intervals = LoadIntervals(self.plan.consumers)
            self._backlog = Backlog(self.plan.consumers, from_k)
        return self._tail.poll()


def is_drained(folder: RunFolder, planned: Consumers, phases: Phases, k: int) -> bool:
    """Return whether every planned consumer has had a second without messages and lag since the load ended.

    Not while a producer has messages in flight: they may still arrive, and a cluster that does not answer
    looks drained, too.
    """
    if any(_has_in_flight(folder, name, k) for name in sources(folder.journal)):
        return False
    consumers = [
        name
        for name in sources(folder.journal)
        if name.startswith("consume.") and not planned.is_unplanned(name)
    ]
    for source in consumers:
        found = last_record(folder.journal, source)
        if found is None:
            return False
        record, columns = found
        values = load_values(record, columns)
        is_recent = record.k >= max(_drain_k(phases) + 2, k - AHEAD_SECONDS)
        if not is_recent or values["lag"] or values["received"]:
            return False
    return bool(consumers)


def _has_in_flight(folder: RunFolder, source: str, k: int) -> bool:
    """Return whether a producer that still records waits for acknowledgements."""
    found = last_record(folder.journal, source) if source.startswith("produce.") else None
    if found is None:
        return False
    record, columns = found
    return record.k >= k - AHEAD_SECONDS and load_values(record, columns)["in_flight"] > 0


def _drain_k(phases: Phases) -> int:
    begin = phases.first_k("drain")
    return 0 if begin is None else begin


def _build_k(phases: Phases, k: int) -> int:
    """Return the second in which the current catch-up began to build its backlog."""
    return max(one.from_k for one in phases.decisions if one.part == "build" and one.from_k <= k)
