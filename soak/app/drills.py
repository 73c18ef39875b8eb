"""Drills: run one with its fault and judge the outcome, run all of them, list them."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # a command imports what it needs when it is called
    from collections.abc import Callable

    from rich.console import Console

    from soak.app.foreground import FinishedRun, StartedRun
    from soak.core.plan.plan import Lab
    from soak.core.plan.text import PlanFile
    from soak.core.ports import Clock
    from soak.lab.drills.drill import Drill
    from soak.lab.drills.injection import FaultLog, Injection
    from soak.lab.drills.result import Result
    from soak.lab.drills.verdict import DrivePool
    from soak.lab.faults.active import Fault
    from soak.store.run_folder import RunFolder

DRILLS = Path(__file__).resolve().parents[2] / "configs" / "drills"
PASSED, MISSED, INCONCLUSIVE, NOT_HERE = 0, 1, 4, 5
"""Exit codes: also of a run that proves nothing, and of one that this machine cannot make."""


def run_drill(name: str, run_dir: Path | None, seed: int) -> int:
    """Run a drill by its name or its file, show how it went, and return the exit code.

    Raises:
        PlanError: there is no such drill, or its plan is wrong.
    """
    from soak.app import preflight
    from soak.app.foreground import EXIT_INTERRUPTED
    from soak.lab.drills import drill as drill_seed

    found = find_drill(name)
    plan_file = preflight.load_plan(found.plan)
    drill_seed.check_fit(found, plan_file)
    lack = missing_here(found, plan_file.plan.lab)
    if lack:
        print(f"soak: the drill {found.name} cannot run here: {lack}", file=sys.stderr)
        return NOT_HERE
    result = _run_drill(found, plan_file, run_dir, seed)
    return EXIT_INTERRUPTED if result is None else exit_code(result)


def exit_code(result: Result) -> int:
    if not result.is_judged:
        return INCONCLUSIVE
    return PASSED if result.is_passed else MISSED


def drill_names() -> list[str]:
    """Return the names of the drills that ship."""
    return sorted(item.stem for item in DRILLS.glob("*.yaml"))


def find_drill(name: str) -> Drill:
    """Return a drill by its name or its file.

    Raises:
        PlanError: there is none, or its file is wrong.
    """
    from soak.core import plugins
    from soak.core.errors import PlanError
    from soak.lab.drills import drill as drills

    path = Path(name) if name.endswith(".yaml") else DRILLS / f"{name}.yaml"
    if not path.is_file():
        raise PlanError(f"no drill {name!r}{plugins.nearest(name, drill_names())}")
    return drills.load(path)


def _run_drill(found: Drill, plan_file: PlanFile, run_dir: Path | None, seed: int) -> Result | None:
    """Run a drill and show how it went; None when it was interrupted."""
    from rich.console import Console

    from soak.app import foreground
    from soak.app.foreground import EXIT_INTERRUPTED, SideTaskFactory, run_plan
    from soak.lab.drills import drill as drills

    form = drills.fingerprint(found)
    found, plan_file = shifted(found, plan_file, seed)
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

        def begin(started: StartedRun, stack: ExitStack) -> Injected:
            put_in.append(start_injection(found, started, environment, stack))
            put_in[0].poll()
            return put_in[0]

        ended = run_plan(plan_file, run_dir, console, SideTaskFactory(begin, environment))
    foreground.show_outcome(console, ended.folder)
    if ended.code == EXIT_INTERRUPTED:
        return None
    return _judge(console, found, seed, form, ended, put_in[0])


def shifted(found: Drill, plan_file: PlanFile, seed: int) -> tuple[Drill, PlanFile]:
    """Have the fault felt later, as a seed says, and end the soak as much later; seed 0 moves nothing."""
    from soak.lab.drills import drill as drill_seed

    later, plan = drill_seed.shifted(found, plan_file.plan, seed)
    return later, replace(plan_file, plan=plan)


@dataclass(frozen=True)
class Injected:
    """What goes on beside a drill's run; implements `soak.app.foreground.Beside`."""

    injection: Injection
    log: FaultLog
    pool: DrivePool | None  # of the drive that is to starve
    clock: Clock

    def poll(self) -> None:
        self.injection.poll()
        if self.pool is not None:
            self.pool.sample(self.clock.wall_ns())

    def undo(self) -> None:
        self.injection.close()

    def end(self, folder: RunFolder) -> None:
        self.injection.close()
        self.log.publish(folder.faults)


