"""`soak lab drill`: a fault put into a run, and what the detector made of it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:  # a command imports what it needs when it is called
    from rich.console import Console

    from soak.cli._session import Ended, Started
    from soak.core.plan import Lab
    from soak.core.plan_text import PlanFile
    from soak.core.ports import Clock
    from soak.lab.drill import Drill
    from soak.lab.drill_result import Result
    from soak.lab.drill_verdict import Moments
    from soak.lab.fault_log import FaultLog
    from soak.lab.injection import Injection
    from soak.lab.pool import Pool
    from soak.store.run_folder import RunFolder

DRILLS = Path(__file__).resolve().parents[2] / "configs" / "drills"
PASSED, MISSED, INCONCLUSIVE, NOT_HERE = 0, 1, 4, 5
"""Exit codes: also of a run that proves nothing, and of one that this machine cannot make."""


def drill(
    name: Annotated[
        str, typer.Argument(help="Name of a drill, its file, or `all`; without it all are listed.")
    ] = "",
    run_dir: Annotated[Path | None, typer.Option(help="Folder for this run; new or empty.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Moves the fault by some seconds; 0: not.")] = 0,
) -> None:
    """Inject a fault into a run and see whether it is found and named; exit 0 only then.

    Exit 1 when something was missed, or the run failed; 2 when there is no such drill, or its plan is wrong;
    4 when the run proves nothing, as the detector did not read it all; 5 when this machine cannot make it;
    130 when it was interrupted.
    """
    from soak.cli import _checks, _lab_drill_list, _lab_drills
    from soak.cli._session import EXIT_INTERRUPTED
    from soak.lab import drill_fit

    if not name:
        _lab_drill_list.show()
        return
    if name == "all":
        raise typer.Exit(_lab_drills.run_all(run_dir))
    found = find(name)
    plan_file = _checks.load_plan(found.plan)
    drill_fit.check(found, plan_file)
    lack = lacking(found, plan_file.plan.lab)
    if lack:
        print(f"soak: the drill {found.name} cannot run here: {lack}", file=sys.stderr)
        raise typer.Exit(NOT_HERE)
    result = _run(found, plan_file, run_dir, seed)
    raise typer.Exit(EXIT_INTERRUPTED if result is None else exit_code(result))


def exit_code(result: Result) -> int:
    if not result.is_judged:
        return INCONCLUSIVE
    return PASSED if result.is_passed else MISSED


def known() -> list[str]:
    """Return the names of the drills that ship."""
    return sorted(item.stem for item in DRILLS.glob("*.yaml"))


def find(name: str) -> Drill:
    """Return a drill by its name or its file.

    Raises:
        PlanError: there is none, or its file is wrong.
    """
    from soak.core import plugins
    from soak.core.errors import PlanError
    from soak.lab import drill as drills

    path = Path(name) if name.endswith(".yaml") else DRILLS / f"{name}.yaml"
    if not path.is_file():
        raise PlanError(f"no drill {name!r}{plugins.nearest(name, known())}")
    return drills.load(path)


def _run(found: Drill, plan_file: PlanFile, run_dir: Path | None, seed: int) -> Result | None:
    """Run a drill and show how it went; None when it was interrupted."""
    from rich.console import Console

    from soak.cli import _outcome
    from soak.cli._session import EXIT_INTERRUPTED, Company, execute
    from soak.lab import drill as drills

    form = drills.form(found)
    found, plan_file = moved(found, plan_file, seed)
    console = Console()
    console.print(
        f"DRILL {found.name}: {found.description} The fault `{found.fault_kind}` is injected into this "
        "run; the detector is not told.",
        markup=False,
        highlight=False,
    )
    put_in: list[Injected] = []
    with ExitStack() as whole:
        environment = _environment(found, whole)

        def begin(started: Started, stack: ExitStack) -> Injected:
            put_in.append(_injected(found, started, environment, stack))
            put_in[0].poll()
            return put_in[0]

        ended = execute(plan_file, run_dir, console, Company(begin, environment))
    _outcome.show(console, ended.folder)
    if ended.code == EXIT_INTERRUPTED:
        return None
    return _judged(console, found, seed, form, ended, put_in[0])


def moved(found: Drill, plan_file: PlanFile, seed: int) -> tuple[Drill, PlanFile]:
    """Have the fault felt later, as a seed says, and end the soak as much later; seed 0 moves nothing."""
    from soak.lab import drill_seed

    later, plan = drill_seed.moved(found, plan_file.plan, seed)
    return later, replace(plan_file, plan=plan)


@dataclass(frozen=True)
class Injected:
    """What goes on beside a drill's run; implements `soak.cli._session.Beside`."""

    injection: Injection
    log: FaultLog
    pool: Pool | None  # of the drive that is to starve
    clock: Clock

    def poll(self) -> None:
        self.injection.poll()
        if self.pool is not None:
            self.pool.look(self.clock.wall_ns())

    def lift(self) -> None:
        self.injection.close()

    def end(self, folder: RunFolder) -> None:
        self.injection.close()
        self.log.publish(folder.faults)


