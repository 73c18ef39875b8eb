"""How a probe host finds a run: wait for an announcement, and manage the folders of joined runs."""

from __future__ import annotations

import logging
import shutil
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from soak.core.errors import RunFolderError
from soak.core.plan.phases import Phases
from soak.core.ports import Clock
from soak.core.units import SECOND_NS
from soak.service.systemd import Notifier
from soak.shipping.announcements import AnnouncementListener
from soak.store.run_announcements import ANNOUNCE_PERIOD_NS, Announcement
from soak.store.run_folder import Run, RunFolder, read_phases, read_run

LOG = logging.getLogger(__name__)
POLL_SECONDS = 0.5
GATHER_NS = ANNOUNCE_PERIOD_NS + 2 * SECOND_NS
"""This long after the first announcement of a run, every other ongoing run has been announced too."""
MAX_CLOCK_SKEW_NS = 2 * SECOND_NS


def wait_for_run(
    listener: AnnouncementListener,
    may_join: Callable[[Announcement], bool],
    stop: threading.Event,
    manager: Notifier,
    clock: Clock,
    meanwhile: Callable[[], None] = lambda: None,
) -> Announcement | None:
    """Return the last announcement of the newest ongoing run that this host may join; None after `stop`."""
    ongoing: dict[str, Announcement] = {}
    known: set[str] = set()
    decide_ns = 0
    while not stop.is_set():
        manager.alive()
        meanwhile()
        for one in listener.poll(POLL_SECONDS):
            can_join = may_join(one)
            if one.run_id not in known:
                known.add(one.run_id)
                _log_problems(one, clock, can_join=can_join)
            if can_join and one.is_ongoing(clock.wall_ns()):
                decide_ns = decide_ns or clock.mono_ns() + GATHER_NS
                ongoing[one.run_id] = one
            else:
                ongoing.pop(one.run_id, None)
        if ongoing and clock.mono_ns() >= decide_ns:
            return _newest(ongoing)
        if not ongoing:
            decide_ns = 0
        if not listener.is_open:
            clock.sleep_until(clock.mono_ns() + int(POLL_SECONDS * SECOND_NS))
    return None


def _newest(ongoing: dict[str, Announcement]) -> Announcement:
    newest = max(ongoing.values(), key=lambda one: one.order)
    if len(ongoing) > 1:
        LOG.warning("many_runs_of_one_plan runs=%s joined=%s", sorted(ongoing), newest.run_id)
    return newest


def _log_problems(one: Announcement, clock: Clock, *, can_join: bool) -> None:
    if not can_join:
        LOG.error("run_not_joined run=%s: its folder here holds another run of that id", one.run_id)
    skew_ns = clock.wall_ns() - one.sent_wall_ns
    if abs(skew_ns) > MAX_CLOCK_SKEW_NS:
        LOG.error(
            "clocks_differ run=%s seconds=%.1f: the records of this host are shifted by that much",
            one.run_id,
            skew_ns / SECOND_NS,
        )


@dataclass(frozen=True, slots=True)
class JoinedRuns:
    """The runs of one plan that a probe host has joined: a folder each in `home`, with a bound on all.

    The folder of a joined run has a `phases.jsonl` from the beginning; that of `--run-id` never has one.
    """

    home: Path
    plan: str

    def folder_of(self, run_id: str) -> RunFolder:
        return RunFolder(self.home / f"{self.plan}-{run_id}")

    def joined(self) -> list[tuple[RunFolder, Run]]:
        """Return the joined runs, the newest last; unreadable folders are left out."""
        found = []
        for path in self.home.glob(f"{self.plan}-*/phases.jsonl"):
            folder = RunFolder(path.parent)
            run = _readable_run(folder)
            if run is not None and run.name == self.plan and folder == self.folder_of(run.id):
                found.append((folder, run))
        return sorted(found, key=lambda each: (each[1].start_wall_ns, each[1].id))

    def unfinished(self, now_wall_ns: int) -> Run | None:
        """Return the newest run if it was interrupted, as by a reboot, and its end is not past."""
        for folder, run in self.joined()[-1:]:
            end_k = _readable_phases(folder).end_k
            k = (now_wall_ns - run.start_wall_ns) // SECOND_NS
            if run.state != "ended" and (end_k is None or k < end_k):
                return run
        return None

    def may_join(self, one: Announcement) -> bool:
        """False where the folder holds another run of that id: with another start, intervals differ."""
        folder = self.folder_of(one.run_id)
        if not folder.run_json.exists():
            return True
        run = _readable_run(folder)
        return run is not None and (run.id, run.start_wall_ns) == (one.run_id, one.start_wall_ns)

    def trim(self, limit_bytes: int, keep: str) -> None:
        """Remove the oldest folders, shipped or not, until the others fit the limit; never that of `keep`."""
        others = [(folder, run) for folder, run in self.joined() if run.id != keep]
        sizes = [_size(folder.path) for folder, _ in others]
        total = sum(sizes)
        for (folder, run), size in zip(others, sizes, strict=True):
            if total <= limit_bytes:
                return
            LOG.warning("old_run_removed run=%s bytes=%d", run.id, size)
            shutil.rmtree(folder.path, ignore_errors=True)
            total -= size


def _readable_run(folder: RunFolder) -> Run | None:
    try:
        return read_run(folder)
    except RunFolderError as error:
        LOG.warning("run_not_read error=%s", error)
        return None


def _readable_phases(folder: RunFolder) -> Phases:
    try:
        return read_phases(folder.phases)
    except RunFolderError as error:
        LOG.warning("phases_not_read error=%s", error)
        return Phases()


def _size(path: Path) -> int:
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
