"""The folder of one plan's runs under a service manager: the current run, and the daemons that it wants.

`current` is the run that goes on, or the last one; `daemons/` has an empty file for each daemon that it
wants, so that a unit's condition can ask without starting anything.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from soak.core.errors import RunFolderError
from soak.core.plan.plan import Plan
from soak.service.files import is_locked
from soak.store.run_folder import RunFolder, read_run


@dataclass(frozen=True, slots=True)
class PlanHome:
    """Paths, and which run is the current one."""

    path: Path

    @property
    def current(self) -> Path:
        return self.path / "current"

    @property
    def wanted(self) -> Path:
        return self.path / "daemons"

    def newest(self, *states: str) -> RunFolder | None:
        """Return the current run, where there is one and its state is one of these.

        Raises:
            RunFolderError: the run's own description is damaged.
        """
        if not self.current.is_dir():
            return None
        folder = RunFolder(self.current.resolve())
        return folder if read_run(folder).state in states else None

    def point_to(self, folder: RunFolder) -> None:
        """Make this run the current one."""
        draft = self.path / f".current.{os.getpid()}"
        draft.unlink(missing_ok=True)
        draft.symlink_to(folder.path.name)
        draft.replace(self.current)

    def want(self, daemons: Iterable[str]) -> None:
        """Say which daemons the current run wants: these and no others."""
        self.leave()
        self.wanted.mkdir()
        for name in daemons:
            (self.wanted / name).touch()

    def leave(self) -> None:
        """Want no daemon any more: the run is over, or another one is to come.

        Raises:
            RunFolderError: the drive does not let go of them.
        """
        if not self.wanted.exists():
            return
        try:
            shutil.rmtree(self.wanted)
        except OSError as error:
            raise RunFolderError(f"cannot remove {self.wanted}: {error}") from error


def is_service_run(folder: RunFolder) -> bool:
    """True for the current run of a plan whose daemons a service manager starts."""
    return PlanHome(folder.path.parent).current.resolve() == folder.path.resolve()


def is_in_use(folder: RunFolder) -> bool:
    """True for a run that is a service manager's, or that `soak run` has in hand."""
    return is_service_run(folder) or is_locked(folder.path / "run.lock")


def service_units(plan: Plan) -> tuple[str, ...]:
    """Return the daemons of a plan, those of many processes once: each is one unit."""
    return tuple(dict.fromkeys(name.partition(".")[0] for name in plan.daemons))
