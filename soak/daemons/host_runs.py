"""The runs that a host which only probes has joined: a folder each, in one home, with a bound on all of them.

Such a folder has a `phases.jsonl` from the beginning; one that was made by `--run-id` never has.
"""

from __future__ import annotations

import logging
import shutil
from dataclasses import dataclass
from pathlib import Path

from soak.core.announcement import Announcement
from soak.core.errors import RunFolderError
from soak.core.phases import Phases
from soak.core.units import SECOND_NS
from soak.daemons.context import PhaseFile
from soak.store.run_folder import Run, RunFolder, read_run

LOG = logging.getLogger("soak.daemons.host_runs")


@dataclass(frozen=True, slots=True)
class HostRuns:
    """Folders by their run's start, those of one plan."""

    home: Path
    plan: str

    def folder_of(self, run_id: str) -> RunFolder:
        return RunFolder(self.home / f"{self.plan}-{run_id}")

    def joined(self) -> list[tuple[RunFolder, Run]]:
        """Return what was joined here, the newest last; what cannot be read is left out."""
        found = []
        for path in self.home.glob(f"{self.plan}-*/phases.jsonl"):
            folder = RunFolder(path.parent)
            run = _known(folder)
            if run is not None and run.name == self.plan and folder == self.folder_of(run.id):
                found.append((folder, run))
        return sorted(found, key=lambda each: (each[1].start_wall_ns, each[1].id))

    def unfinished(self, now_wall_ns: int) -> Run | None:
        """Return the newest run where it was cut short, as by a reboot, and its end is not past."""
        for folder, run in self.joined()[-1:]:
            end_k = _phases(folder).end_k
            k = (now_wall_ns - run.start_wall_ns) // SECOND_NS
            if run.state != "ended" and (end_k is None or k < end_k):
                return run
        return None

    def may_join(self, one: Announcement) -> bool:
        """False where a folder holds another run of that id: two starts would be two grids of seconds."""
        folder = self.folder_of(one.run_id)
        if not folder.run_json.exists():
            return True
        run = _known(folder)
        return run is not None and (run.id, run.start_wall_ns) == (one.run_id, one.start_wall_ns)

    def trim(self, limit_bytes: int, keep: str) -> None:
        """Remove the oldest folders, sent or not, until the rest fit the limit; never that of run `keep`."""
        others = [(folder, run) for folder, run in self.joined() if run.id != keep]
        sizes = [_size(folder.path) for folder, _ in others]
        total = sum(sizes)
        for (folder, run), size in zip(others, sizes, strict=True):
            if total <= limit_bytes:
                return
            LOG.warning("old_run_removed run=%s bytes=%d", run.id, size)
            shutil.rmtree(folder.path, ignore_errors=True)
            total -= size


def _known(folder: RunFolder) -> Run | None:
    try:
        return read_run(folder)
    except RunFolderError as error:
        LOG.warning("run_not_read error=%s", error)
        return None


def _phases(folder: RunFolder) -> Phases:
    try:
        return PhaseFile(folder.phases).poll()
    except RunFolderError as error:
        LOG.warning("phases_not_read error=%s", error)
        return Phases()


def _size(path: Path) -> int:
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
