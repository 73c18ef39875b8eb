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
from soak.core.phases import Decision, Phases, planned_phases
from soak.core.plan.plan import Plan
from soak.core.plan.rates import Point, rates_between
from soak.core.ports import Clock
from soak.core.units import SECOND_NS, format_size
from soak.load.producer.pacing import rate_table
from soak.runtime.context import PhaseFile, grid_of, open_page
from soak.service.files import file_lock, write_atomically
from soak.service.systemd import notifier
from soak.store.journal.reader import last_record, sources
from soak.store.journal.tail import Tail, TailedRecord
from soak.store.run_folder import RunFolder, read_plan, read_run

LOG = logging.getLogger("soak.conductor.loop")

AHEAD_SECONDS = 5
"""A decision lies at least this far ahead, so that every daemon has read it in time."""
POLL_SECONDS = 0.5
LAG_BEFORE_SECONDS = 5
"""So long before a catch-up begins, consumers say what an earlier one has left them to read."""
MISFIRE_SECONDS = 60
"""A window that was due while there was no conductor, or while it slept, begins up to so much later."""


def run(run_dir: Path, stop: threading.Event, clock: Clock, *, leaves_on_stop: bool = False) -> int:
    """Decide until the run is over; `stop` ends it now, or leaves it to the next conductor.

    A stop request in the run folder (`soak stop`) has what was sent received first. What cannot be
    written is decided again until it can.
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
            k = seconds.k()
            phases = phase_file.poll()
            if phases.end_k is not None and k >= phases.end_k:
                return 0
            if is_stopped and leaves_on_stop:
                return 0
            if is_stopped:
                return 0 if _try_append(folder, Decision("end", k + 1, "stopped")) else 1
            own, brokers = shutil.disk_usage(run_dir).free, drives.seen()
            free = {str(run_dir): own, **brokers}
            page.show(
                [
                    (Column("run_second", (), "seconds"), float(k)),
                    (Column("run_phase", (("phase", phases.at(k)),), "one"), 1.0),
                    (Column("run_folder_free_bytes", (), "bytes"), float(own)),
                    *(_free_sample(at, left) for at, left in brokers.items()),
                ]
            )
            if phases.end_k is not None:
                continue
            if not _try_append(folder, *conductor.next_decisions(phases, k, free)):
                conductor = Conductor(folder, plan, grid, table)  # decides on this anew


def _free_sample(directory: str, left: int) -> tuple[Column, float]:
    return Column("broker_drive_free_bytes", (("directory", directory),), "bytes"), float(left)


def write_planned(folder: RunFolder, phases: Phases) -> None:
    """Write what is known from the start; whole or not at all."""
    write_atomically(folder.phases, "".join(one.to_line() for one in phases.decisions))


def append_decisions(folder: RunFolder, *decisions: Decision) -> None:
    """Add decisions, on disk before anyone acts on them; daemons see the old file or the new one."""
    if not decisions:
        return
    text = folder.phases.read_text() if folder.phases.exists() else ""
    whole = text[: text.rfind("\n") + 1]  # a torn line is dropped
    write_atomically(folder.phases, whole + "".join(one.to_line() for one in decisions))
    first = decisions[0]
    LOG.info("decided phase=%s from_k=%d reason=%s", first.phase, first.from_k, first.reason)


def _try_append(folder: RunFolder, *decisions: Decision) -> bool:
    """Add decisions; False where the drive takes nothing, which may be why the load is to end."""
    try:
        append_decisions(folder, *decisions)
    except OSError as error:
        LOG.warning("not_decided phase=%s error=%s", decisions[0].phase, error)
        return False
    return True


@dataclass(slots=True)
class Conductor:
    """Follows the load daemons' records while a ramp or a catch-up depends on them."""

    folder: RunFolder
    plan: Plan
    grid: Grid
    table: tuple[Point, ...] = ()
    _k: int | None = None  # the second that was decided on last
    _windows: WindowSchedule | None = None
    _looked_k: int = -1  # windows due up to this second were begun or passed over
    _tail: Tail | None = None
    _tail_k: int = -1
    _seconds: LoadIntervals = field(init=False)
    _backlog: Backlog = field(init=False)

    def next_decisions(
        self, phases: Phases, k: int, free: Mapping[str, int]
    ) -> tuple[Decision, ...]:
        """Return what is decided in second k, once, with so many bytes `free` in each folder that matters."""
        if k == self._k:
            return ()
        self._k = k
        return self._decided(phases, k, free)

    def _decided(self, phases: Phases, k: int, free: Mapping[str, int]) -> tuple[Decision, ...]:
        current, ahead_k = phases.decision_at(k), k + AHEAD_SECONDS
        if current is not None and current.phase == "drain":
            return self._end(phases, k)
        why = self._why_early(free)
        if why and phases.at(ahead_k) != "drain":
            return (Decision("drain", max(ahead_k, 0), why),)
        begun = self._due_window(phases, k)
        if begun or current is None or phases.decision_at(ahead_k - 1) != current:
            return begun  # what takes effect sooner stands
        if current.phase == "ramp":
            for found in self._recorded(current.from_k):
                self._seconds.add(*found)
            return ramp.decide(self.plan, current, k, ahead_k, self._seconds.at)
        if current.phase == "catch-up":
            for source, record, columns in self._recorded(_build_k(phases, k), LAG_BEFORE_SECONDS):
                is_building = phases.is_building(record.k)
                self._backlog.add(source, record, columns, is_building=is_building)
            rate = self._rate(phases, k)
            return catch_up.decide(self.plan, phases, k, ahead_k, self._backlog, rate)
        return ()

    def _why_early(self, free: Mapping[str, int]) -> str:
        """Return why the load must end before its time, or nothing."""
        for directory, left in free.items():
            if left < self.plan.free_space_floor:
                size = format_size(left // 2**20 * 2**20)
                return f"{size} free is below the floor, in {directory}"
        return "stopped" if self.folder.stop_request.exists() else ""

    def _end(self, phases: Phases, k: int) -> tuple[Decision, ...]:
        ahead_k = k + AHEAD_SECONDS
        if is_drained(self.folder, phases, k):
            return (Decision("end", ahead_k, "drained"),)
        if ahead_k >= _drain_k(phases) + self.plan.phases.drain // SECOND_NS:
            return (Decision("end", ahead_k, "drain limit reached"),)
        return ()

    def _due_window(self, phases: Phases, k: int) -> tuple[Decision, ...]:
        """Return the catch-up of the window that is due; one that cannot begin now is passed over."""
        soak_k, ahead_k = phases.first_k("soak"), k + AHEAD_SECONDS
        if soak_k is None or not self.plan.phases.windows:
            return ()
        if self._windows is None:
            self._windows = WindowSchedule(self.plan.phases.windows, self.grid, soak_k)
            began = [one.from_k for one in phases.decisions if one.part == "build"]
            self._looked_k = max([self._looked_k, *(one for one in began if one <= ahead_k)])
        self._looked_k = max(self._looked_k, k - MISFIRE_SECONDS)
        due = self._windows.due(self._looked_k, ahead_k)
        self._looked_k = max(self._looked_k, ahead_k)
        begun: tuple[Decision, ...] = ()
        for due_k, number in due:
            rate = self._rate(phases, ahead_k)
            why = catch_up.window_refusal(self.plan, phases, number, ahead_k, rate)
            if begun or why:
                why = why or "falls into another window"
                LOG.warning("window_skipped window=%d due_k=%d why=%s", number, due_k, why)
            else:
                begun = catch_up.window_decisions(self.plan, phases, number, ahead_k)
        return begun

    def _rate(self, phases: Phases, k: int) -> float:
        return float(next(rates_between(self.plan.load, phases, self.table, k, k + 1))[1])

    def _recorded(self, from_k: int, before: int = 0) -> Iterator[TailedRecord]:
        """Give what the load daemons wrote since the last call, from shortly before a step on."""
        if self._tail is None or from_k != self._tail_k:
            self._tail = Tail(self.folder.journal, LOAD_SOURCES, from_k - before)
            self._tail_k = from_k
            self._seconds = LoadIntervals(self.plan.consumers.subscription_of)
            self._backlog = Backlog(self.plan.consumers, from_k)
        return self._tail.poll()


def is_drained(folder: RunFolder, phases: Phases, k: int) -> bool:
    """True when every consumer has seen a quiet second without lag since the sending ended.

    What a producer has out may still arrive: a cluster that does not answer looks quiet, too.
    """
    if any(_has_in_flight(folder, name, k) for name in sources(folder.journal)):
        return False
    consumers = [name for name in sources(folder.journal) if name.startswith("consume.")]
    for source in consumers:
        found = last_record(folder.journal, source)
        if found is None:
            return False
        record, columns = found
        values = {
            column.metric: value for column, value in zip(columns, record.values, strict=True)
        }
        is_recent = record.k >= max(_drain_k(phases) + 2, k - AHEAD_SECONDS)
        if not is_recent or values["lag_messages"] or values["received_messages"]:
            return False
    return bool(consumers)


def _has_in_flight(folder: RunFolder, source: str, k: int) -> bool:
    """Return whether a producer that is there waits for acknowledgements."""
    found = last_record(folder.journal, source) if source.startswith("produce.") else None
    if found is None:
        return False
    record, columns = found
    return record.k >= k - AHEAD_SECONDS and load_values(record, columns)["in_flight"] > 0


def _drain_k(phases: Phases) -> int:
    begin = phases.first_k("drain")
    return 0 if begin is None else begin


def _build_k(phases: Phases, k: int) -> int:
    """Return the second in which the catch-up that holds in second k began to build its backlog."""
    return max(one.from_k for one in phases.decisions if one.part == "build" and one.from_k <= k)
