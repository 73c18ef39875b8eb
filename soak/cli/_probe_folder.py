"""The run folder of a host that only probes: made or gone on in, recorded into, and shipped."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from soak.core.errors import PlanError
from soak.core.plan_probe import ProbePlan
from soak.core.ports import Clock
from soak.daemons import probe
from soak.daemons.beside import Beside
from soak.daemons.context import RESTART_CODE, host_name
from soak.service.journal_lines import is_journal
from soak.service.metrics import withdraw
from soak.store.run_folder import (
    Run,
    RunFolder,
    exclusive,
    own_versions,
    read_run,
    write_plan,
    write_run,
)


def new_run(run_id: str, start_wall_ns: int, plan: ProbePlan) -> Run:
    return Run(run_id, start_wall_ns, host_name(), own_versions(), "running", plan.name)


def probe_in(
    folder: RunFolder,
    plan: ProbePlan,
    run: Run,
    stop: threading.Event,
    clock: Clock,
    *,
    is_joining: bool,
    ship_options: Sequence[str] = (),
    state_when_stopped: str = "ended",
) -> int:
    """Probe until told to stop, or until the folder's phases end it; return the exit code.

    Raises:
        PlanError: the folder is something else, or that of another run.
        SoakError: another process works in the folder.
    """
    with exclusive(_begun(folder) / "run.lock", "this run folder"):
        run = _entered(folder, plan, run, is_joining=is_joining)
        print(f"probing into {folder.path}, run {run.id}; SIGTERM ends it", flush=True)
        with _shipping(folder, plan, ship_options, clock) as beside:
            code = RESTART_CODE
            while code == RESTART_CODE and not stop.is_set():  # after a suspend: a new incarnation
                code = probe.run(folder.path, stop, clock, beside.poll if beside else lambda: None)
        withdraw(folder.path)
        state = "failed" if code == probe.FAILED_CODE else "ended"
        if state == "ended" and stop.is_set():
            state = state_when_stopped
        write_run(folder, dataclasses.replace(run, state=state))
    return code


def _begun(folder: RunFolder) -> Path:
    """Make the folder; one that is there must be empty, a run's, or the home of runs that were joined.

    Raises:
        PlanError: it is something else, or cannot be made.
    """
    path = folder.path
    try:
        path.mkdir(parents=True, exist_ok=True)
        inside = [entry for entry in path.iterdir() if not _is_beside(entry)]
    except OSError as error:
        raise PlanError(f"--run-dir {path} cannot be used: {error.strerror}") from error
    if inside and not folder.run_json.exists():
        raise PlanError(f"--run-dir {path} holds something, and no run")
    return path


def _is_beside(entry: Path) -> bool:
    return entry.suffix == ".lock" or (entry / "run.json").exists()


def _entered(folder: RunFolder, plan: ProbePlan, run: Run, *, is_joining: bool) -> Run:
    """Write down which run this is; in a folder of its own go on with the run that it holds.

    Raises:
        PlanError: the folder holds another run.
    """
    if folder.run_json.exists():
        before = read_run(folder)
        is_same = not is_joining or (before.id, before.start_wall_ns) == (
            run.id,
            run.start_wall_ns,
        )
        if before.name != plan.name or not is_same:
            raise PlanError(f"--run-dir {folder.path} holds run {before.id} of plan {before.name}")
        run = dataclasses.replace(before, state="running")
    write_plan(folder, plan)
    write_run(folder, run)
    return run


@contextlib.contextmanager
def _shipping(
    folder: RunFolder, plan: ProbePlan, options: Sequence[str], clock: Clock
) -> Iterator[Beside | None]:
    """Have the records shipped meanwhile, in a process of its own, if the plan says where to."""
    if plan.ship is None:
        yield None
        return
    arguments = ("ship", "--run-dir", str(folder.path), *options)
    log = None if is_journal() else folder.logs / "ship.log"
    beside = Beside(arguments, log, clock)
    try:
        yield beside
    finally:
        beside.close()