def start_injection(
    found: Drill,
    started: StartedRun,
    environment: Mapping[str, str],
    stack: ExitStack,
    find: Callable[[str], Fault] | None = None,
) -> Injected:
    """Return the injection of a drill into a run that started; the stack closes it on every way out."""
    from soak.core.clock import SystemClock
    from soak.lab.drills import drill as drills
    from soak.lab.drills.injection import FaultLog, Injection
    from soak.lab.drills.verdict import DrivePool
    from soak.lab.faults.registry import find_fault
    from soak.lab.ports import Target

    lab, clock = started.lab, SystemClock()
    assert lab is not None  # `drill_fit` refuses a plan without one
    log = FaultLog(lab.folder)
    stack.callback(log.close)
    log.record(drills.declaration(found, at_wall_ns=clock.wall_ns()))
    target = Target(lab.broker, log.record, clock, lab.drives, started.pids, environment)
    injection = Injection(found, target, started.run.start_wall_ns, find or find_fault)
    stack.callback(_print_undo_failure, injection)  # once it is closed, on every way out
    stack.callback(injection.close)
    pool = DrivePool(lab.drives[found.fault.node]) if found.expect.pool_within else None
    return Injected(injection, log, pool, clock)


def _print_undo_failure(injection: Injection) -> None:
    if injection.failure:
        print(f"soak: the fault was not undone in order: {injection.failure}", file=sys.stderr)


def _judge(
    console: Console, found: Drill, seed: int, form: str, ended: FinishedRun, put_in: Injected
) -> Result:
    from soak.app import foreground
    from soak.lab.drills import result as drill_result
    from soak.lab.drills import verdict

    summary = foreground.read_summary(ended.folder)
    moments = verdict.read_moments(ended.folder, put_in.injection, put_in.pool, found.expect.event)
    checks = verdict.judge(found.expect, summary, moments)
    foreground.show_checks(
        console,
        f"drill {found.name}",
        [(one.subject, one.expected, one.found, one.is_met) for one in checks],
    )
    result = drill_result.stamped(
        drill_result.make_result(found, seed, summary, moments, checks),
        broker_of(found),
        form,
        drill_result.current_origin(put_in.clock.wall_ns()),
    )
    (ended.folder.lab / "drill.json").write_text(drill_result.format_result(result))
    console.print()
    console.print(outcome_table([drill_result.table_row(result)], console.width))
    return result


def broker_of(found: Drill) -> str:
    """Return the kind of broker that a drill starts, or "" where its plan starts none."""
    from soak.app import preflight

    lab = preflight.load_plan(found.plan).plan.lab
    return "" if lab is None else lab.broker


def missing_for_drill(found: Drill) -> str:
    """Return what this machine lacks for a drill, or ""."""
    from soak.app import preflight

    return missing_here(found, preflight.load_plan(found.plan).plan.lab)


def missing_here(found: Drill, lab: Lab | None) -> str:
    """Return what this machine lacks for a drill whose plan starts such a lab, or ""."""
    from soak.lab.drive import block_device, drive
    from soak.lab.faults.registry import find_fault

    if lab is not None and lab.drive is not None:
        lack = drive.missing_drive_tools(filesystem=lab.drive.filesystem)
        if lab.drive.dirty_limit is not None:
            lack = lack or block_device.missing_dirty_limit()
        if lack:
            return lack
    for kind in (found.fault_kind, *(kind for kind, _ in found.given)):
        if lack := find_fault(kind).missing_on_machine():
            return lack
    return ""


