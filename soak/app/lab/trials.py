"""Trials: run one, judge it, replay its journals with today's detector, and write the page."""

from __future__ import annotations

import dataclasses
import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console

from soak.app import foreground, plan_files
from soak.app.foreground import SideTaskFactory, StartedRun
from soak.app.host import SafeConsole
from soak.app.outcome import EXIT_INTERRUPTED, show_outcome
from soak.core.clock import SystemClock
from soak.core.errors import LabError, PlanError
from soak.core.plan.plan import Lab
from soak.core.plan.text import PlanFile
from soak.core.units import SECOND_NS
from soak.lab import files
from soak.lab.broker_setup import run_tool
from soak.lab.drills.injection import FaultLog
from soak.lab.faults.host import clock_environment
from soak.lab.ports import Target
from soak.lab.trials.figures import figures
from soak.lab.trials.outcome import Outcome, Trial, judge
from soak.lab.trials.page import write_page
from soak.lab.trials.schedule import KINDS, Kind, Trouble, draw
from soak.lab.trials.side_task import TrialTask, configured, read_injected
from soak.service import children
from soak.service.files import shipped_configs
from soak.store.run_folder import RunFolder

RESULT = "trial.json"
_REPLAY_SECONDS = 7_200.0
_SHORTEST_SECONDS = 600
_REPLAYED = ("plan.yaml", "run.json", "phases.jsonl")


def run_trial(seed: int, hours: float, run_dir: Path | None, only: Sequence[str] = ()) -> int:
    """Run a trial, print what became of its troubles, and return the exit code of the run.

    `only` names the kinds of trouble; none: all that this machine can make.

    Raises:
        PlanError: it is too short, or there is no such kind.
    """
    soak_seconds = round(3600 * hours)
    if soak_seconds < _SHORTEST_SECONDS:
        raise PlanError(f"a trial takes at least {_SHORTEST_SECONDS // 60} minutes")
    plan_file = _with_soak(plan_files.load_plan(shipped_configs() / "trials.yaml"), soak_seconds)
    phases = plan_file.plan.phases
    assert plan_file.plan.lab is not None  # of the plan that ships
    kinds = possible_kinds(plan_file.plan.lab, only)
    first = phases.warm_up // SECOND_NS
    troubles = draw(seed, first, first + soak_seconds, kinds)
    console = SafeConsole()
    console.print(
        f"TRIAL: {len(troubles)} troubles of {len(kinds)} kinds, seed {seed}. When and which is written "
        "into the run folder when the detector has ended.",
        markup=False,
        highlight=False,
    )
    with ExitStack() as outer:
        environment = clock_environment(outer.enter_context(files.scratch_folder()))

        def begin(started: StartedRun, stack: ExitStack) -> TrialTask:
            return _begin(troubles, seed, started, environment, stack)

        side_task = SideTaskFactory(begin, environment)
        finished = foreground.run_plan(plan_file, run_dir, console, side_task)
    show_outcome(console, finished.folder)
    if finished.code == EXIT_INTERRUPTED and not finished.folder.faults.exists():
        return finished.code
    show(console, judged(finished.folder))
    return 0


def replay_trial(trial_dir: Path, run_dir: Path) -> int:
    """Let today's detector read the journals of a finished trial in a new folder, and judge that.

    Raises:
        LabError: it is no folder of a trial, the new one is not empty, or the detector failed.
    """
    source, target = RunFolder(trial_dir.resolve()), RunFolder(run_dir.resolve())
    read_injected(source.faults)
    if run_dir.exists() and any(run_dir.iterdir()):
        raise LabError(f"{run_dir} is not empty: name a new folder for the replay")
    target.path.mkdir(parents=True, exist_ok=True)
    for name in _REPLAYED:
        shutil.copyfile(source.path / name, target.path / name)
    shutil.copytree(source.journal, target.journal)
    command = [sys.executable, "-m", "soak.cli.main", "detect-stream", "--run-dir"]
    log = target.path / "replay.log"
    run_tool("the detector", [*command, str(target.path)], Path.cwd(), _REPLAY_SECONDS, log)
    target.lab.mkdir(exist_ok=True)  # only now: no detector can have read it
    shutil.copyfile(source.faults, target.faults)
    show(SafeConsole(), judged(target))
    return 0