def _injected(
    found: Drill, started: Started, environment: Mapping[str, str], stack: ExitStack
) -> Injected:
    from soak.core.clock import SystemClock
    from soak.lab import drill as drills
    from soak.lab.fault_log import FaultLog
    from soak.lab.injection import Injection
    from soak.lab.pool import Pool
    from soak.lab.ports import Target

    lab, clock = started.lab, SystemClock()
    assert lab is not None  # `drill_fit` refuses a plan without one
    log = FaultLog(lab.folder)
    stack.callback(log.close)
    log.record(drills.declaration(found, at_wall_ns=clock.wall_ns()))
    target = Target(lab.broker, log.record, clock, lab.drives, started.pids, environment)
    injection = Injection(found, target, started.run.start_wall_ns)
    stack.callback(_tell_failure, injection)  # once it is closed, on every way out
    stack.callback(injection.close)
    pool = Pool(lab.drives[found.fault.node]) if found.expect.pool_within else None
    return Injected(injection, log, pool, clock)


def _tell_failure(injection: Injection) -> None:
    if injection.failure:
        print(f"soak: the fault was not undone in order: {injection.failure}", file=sys.stderr)


def _judged(
    console: Console, found: Drill, seed: int, form: str, ended: Ended, put_in: Injected
) -> Result:
    from soak.cli import _lab_drill_list, _outcome
    from soak.lab import drill_result, drill_verdict, origin

    summary = _outcome.read(ended.folder)
    moments = _moments(ended.folder, put_in, found.expect.event)
    checks = drill_verdict.judge(found.expect, summary, moments)
    _outcome.show_checks(
        console,
        f"drill {found.name}",
        [(one.subject, one.expected, one.found, one.is_met) for one in checks],
    )
    result = drill_result.stamped(
        drill_result.of(found, seed, summary, moments, checks),
        broker_of(found),
        form,
        origin.here(put_in.clock.wall_ns()),
    )
    (ended.folder.lab / "drill.json").write_text(drill_result.line(result))
    console.print()
    console.print(_lab_drill_list.outcome([drill_result.row(result)], console.width))
    return result


def _moments(folder: RunFolder, put_in: Injected, event: str) -> Moments:
    from soak.lab import drill_run
    from soak.lab.drill_verdict import Moments

    injection, told = put_in.injection, drill_run.told(folder)
    return Moments(
        injection.onset_wall_ns,
        injection.lifted_wall_ns,
        told.at_wall_ns,
        told.gone_wall_ns,
        told.cause,
        events_wall_ns=drill_run.events(folder, event) if event else (),
        disordered=drill_run.disordered(folder) if event else 0,
        pool=put_in.pool,
        failure=injection.failure,
        in_run=told.confirmed,
    )


def broker_of(found: Drill) -> str:
    """Return the kind of broker that a drill starts, or "" where its plan starts none."""
    from soak.cli import _checks

    lab = _checks.load_plan(found.plan).plan.lab
    return "" if lab is None else lab.broker


def missing(found: Drill) -> str:
    """Return what this machine lacks for a drill, or ""."""
    from soak.cli import _checks

    return lacking(found, _checks.load_plan(found.plan).plan.lab)


def lacking(found: Drill, lab: Lab | None) -> str:
    """Return what this machine lacks for a drill whose plan starts such a lab, or ""."""
    from soak.core import plugins
    from soak.lab import dirty_limit, drive

    if lab is not None and lab.drive is not None:
        lack = drive.missing(filesystem=lab.drive.filesystem)
        if lab.drive.dirty_limit is not None:
            lack = lack or dirty_limit.missing()
        if lack:
            return lack
    for kind in (found.fault_kind, *(kind for kind, _ in found.given)):
        lack_of_fault = getattr(plugins.load("soak.lab.faults", kind), "missing", None)
        if lack_of_fault and (lack := lack_of_fault()):  # most need nothing of the machine itself
            return str(lack)
    return ""


def _environment(found: Drill, stack: ExitStack) -> dict[str, str]:
    """Return what the daemons that measure must be started with for this fault; most need nothing."""
    from soak.core import plugins
    from soak.lab import scratch

    of_fault = getattr(plugins.load("soak.lab.faults", found.fault_kind), "environment", None)
    if of_fault is None:
        return {}
    environment: dict[str, str] = of_fault(stack.enter_context(scratch.folder()))
    return environment
