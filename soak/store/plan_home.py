"""The folder of one plan's runs under a service manager.

`current` links to the present run, or the last one. `daemons/` has an empty file for each daemon of that run:
the conditions of the units check it without starting a process.
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
    """The paths of the folder, and its current run."""

    path: Path

    @property
    def current(self) -> Path:
        return self.path / "current"

    @property
    def daemons_folder(self) -> Path:
        return self.path / "daemons"

    def current_in(self, *states: str) -> RunFolder | None:
        """Return the current run if its state is one of these.

        Raises:
            RunFolderError: its `run.json` is damaged.
        """
        if not self.current.is_dir():
            return None
        folder = RunFolder(self.current.resolve())
        return folder if read_run(folder).state in states else None

    def set_current(self, folder: RunFolder) -> None:
        """Make this run the current one."""
        draft = self.path / f".current.{os.getpid()}"
        draft.unlink(missing_ok=True)
        draft.symlink_to(folder.path.name)
        draft.replace(self.current)

    def set_daemons(self, daemons: Iterable[str]) -> None:
        """Set the daemons of the current run."""
        self.remove_daemons()
        self.daemons_folder.mkdir()
        for name in daemons:
            (self.daemons_folder / name).touch()

    def remove_daemons(self) -> None:
        """Remove all daemons: the run is over, or another one begins.

        Raises:
            RunFolderError: their files cannot be removed.
        """
        if not self.daemons_folder.exists():
            return
        try:
            shutil.rmtree(self.daemons_folder)
        except OSError as error:
            raise RunFolderError(f"cannot remove {self.daemons_folder}: {error}") from error


def is_service_run(folder: RunFolder) -> bool:
    """True for the current run of a plan whose daemons are started by a service manager."""
    return PlanHome(folder.path.parent).current.resolve() == folder.path.resolve()


def is_in_use(folder: RunFolder) -> bool:
    """True for a run that belongs to a service manager, or that a `soak run` process runs."""
    return is_service_run(folder) or is_locked(folder.path / "run.lock")


def service_units(plan: Plan) -> tuple[str, ...]:
    """Return the units of a plan: its daemons, those with several processes once."""
    return tuple(dict.fromkeys(name.partition(".")[0] for name in plan.daemons))
