"""Whether runs can be kept where a plan wants them, and whether there is room."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from pathlib import Path

from soak.cli._drives import existing
from soak.core.errors import NotNowError
from soak.core.plan_probe import AnyPlan
from soak.core.units import format_size
from soak.core.yaml_text import Document


def check_runs(plan: AnyPlan, document: Document, runs: Path) -> None:
    """Refuse a folder for runs that takes no files, or has less room than the plan's floor.

    Raises:
        PlanError: with file, line and key.
    """
    nearest = Path(existing(runs))
    _check_writable(document, nearest)
    check_free(plan, document, nearest)


def check_free(plan: AnyPlan, document: Document, folder: Path) -> None:
    """Refuse a folder with less free space than the plan's floor.

    Raises:
        NotNowError: with file, line and key.
    """
    free, floor = shutil.disk_usage(folder).free, plan.free_space_floor
    if free < floor:
        have = format_size(free // 2**20 * 2**20)
        why = f"{folder} has {have} free, less than the floor of {format_size(floor)}"
        raise NotNowError(str(document.error(("free_space_floor",), why)))


def _check_writable(document: Document, folder: Path) -> None:
    """Check that a folder takes new files; where only room is lacking, `check_free` tells how much."""
    try:
        if not folder.is_dir():
            raise NotADirectoryError(f"{folder} is not a folder")
        with tempfile.TemporaryFile(dir=folder) as file:
            os.write(file.fileno(), b"soakd")
    except OSError as error:
        if error.errno == errno.ENOSPC:
            return
        reason = error.strerror or str(error)
        raise document.error(("run_directory",), f"cannot write in {folder}: {reason}") from error
