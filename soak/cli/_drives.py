"""Measures the brokers' drives that this host has, for `soak check --drives` and for the folder of a run."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from soak.core.clock import SystemClock
from soak.core.drive_check import Measured, Moment, warnings
from soak.core.errors import PlanError
from soak.core.plan import Plan
from soak.core.plan_probe import AnyPlan
from soak.core.units import duration_ns, format_duration
from soak.core.wording import amount
from soak.daemons.context import host_name
from soak.daemons.drive_check import USUAL, distinct, measure
from soak.daemons.free_space import folders_of
from soak.store import drive_checks
from soak.store.run_folder import Run, RunFolder, read_run

LOG = logging.getLogger("soak.cli.drives")
USUAL_NS = duration_ns("30s")

Say = Callable[[str], None]


def beforehand(plan: AnyPlan) -> list[str]:
    """Return the folders before a run began: a lab's brokers will keep their data below that for runs."""
    is_lab = isinstance(plan, Plan) and plan.lab is not None
    return [existing(Path(plan.run_directory))] if is_lab else folders_of(plan)


def look(
    plan: AnyPlan,
    folders: Sequence[str],
    moment: Moment,
    length_ns: int,
    say: Say,
    injected: Sequence[Path] = (),
) -> list[Measured]:
    """Measure one drive after the other: side by side they would disturb each other.

    On none is less left than the plan's `free_space_floor`, at which a run may have ended; but drives that
    are `injected` at these mount points are there to be filled, and may be smaller than that.
    """
    clock, host = SystemClock(), host_name()
    floored = replace(USUAL, floor_bytes=max(USUAL.floor_bytes, plan.free_space_floor))
    found = []
    for directories in distinct(folders):
        is_injected = any(Path(directories[0]).is_relative_to(mount) for mount in injected)
        limits = USUAL if is_injected else floored
        say(f"measuring the drive of {directories[0]} for {format_duration(length_ns)}")
        found.append(measure(directories, moment, length_ns, host, clock, limits=limits))
        say(line(found[-1]))
    return found


def show(plan: AnyPlan, run_dir: Path | None) -> None:
    """Measure the drives that a plan names, print what was found, and keep it where a run is named.

    Raises:
        PlanError: the plan names none.
    """
    folders = beforehand(plan)
    if not folders:
        raise PlanError("--drives: no probe of the plan names a folder on a broker's drive")
    length_ns = (plan.drive_check if isinstance(plan, Plan) else 0) or USUAL_NS
    if run_dir is None:
        found = look(plan, folders, "before", length_ns, print)
        for warning in warnings(found):
            print(f"Warning: {warning}.")
        return
    folder = RunFolder(run_dir.absolute())
    moment = moment_of(read_run(folder), SystemClock().wall_ns())
    record(folder, plan, folders, moment, length_ns, print)


def record(
    folder: RunFolder,
    plan: AnyPlan,
    folders: Sequence[str],
    moment: Moment,
    length_ns: int,
    say: Say,
    injected: Sequence[Path] = (),
) -> None:
    """Measure, and keep what was found in a run's folder; a drive that cannot be measured ends no run."""
    drive_checks.append(folder, look(plan, folders, moment, length_ns, say, injected))
    for warning in warnings(drive_checks.read_all(folder)):
        LOG.warning("drive_check warning=%r", warning)
        say(f"Warning: {warning}.")


def moment_of(run: Run, wall_ns: int) -> Moment:
    """Return where an instant lies in a run."""
    if run.state == "beginning":
        return "before"
    if run.state != "running":
        return "after"
    return "before" if wall_ns < run.start_wall_ns else "during"


def existing(path: Path) -> str:
    """Return the nearest folder at or above a path that is there."""
    found = path.absolute()
    while not found.exists():
        found = found.parent
    return str(found)


def line(one: Measured) -> str:
    """Return what was measured, for a terminal."""
    if one.fsync_p50_seconds is None or one.fsync_p99_seconds is None:
        return f"{one.name}: {one.trouble}"
    rate = (
        "unknown"
        if one.write_bytes_per_second is None
        else amount(one.write_bytes_per_second, "bytes")
    )
    p50, p99 = (
        amount(value, "seconds") for value in (one.fsync_p50_seconds, one.fsync_p99_seconds)
    )
    figures = f"{one.name}: fsync p50 {p50}, p99 {p99} ({one.flushes} flushes), {rate}/s"
    return figures if one.state is None else f"{figures}; {one.state.words}"