def _environment(found: Drill, stack: ExitStack) -> dict[str, str]:
    """Return what the daemons that measure must be started with for this fault; most need nothing."""
    from soak.lab import files
    from soak.lab.faults.registry import find_fault

    fault = find_fault(found.fault_kind)
    if fault.environment is None:
        return {}
    return fault.environment(stack.enter_context(files.scratch_folder()))


# --- What drills there are, and how some went: the tables of `soak lab drill`.

if TYPE_CHECKING:  # a command imports what it needs when it is called
    from rich.table import Table

    from soak.core.plan.plan import Plan
    from soak.lab.drills.drill import Drill


_OUTCOME_HEADINGS = ("drill", "injected", "found", "when", "why", "verdict")
_WIDE_TERMINAL = 120


def print_drills() -> None:
    """Print every drill that ships."""
    from rich.console import Console

    Console().print(drill_table())


def drill_table() -> Table:
    """Return what each drill does, needs and takes."""
    from soak.app import preflight

    title = "drills; each takes a start and a report longer"
    table = _table(title, ("drill", "what is done", "needs", "takes"))
    plans: dict[Path, Plan] = {}  # many drills share one
    for name in drill_names():
        found = find_drill(name)
        if found.plan not in plans:
            plans[found.plan] = preflight.load_plan(found.plan).plan
        plan = plans[found.plan]
        table.add_row(name, found.description, _needs(found, plan), _takes(plan))
    return table


def outcome_table(rows: Sequence[Sequence[str]], width: int) -> Table:
    """Return what was injected and found, as rows of `drill_result.row`, for a terminal so many columns wide.

    One drill, or a terminal too narrow for six columns: a line for each cell that says something.
    """
    from rich.text import Text

    from soak.core import wording

    shown = [[Text(wording.printable(cell)) for cell in row] for row in rows]  # a log is no markup
    if len(rows) > 1 and width >= _WIDE_TERMINAL:
        table = _table("drills", (*_OUTCOME_HEADINGS[:-1], ""))
        for cells in shown:
            table.add_row(*cells)
        return table
    table = _table("", ("", ""))
    table.show_header = False
    for cells in shown:
        if table.row_count:
            table.add_row()
        for heading, cell in zip(_OUTCOME_HEADINGS, cells, strict=True):
            if cell:
                table.add_row(heading, cell)
    return table


def _table(title: str, headings: Sequence[str]) -> Table:
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for heading in headings:
        table.add_column(heading, overflow="fold")
    return table


def _needs(found: Drill, plan: Plan) -> str:
    has_drive = plan.lab is not None and plan.lab.drive is not None
    lack = missing_here(found, plan.lab)
    needs = ["root, FUSE"] * has_drive + [f"not here: {lack}"] * bool(lack)
    return "; ".join(needs) or "-"


def _takes(plan: Plan) -> str:
    """Return how long the phases last; what depends on data counts at its longest, but for a ramp."""
    from soak.core import wording
    from soak.core.plan import phases
    from soak.core.plan.phases import Phases
    from soak.core.units import SECOND_NS

    load_seconds = phases.drain_k(Phases(), plan.phases)
    longest = wording.span(load_seconds + plan.phases.drain / SECOND_NS)
    return f"{longest}, and a ramp" if plan.phases.ramp else longest


# --- Drills as processes of their own: `soak lab drill all`, and each run of `soak lab matrix`.

if TYPE_CHECKING:  # a command imports what it needs when it is called
    from collections.abc import Callable, Sequence

    from rich.console import Console

    from soak.lab.drills.result import Result

    Run = Callable[[str, int, Path], Result | None]

STOP_SECONDS = 300.0  # a drill that is told to end undoes its fault and makes its report
DRILL_TIMEOUT_SECONDS = 2400.0  # for a whole one, on a machine that has other things to do
_LOCK_POLL_NS = 200_000_000  # between two looks at a folder that is in use


