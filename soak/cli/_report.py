"""The report of a folder whose run may end, or give way to another one, while it is made."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from soak.store.run_folder import RunFolder, read_run

UNFINISHED = ("beginning", "running")


def made(run_dir: Path, make: Callable[[Path], int]) -> tuple[int, RunFolder]:
    """Make a report; return its exit code and whose it is.

    It is made once more where a run has ended meanwhile: who asked for that one's report has found this
    one under way, and asks no more.

    Raises:
        SoakError: this is no run folder, or the report cannot be made.
    """
    folder = RunFolder(run_dir.resolve())
    while True:
        state = read_run(folder).state
        code = make(folder.path)
        if read_run(folder).state != state:
            continue
        newest = RunFolder(run_dir.resolve())  # where a link such as `current` leads by now
        if newest == folder or read_run(newest).state in UNFINISHED:
            return code, folder
        folder = newest
