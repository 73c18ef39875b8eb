"""The CSV file of a load profile: where the plan names it, and its copy in the run folder."""

from __future__ import annotations

from pathlib import Path

from soak.core.errors import PlanError
from soak.core.profile import Point, parse
from soak.store.run_folder import RunFolder, write_atomically


def read_profile(path: Path) -> tuple[Point, ...]:
    """Return the rates in a file.

    Raises:
        PlanError: it cannot be read, or a line of it is wrong.
    """
    return parse(_text(path), str(path))


def keep_profile(path: Path, folder: RunFolder) -> None:
    """Copy the file into the run folder: the run's daemons read it there, whatever becomes of the original.

    Raises:
        PlanError: it cannot be read.
    """
    write_atomically(kept_profile(folder), _text(path))


def kept_profile(folder: RunFolder) -> Path:
    return folder.path / "profile.csv"


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise PlanError(f"{path}: cannot read the load profile: {error}") from error
