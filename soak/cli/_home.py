"""A run whose daemons a service manager starts: how it begins, and what is done when it is over."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from soak.cli import _checks
from soak.cli._begin import check_drives, new_run, prepare, resolved
from soak.cli._load_checks import keep_load
from soak.cli._part import WHOLE
from soak.core import plan_text
from soak.core.clock import SystemClock
from soak.core.plan_text import PlanFile
from soak.core.units import SECOND_NS
from soak.store.home import Home, units_of
from soak.store.run_folder import (
    RunFolder,
    exclusive,
    read_plan,
    read_run,
    write_atomically,
    write_run,
)

LEAD_NS = 30 * SECOND_NS
"""The first message is due so long after the run began: units start one after the other, Spark among them."""


def begin_run(path: Path, home: Home, clock: SystemClock) -> None:
    """Begin a run, unless one is there that is not over.

    Raises:
        PlanError: before the first side effect, or when the cluster refuses what the plan asks.
    """
    home.path.mkdir(parents=True, exist_ok=True)
    with exclusive(home.path / "begin.lock", "this folder of runs"):
        folder = home.unfinished()
        if folder is None:
            home.leave()  # whatever comes of this, no daemon is to start on the run before
            plan_file = _checks.load_plan(path)
            folder = _begun(plan_file, home, clock)
            print(f"run {read_run(folder).id} begins in {folder.path}")
        else:
            print(f"run {read_run(folder).id} goes on in {folder.path}, as its own plan.yaml says")
        home.enter(folder, units_of(read_plan(folder)))


def _begun(plan_file: PlanFile, home: Home, clock: SystemClock) -> RunFolder:
    plan = plan_file.plan
    if plan.lab is not None:
        raise plan_file.error("lab", "a lab's broker lives and dies with `soak run`")
    _checks.check_here(plan_file, home.path)
    _checks.check_cluster(plan_file)
    run = new_run(plan, WHOLE, clock)
    plan = resolved(plan, None, run)
    folder = _checks.check_run_folder(plan_file, home.path / f"{run.name}-{run.id}")
    folder.logs.mkdir(parents=True)
    check_drives(plan, None, folder, WHOLE, "before", print)
    prepare(plan_file, plan, folder, WHOLE, run)
    write_atomically(folder.plan, plan_text.dump(plan), 0o600)  # client settings may hold secrets
    keep_load(plan_file, folder)
    write_run(folder, dataclasses.replace(run, start_wall_ns=clock.wall_ns() + LEAD_NS))
    return folder


def close_run(home: Home, folder: RunFolder) -> None:
    """Write down that a run is over: its daemons have ended, and none is to start again."""
    run, plan = read_run(folder), read_plan(folder)
    is_cut = folder.stop_request.exists()
    if not is_cut:
        check_drives(plan, None, folder, WHOLE, "after", print)
    write_run(folder, dataclasses.replace(run, state="interrupted" if is_cut else "ended"))
    home.leave()
