"""A host that only probes: makes its run folder or goes on in it, records, and has its records shipped."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from soak.cli._part import part_of
from soak.cli._probe_checks import check_folders, check_settings
from soak.core import plan_text
from soak.core.errors import PlanError
from soak.core.plan_probe import AnyPlan, ProbePlan
from soak.core.ports import Clock
from soak.core.units import SECOND_NS
from soak.core.yaml_text import Document
from soak.daemons import probe
from soak.daemons.beside import Beside
from soak.daemons.context import RESTART_CODE, host_name
from soak.service.journal_lines import is_journal
from soak.service.metrics import withdraw
from soak.store.run_folder import (
    Run,
    RunFolder,
    exclusive,
    read_run,
    write_plan,
    write_run,
)


def load_any_plan(path: Path) -> AnyPlan:
    """Return a plan, of a run or of a host that only probes.

    Raises:
        PlanError: it cannot be read, or something in it is wrong.
    """
    return _loaded(path)[0]


def host_plan(path: Path) -> tuple[ProbePlan, Document] | None:
    """Return the plan of a host that only probes, and its text; None where it is none, or is wrong."""
    try:
        plan, document = _loaded(path)
    except PlanError:
        return None
    return (plan, document) if isinstance(plan, ProbePlan) else None


def run_host(
    path: Path,
    run_dir: Path | None,
    run_id: str,
    start: str,
    stop: threading.Event,
    clock: Clock,
) -> int:
    """Probe until told to stop; return the exit code.

    Raises:
        PlanError: before the first side effect.
        SoakError: another process works in the folder.
    """
    plan, document = _loaded(path)
    if not isinstance(plan, ProbePlan):
        raise document.error(
            ("broker",), "makes it the plan of a run: `soak run --only probe` does its part of it"
        )
    check_folders(plan, document)
    check_settings(plan, document)
    part = part_of(run_id, start, "")
    run = Run(
        part.run_id or f"{datetime.fromtimestamp(clock.wall_ns() / SECOND_NS, UTC):%Y%m%dT%H%M%SZ}",
        part.start_wall_ns or clock.wall_ns(),
        host_name(),
        {"python": sys.version.split()[0]},
        "running",
        plan.name,
    )
    folder = RunFolder((run_dir or Path(plan.run_directory) / f"{plan.name}-{run.id}").absolute())
    with exclusive(_begun(folder) / "run.lock", "this run folder"):
        run = _entered(folder, plan, run, is_joining=bool(part.run_id))
        print(f"probing into {folder.path}, run {run.id}; SIGTERM ends it", flush=True)
        with _shipping(folder, plan, clock) as beside:
            code = RESTART_CODE
            while code == RESTART_CODE and not stop.is_set():  # after a suspend: a new incarnation
                code = probe.run(folder.path, stop, clock, beside.poll if beside else lambda: None)
        withdraw(folder.path)
        state = "failed" if code == probe.FAILED_CODE else "ended"
        write_run(folder, dataclasses.replace(run, state=state))
    return code


def _loaded(path: Path) -> tuple[AnyPlan, Document]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise PlanError(f"{path}: cannot read the plan: {error}") from error
    return plan_text.load_any(text, str(path))


def _begun(folder: RunFolder) -> Path:
    """Make the folder; one that is there must be empty or a run's.

    Raises:
        PlanError: it is something else, or cannot be made.
    """
    path = folder.path
    try:
        path.mkdir(parents=True, exist_ok=True)
        inside = {entry.name for entry in path.iterdir()} - {"run.lock"}
    except OSError as error:
        raise PlanError(f"--run-dir {path} cannot be used: {error.strerror}") from error
    if inside and not folder.run_json.exists():
        raise PlanError(f"--run-dir {path} holds something, and no run")
    return path


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
def _shipping(folder: RunFolder, plan: ProbePlan, clock: Clock) -> Iterator[Beside | None]:
    """Have the records shipped meanwhile, in a process of its own, if the plan says where to."""
    if plan.ship is None:
        yield None
        return
    arguments = ("ship", "--run-dir", str(folder.path))
    log = None if is_journal() else folder.logs / "ship.log"
    beside = Beside(arguments, log, clock)
    try:
        yield beside
    finally:
        beside.close()