def judged(folder: RunFolder) -> Trial:
    """Return what became of the troubles of a finished trial, and keep it in its folder.

    Raises:
        SoakError: the run folder has no troubles, or cannot be read.
    """
    trial = judge(folder, read_injected(folder.faults))
    (folder.lab / RESULT).write_text(json.dumps(trial.to_json(), indent=1) + "\n")
    return trial


def trial_of(path: Path) -> Trial:
    """Return the result of a trial from its run folder.

    Raises:
        LabError: there is none, or it cannot be read.
    """
    file = path / "lab" / RESULT
    try:
        body = json.loads(file.read_text(encoding="utf-8"))  # noqa: TID251  # of ours: a ratio may be infinite
        outcomes = [Outcome(**{**one, "causes": tuple(one["causes"])}) for one in body["outcomes"]]
        return Trial(**{**body, "outcomes": tuple(outcomes), "failures": tuple(body["failures"])})
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise LabError(f"{file}: cannot read the result of a trial: {error}") from error


def show(console: Console, trial: Trial) -> None:
    for one in trial.outcomes:
        seen = f"{one.cause} after {one.raised_seconds:.0f} s" if one.cause else "not reported"
        mark = "right" if one.is_right else "WRONG" if one.is_wrong else ""
        line = f"{one.kind} x{one.ratio:.2g} ({one.size}): {seen} {mark}"
        console.print(line.rstrip(), markup=False, highlight=False)
    for name, value in figures([trial]).items():
        console.print(f"{name}: {value}", markup=False, highlight=False)
    for failure in trial.failures:
        console.print(f"FAILED {failure}", markup=False, highlight=False)


def write_trials_page(folders: Sequence[Path], page: Path) -> None:
    """Write the page of some finished trials, with its pictures in the same folder."""
    write_page([trial_of(folder) for folder in folders], page)


def possible_kinds(lab: Lab, only: Sequence[str] = ()) -> dict[str, Kind]:
    """Return the kinds of trouble that a lab on this machine can have.

    Raises:
        PlanError: there is no such kind.
    """
    for name in only:
        if name not in KINDS:
            raise PlanError(f"no trouble {name!r}; there are {', '.join(sorted(KINDS))}")
    found = {}
    for name, kind in KINDS.items():
        fault, config = configured(kind.fault, kind.config(0.5, 1))
        lack = fault.missing_from_lab(lab, config) or fault.missing_on_machine()
        if not lack and (not only or name in only):
            found[name] = kind
    if not found:
        raise PlanError("this machine can make none of these troubles")
    return found


def _with_soak(plan_file: PlanFile, seconds: int) -> PlanFile:
    phases = dataclasses.replace(plan_file.plan.phases, soak=seconds * SECOND_NS)
    plan = dataclasses.replace(plan_file.plan, phases=phases)
    return dataclasses.replace(plan_file, plan=plan)


def _begin(
    troubles: Sequence[Trouble],
    seed: int,
    started: StartedRun,
    environment: Mapping[str, str],
    stack: ExitStack,
) -> TrialTask:
    """Start the background work, and prepare the troubles; the stack undoes both."""
    lab, clock = started.lab, SystemClock()
    assert lab is not None  # of the plan that ships
    usual = [sys.executable, "-m", "soak.lab.other_clients", lab.broker.bootstrap_servers, "usual"]
    worker = children.spawn([*usual, str(seed)], log_path=lab.folder / "other_clients.log")
    stack.callback(children.kill, worker)
    log = FaultLog(lab.folder)
    stack.callback(log.close)
    target = Target(lab.broker, log.record, clock, lab.drives, started.pids, environment)
    task = TrialTask(troubles, target, started.run.start_wall_ns, log)
    stack.callback(task.undo)
    return task