def run_all_drills(run_dir: Path | None, run: Run | None = None) -> int:
    """Run every drill that this machine can; show each one's row, and one table, also when interrupted.

    Raises:
        LabError: the folder has something in it, which could be taken for a result.
    """
    from rich.console import Console

    from soak.core.clock import SystemClock
    from soak.core.errors import LabError
    from soak.service.signals import exit_on_sigterm

    root = run_dir or Path("runs") / f"drills-{SystemClock().wall_ns() // 10**9}"
    if root.exists() and any(root.iterdir()):
        raise LabError(f"{root} is not empty: name a new folder for the drills")
    exit_on_sigterm()
    console = Console()
    rows: list[Sequence[str]] = []
    codes: list[int] = []
    try:
        for name in drill_names():
            code, row = _run_one_of_all(name, root / name, console, run or run_drill_process)
            codes += [] if code == NOT_HERE else [code]
            rows.append(row)
    finally:  # an interrupt too leaves what came out so far
        console.print(outcome_table(rows, console.width))
    return exit_code_of_all(codes)


def exit_code_of_all(codes: Sequence[int]) -> int:
    """Return the worst of those that ran: a miss before a run that proves nothing."""
    if not codes:
        return NOT_HERE
    return MISSED if MISSED in codes else max(codes)


def _run_one_of_all(
    name: str, folder: Path, console: Console, run: Run
) -> tuple[int, Sequence[str]]:
    """Run a drill if this machine can, and show its row; return its exit code and that."""
    from soak.lab.drills import result as drill_result

    found = find_drill(name)
    lack = missing_for_drill(found)
    if lack:
        return NOT_HERE, (name, found.fault_kind, "", "", lack, "not here")
    console.print(f"{name}: {found.description}", markup=False, highlight=False)
    result = run(name, 0, folder)
    if result is None:
        why = f"see {log_path(folder)}"
        return MISSED, (name, found.fault_kind, "the run failed", "", why, "FAILED")
    row = drill_result.table_row(result)
    console.print(" | ".join(row[1:]), markup=False, highlight=False)
    return exit_code(result), row


def run_drill_process(name: str, seed: int, folder: Path) -> Result | None:
    """Run a drill into a new folder, with its output beside it; None when it did not come to its end.

    Should this process end first, the drill is told to, so that it undoes what it injected.
    """
    import signal
    import subprocess
    import sys

    from soak.lab.drills import result as drill_result
    from soak.service import children

    folder.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "soak.cli.main", "lab", "drill", name]
    process = children.spawn(
        [*command, "--seed", str(seed), "--run-dir", str(folder)],
        log_path=log_path(folder),
        death_signal=signal.SIGTERM,
    )
    try:
        process.wait(DRILL_TIMEOUT_SECONDS)
    except subprocess.TimeoutExpired:
        return None
    finally:
        children.stop(process, STOP_SECONDS)
    path = folder / "lab" / "drill.json"
    ends = (PASSED, MISSED, INCONCLUSIVE)
    if process.returncode not in ends or not path.exists():
        return None
    return drill_result.parse_result(path.read_text())


def log_path(folder: Path) -> Path:
    """Return the file with what a drill printed."""
    return folder.with_name(f"{folder.name}.log")


def clear_folder(folder: Path, limit_seconds: float = STOP_SECONDS) -> None:
    """Remove the folder of a drill that was cut short, once nobody is at work in it.

    Raises:
        LabError: somebody still is, or a drive below it cannot be taken apart.
    """
    import shutil

    from soak.core.clock import SystemClock
    from soak.core.errors import LabError
    from soak.lab.drive import block_device
    from soak.service.files import is_locked

    clock = SystemClock()
    deadline_ns = clock.mono_ns() + int(limit_seconds * 10**9)
    while is_locked(folder / "run.lock"):  # a drill whose starter was killed still undoes its fault
        if clock.mono_ns() > deadline_ns:
            raise LabError(f"{folder} is still in use")
        clock.sleep_until(clock.mono_ns() + _LOCK_POLL_NS)
    block_device.clear_abandoned()
    for mount in folder.glob("lab/drive-*/mount"):
        if mount.is_mount():
            raise LabError(f"{mount} is still mounted")
    shutil.rmtree(folder, ignore_errors=True)
    log_path(folder).unlink(missing_ok=True)
