"""A run whose daemons a service manager starts: how it begins, and what is done when it is over."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from soak.cli import _checks, _no_room, _right_clock, _topics
from soak.cli._begin import check_drives, new_run, prepare, resolved
from soak.cli._excess import refuse_excess
from soak.cli._load_checks import keep_load
from soak.cli._part import WHOLE
from soak.core import plan_text
from soak.core.clock import SystemClock
from soak.core.errors import NotNowError, PlanError, RunFolderError, SoakError
from soak.core.plan import Plan
from soak.core.plan_text import PlanFile
from soak.core.units import SECOND_NS, format_duration
from soak.daemons.context import PhaseFile, connect, has_grid, host_name
from soak.daemons.free_space import folders_of
from soak.store.home import Home, units_of
from soak.store.made_topics import read_made
from soak.store.run_folder import (
    RunFolder,
    exclusive,
    read_plan,
    read_run,
    write_plan,
    write_run,
)

OVER = ("ended", "interrupted", "failed")
LEAD_NS = 30 * SECOND_NS
"""The first message is due so long after the run began: units start one after the other, Spark among them."""
MEASURED_NS = 600 * SECOND_NS
"""So long all drives together may be measured: soak-begin@ and soak-finish@ are stopped soon after."""
BEGIN_NEEDS = "a run begins with its plan's `free_space_floor` there and goes on with a few KiB"
CLOSE_NEEDS = "a few KiB close the run"


def begin_run(path: Path, home: Home, clock: SystemClock) -> None:
    """Begin a run, unless one is there that is not over.

    Raises:
        PlanError: before the first side effect, or when the cluster refuses what the plan asks.
        SoakError: there is no room, the cluster does not answer, or the run that is there cannot go on, as
            when this host's clock is behind what it recorded.
    """
    try:
        with _no_room.told(home.path, BEGIN_NEEDS):
            _begin_run(path, home, clock)
    except NotNowError as error:  # who began it may be a timer: people are to be told
        raise SoakError(str(error)) from error


def _begin_run(path: Path, home: Home, clock: SystemClock) -> None:
    home.path.mkdir(parents=True, exist_ok=True)
    with exclusive(home.path / "begin.lock", "this folder of runs"):
        over, folder = home.newest(*OVER), home.newest("running")
        if over is not None and home.wanted.exists():
            home.want(())  # `soak finish` closes it, and its report is made
            print(f"run {read_run(over).id} is over and not yet closed; start again for a new one")
            return
        if folder is None:
            home.leave()  # whatever comes of this, no daemon is to start on the run before
            folder = _begun(_checks.load_plan(path), home, clock)
            print(f"run {read_run(folder).id} begins in {folder.path}")
        else:
            plan, run = _plan_of(folder), read_run(folder)
            if not has_grid(folder, run):
                own = [f"{name}@{host_name()}" for name in plan.measuring]  # another's may be ahead
                _right_clock.await_it(folder, own, clock)
            _topics.check_same(folder, plan, connect(plan, clock))
            print(f"run {run.id} goes on in {folder.path}, as its own plan.yaml says")
        home.want(units_of(_plan_of(folder)))


def _plan_of(folder: RunFolder) -> Plan:
    """Return the plan of a run that was begun.

    Raises:
        SoakError: it is damaged, which is no fault of who starts it: people are to be told.
    """
    try:
        return read_plan(folder)
    except PlanError as error:
        raise RunFolderError(f"the run does not go on: {error}") from error


def _begun(plan_file: PlanFile, home: Home, clock: SystemClock) -> RunFolder:
    """Begin a run, or go on with beginning it: what is on the cluster has its plan on disk before."""
    if plan_file.plan.lab is not None:
        raise plan_file.error("lab", "a lab's broker lives and dies with `soak run`")
    if plan_file.plan.name != home.path.name:
        raise plan_file.error("name", f"is not {home.path.name}, by which the units know the plan")
    measured_ns = plan_file.plan.drive_check * len(folders_of(plan_file.plan))
    if measured_ns > MEASURED_NS:
        most = format_duration(MEASURED_NS)
        raise plan_file.error("drive_check", f"takes more than the {most} that the units wait for")
    _checks.check_here(plan_file, home.path)
    refuse_excess(plan_file)
    half = _half_begun(plan_file.plan, home)
    _checks.check_cluster(plan_file, half)
    run = read_run(half) if half else new_run(plan_file.plan, WHOLE, clock)
    run = dataclasses.replace(run, state="beginning")
    plan = resolved(plan_file.plan, None, run)
    folder = half or _checks.check_run_folder(plan_file, home.path / f"{run.name}-{run.id}")
    folder.logs.mkdir(parents=True, exist_ok=True)
    write_plan(folder, plan)
    keep_load(plan_file, folder)
    write_run(folder, run)
    home.point_to(folder)
    check_drives(plan, None, folder, WHOLE, "before", print)
    prepare(plan_file, plan, folder, WHOLE, run)
    start_wall_ns = clock.wall_ns() + LEAD_NS
    write_run(folder, dataclasses.replace(run, start_wall_ns=start_wall_ns, state="running"))
    return folder


def _half_begun(plan: Plan, home: Home) -> RunFolder | None:
    """Return the run that was cut short while it was made, unless the plan has been changed since then."""
    folder = home.newest("beginning")
    if folder is None:
        return None
    would_be = plan_text.dump(resolved(plan, None, read_run(folder)))
    return folder if would_be == folder.plan.read_text() else None


def close_run(home: Home, folder: RunFolder) -> None:
    """Write down that a run is over: its daemons have ended, and none is to start again.

    Raises:
        RunFolderError: there is no room for it; another try goes on with it.
    """
    with _no_room.told(folder.path, CLOSE_NEEDS):
        _close_run(home, folder)


def _close_run(home: Home, folder: RunFolder) -> None:
    run, plan = read_run(folder), read_plan(folder)
    is_decided = PhaseFile(folder.phases).poll().end_k is not None
    state = "interrupted" if folder.stop_request.exists() else "ended" if is_decided else "failed"
    if state == "ended":
        check_drives(plan, None, folder, WHOLE, "after", print)
    write_run(folder, dataclasses.replace(run, state=state))
    if read_made(folder).asked:
        print(f"the run's topics stay where they are: `soak clean {folder.path}` deletes them")
    home.leave()
