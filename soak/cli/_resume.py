"""Which run `soak run --resume` goes on with."""

from __future__ import annotations

from pathlib import Path

from soak.core.errors import PlanError, RunFolderError
from soak.core.plan import Plan
from soak.store.home import is_of_service, is_taken
from soak.store.run_folder import Run, RunFolder, read_run


def unfinished(plan: Plan, run_dir: Path | None, run_id: str = "") -> RunFolder:
    """Return the folder of the plan's run that nobody ended and nobody runs: of many the newest.

    Raises:
        PlanError: there is none, or the folder that was named is not such a run.
    """
    if run_dir is not None:
        return _named(plan, RunFolder(run_dir.absolute()))
    runs = Path(plan.run_directory).absolute()
    found = []
    for path in runs.glob(f"{plan.name}-*/run.json"):
        folder = RunFolder(path.parent)
        try:
            run = read_run(folder)
        except RunFolderError:
            continue  # a damaged one is not what is asked for, unless it is named
        if _is_cut_short(folder, run) and run.name == plan.name and run_id in ("", run.id):
            found.append((run.start_wall_ns, folder))
    if not found:
        which = f"run {run_id}" if run_id else f"run of the plan {plan.name}"
        raise PlanError(f"--resume: no {which} below {runs} was cut short; name it with --run-dir")
    return max(found, key=lambda one: one[0])[1]


def _named(plan: Plan, folder: RunFolder) -> RunFolder:
    try:
        run = read_run(folder)
    except RunFolderError as error:
        raise PlanError(f"--resume: {error}") from error
    if run.name != plan.name:
        raise PlanError(f"--run-dir {folder.path} holds run {run.id} of plan {run.name}")
    if run.state != "running":
        raise PlanError(
            f"--run-dir {folder.path}: run {run.id} does not go on, its state is {run.state}"
        )
    if is_of_service(folder):
        raise PlanError(
            f"--run-dir {folder.path}: run {run.id} is a service's, and goes on with `systemctl start "
            f"soak@{folder.path.parent.name}.target`"
        )
    return folder


def _is_cut_short(folder: RunFolder, run: Run) -> bool:
    return run.state == "running" and not is_taken(folder)
