"""Checks of what a plan says about its load over time: the profile's file, the windows' calendar."""

from __future__ import annotations

from pathlib import Path

from soak.core.errors import PlanError
from soak.core.plan_text import PlanFile
from soak.core.profile import Point
from soak.daemons.windows import refusal
from soak.store.profile_file import keep_profile, read_profile
from soak.store.run_folder import RunFolder


def check_load(plan_file: PlanFile) -> None:
    """Read the profile's file and the windows' cron expressions.

    Raises:
        PlanError: with file and line, of the table or of the plan.
    """
    path = _profile_path(plan_file)
    if path is not None:
        try:
            read_profile(path)
        except PlanError as error:
            raise plan_file.document.error(("load", "profile", "file"), str(error)) from error
    for number, window in enumerate(plan_file.plan.phases.windows):
        why = refusal(window)
        if why:
            raise plan_file.document.error(("phases", "windows", number, "cron"), why)


def keep_load(plan_file: PlanFile, folder: RunFolder) -> None:
    """Copy the profile's file, where there is one, into the run folder for the daemons.

    Raises:
        PlanError: it cannot be read.
    """
    path = _profile_path(plan_file)
    if path is not None:
        keep_profile(path, folder)


def table_of(plan_file: PlanFile) -> tuple[Point, ...]:
    """Return the rates of the profile's file; none where the plan names no file.

    Raises:
        PlanError: it cannot be read.
    """
    path = _profile_path(plan_file)
    return read_profile(path) if path is not None else ()


def _profile_path(plan_file: PlanFile) -> Path | None:
    """Return where the profile's file lies: beside the plan, unless it says otherwise."""
    file = plan_file.plan.load.profile.file
    return Path(plan_file.document.name).parent / file if file else None
