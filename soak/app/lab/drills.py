"""Drills: run one with its fault and judge the outcome, run all of them, list them."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from soak.app import foreground, plan_files
from soak.app.foreground import FinishedRun, SideTaskFactory, StartedRun
from soak.app.host import SafeConsole
from soak.app.outcome import EXIT_INTERRUPTED, read_summary, show_outcome
from soak.core import wording
from soak.core.clock import SystemClock
from soak.core.errors import LabError, PlanError
from soak.core.plan import plugins
from soak.core.plan.phases import Phases, drain_k
from soak.core.plan.plan import Lab, Plan
from soak.core.plan.text import PlanFile
from soak.core.ports import Clock
from soak.core.units import SECOND_NS
from soak.lab import files
from soak.lab.drills import drill as drill_files
from soak.lab.drills import result as drill_result
from soak.lab.drills import verdict
from soak.lab.drills.drill import Drill
from soak.lab.drills.injection import FaultLog, Injection
from soak.lab.drills.result import Result
from soak.lab.drills.verdict import DrivePool
from soak.lab.drive import block_device, drive
from soak.lab.faults import find_fault
from soak.lab.faults.active import Fault
from soak.lab.ports import Target
from soak.service import children
from soak.service.files import is_locked, shipped_configs
from soak.service.signals import exit_on_sigterm
from soak.store.run_folder import RunFolder

PASSED, MISSED, INCONCLUSIVE, NOT_HERE = 0, 1, 4, 5
"""Exit codes; INCONCLUSIVE: the detector did not read all of it; NOT_HERE: this machine cannot run it."""
STOP_SECONDS = 300.0  # in which a stopped drill undoes its fault and creates its report
DRILL_TIMEOUT_SECONDS = 2400.0  # for a whole drill on a busy machine
_LOCK_POLL_NS = 200_000_000
_OUTCOME_HEADINGS = ("drill", "injected", "found", "when", "why", "verdict")
_WIDE_TERMINAL = 120  # columns

RunDrill = Callable[[str, int, Path], Result | None]


def run_drill(name: str, run_dir: Path | None, seed: int) -> int:
    """Run a drill by its name or its file, print the outcome, and return the exit code.

    Raises:
        PlanError: there is no such drill, or its plan is wrong.
    """
    found = find_drill(name)
    plan_file = plan_files.load_plan(found.plan)
    drill_files.check_fit(found, plan_file)
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


def drills_folder() -> Path:
    """Return the folder of the drills that ship."""
    return shipped_configs() / "drills"


def drill_names() -> list[str]:
    """Return the names of the drills that ship."""
    return sorted(item.stem for item in drills_folder().glob("*.yaml"))


def find_drill(name: str) -> Drill:
    """Return a drill by its name or its file.

    Raises:
        PlanError: there is none, or its file is wrong.
    """
    path = Path(name) if name.endswith(".yaml") else drills_folder() / f"{name}.yaml"
    if not path.is_file():
        raise PlanError(f"no drill {name!r}{plugins.nearest(name, drill_names())}")
    return drill_files.load(path)


def _run_drill(found: Drill, plan_file: PlanFile, run_dir: Path | None, seed: int) -> Result | None:
    """Run a drill and print the outcome; return None if it was interrupted."""
    fingerprint = drill_files.fingerprint(found)
    found, plan_file = shifted(found, plan_file, seed)
    console = SafeConsole()
    console.print(
        f"DRILL {found.name}: {found.description} The fault `{found.fault_kind}` is injected into this "
        "run, and the detector does not know of it.",
        markup=False,
        highlight=False,
    )
    injected: list[Injected] = []
    with ExitStack() as outer:
        environment = _environment(found, outer)

        def begin(started: StartedRun, stack: ExitStack) -> Injected:
            injected.append(start_injection(found, started, environment, stack))
            injected[0].poll()
            return injected[0]

        side_task = SideTaskFactory(begin, environment)
        finished = foreground.run_plan(plan_file, run_dir, console, side_task)
    show_outcome(console, finished.folder)
    if finished.code == EXIT_INTERRUPTED:
        return None
    return _judge(console, found, seed, fingerprint, finished, injected[0])


def shifted(found: Drill, plan_file: PlanFile, seed: int) -> tuple[Drill, PlanFile]:
    """Return the drill with its fault and the end of its soak delayed by a seed; seed 0 changes nothing."""
    later, plan = drill_files.shifted(found, plan_file.plan, seed)
    return later, replace(plan_file, plan=plan)


@dataclass(frozen=True)
class Injected:
    """The fault of a drill as the side task of its run; implements `foreground.SideTask`."""

    injection: Injection
    log: FaultLog
    pool: DrivePool | None  # of the drive that the fault slows down
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
    find: Callable[[str], Fault] = find_fault,
) -> Injected:
    """Prepare the fault of a drill for a started run; the stack undoes it."""
    lab, clock = started.lab, SystemClock()
    assert lab is not None  # `check_fit` rejects a plan without a lab
    log = FaultLog(lab.folder)
    stack.callback(log.close)
    log.record(drill_files.declaration(found, at_wall_ns=clock.wall_ns()))
    target = Target(lab.broker, log.record, clock, lab.drives, started.pids, environment)
    injection = Injection(found, target, started.run.start_wall_ns, find)
    stack.callback(_print_undo_failure, injection)  # after it is closed
    stack.callback(injection.close)
    pool = DrivePool(lab.drives[found.fault.node]) if found.expect.pool_within else None
    return Injected(injection, log, pool, clock)


def _print_undo_failure(injection: Injection) -> None:
    if injection.failure:
        print(f"soak: the fault was not fully undone: {injection.failure}", file=sys.stderr)


def _judge(
    console: Console,
    found: Drill,
    seed: int,
    fingerprint: str,
    finished: FinishedRun,
    injected: Injected,
) -> Result:
    """Compare the outcome of a drill with what it expects, print and store the result."""
    summary = read_summary(finished.folder)
    moments = verdict.read_moments(
        finished.folder, injected.injection, injected.pool, found.expect.event
    )
    checks = verdict.judge(found.expect, summary, moments)
    console.print(_check_table(f"drill {found.name}", checks))
    result = drill_result.stamped(
        drill_result.make_result(found, seed, summary, moments, checks),
        broker_of(found),
        fingerprint,
        drill_result.current_origin(injected.clock.wall_ns()),
    )
    (finished.folder.lab / "drill.json").write_text(drill_result.format_result(result))
    console.print()
    console.print(outcome_table([drill_result.table_row(result)], console.width))
    if not result.is_passed and (stolen := verdict.stolen_text(finished.folder)):
        console.print(f"machine: {stolen}")
    return result


def broker_of(found: Drill) -> str:
    """Return the kind of broker that a drill starts; "" if its plan starts none."""
    lab = plan_files.load_plan(found.plan).plan.lab
    return "" if lab is None else lab.broker


def missing_for_drill(found: Drill) -> str:
    """Return what this machine lacks for a drill, or ""."""
    return missing_here(found, plan_files.load_plan(found.plan).plan.lab)


def missing_here(found: Drill, lab: Lab | None) -> str:
    """Return what this machine lacks for a drill with this lab, or ""."""
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
    """Return the extra environment that a fault needs in the daemons that measure."""
    fault = find_fault(found.fault_kind)
    if fault.environment is None:
        return {}
    return fault.environment(stack.enter_context(files.scratch_folder()))


def print_drills() -> None:
    """Print every drill that ships."""
    SafeConsole().print(drill_table())


def drill_table() -> Table:
    """Return a table of what each drill does, needs, and how long it takes."""
    title = "drills; each takes longer by its start and its report"
    table = _table(title, ("drill", "fault", "needs", "takes"))
    plans: dict[Path, Plan] = {}  # many drills share a plan
    for name in drill_names():
        found = find_drill(name)
        if found.plan not in plans:
            plans[found.plan] = plan_files.load_plan(found.plan).plan
        plan = plans[found.plan]
        table.add_row(name, found.description, _needs(found, plan), _takes(plan))
    return table


def outcome_table(rows: Sequence[Sequence[str]], width: int) -> Table:
    """Return rows of `table_row` of drill results as a table for a terminal of `width` columns.

    For one drill, or on a narrow terminal, each cell with text gets a line.
    """
    shown = [[Text(wording.printable(cell)) for cell in row] for row in rows]
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


def _check_table(title: str, checks: Sequence[verdict.Check]) -> Table:
    """Return a table of what a drill expected and what was found."""
    table = _table(title, ("", "expected", "found", ""))
    for one in checks:
        cells = (one.subject, one.expected, one.found, "ok" if one.is_met else "MISSED")
        table.add_row(*map(Text, cells))  # not markup: a cell may contain brackets
    return table


def _table(title: str, headings: Sequence[str]) -> Table:
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
    """Return the length of the phases, each at its maximum; a ramp has none."""
    load_seconds = drain_k(Phases(), plan.phases)
    longest = wording.span(load_seconds + plan.phases.drain / SECOND_NS)
    return f"{longest}, and a ramp" if plan.phases.ramp else longest


def run_all_drills(run_dir: Path | None, run: RunDrill | None = None) -> int:
    """Run every drill that this machine can run; print a row for each, and a table, also after an interrupt.

    Raises:
        LabError: the folder is not empty: its content could be mistaken for a result.
    """
    root = run_dir or Path("runs") / f"drills-{SystemClock().wall_ns() // 10**9}"
    if root.exists() and any(root.iterdir()):
        raise LabError(f"{root} is not empty: name a new folder for the drills")
    exit_on_sigterm()
    console = SafeConsole()
    rows: list[Sequence[str]] = []
    codes: list[int] = []
    try:
        for name in drill_names():
            code, row = _run_one_of_all(name, root / name, console, run or run_drill_process)
            codes += [] if code == NOT_HERE else [code]
            rows.append(row)
    finally:  # an interrupt shows the results so far
        console.print(outcome_table(rows, console.width))
    return exit_code_of_all(codes)


def exit_code_of_all(codes: Sequence[int]) -> int:
    """Return the worst exit code of those that ran; MISSED is worse than INCONCLUSIVE."""
    if not codes:
        return NOT_HERE
    return MISSED if MISSED in codes else max(codes)


def _run_one_of_all(
    name: str, folder: Path, console: Console, run: RunDrill
) -> tuple[int, Sequence[str]]:
    """Run a drill if this machine can, and print its row; return its exit code and its row."""
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
    """Run a drill as a process of its own, with its output in `log_path`; return None if it did not complete.

    If this process ends first, the drill gets SIGTERM, so that it undoes its fault.
    """
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
    """Return the file with the output of a drill."""
    return folder.with_name(f"{folder.name}.log")


def clear_folder(folder: Path, limit_seconds: float = STOP_SECONDS) -> None:
    """Remove the folder of an interrupted drill when no process uses it any more.

    Raises:
        LabError: a process still uses it, or a drive below it is still mounted.
    """
    clock = SystemClock()
    deadline_ns = clock.mono_ns() + int(limit_seconds * 10**9)
    while is_locked(folder / "run.lock"):  # a drill whose parent was killed still undoes its fault
        if clock.mono_ns() > deadline_ns:
            raise LabError(f"{folder} is still in use")
        clock.sleep_until(clock.mono_ns() + _LOCK_POLL_NS)
    block_device.clear_abandoned()
    for mount in folder.glob("lab/drive-*/mount"):
        if mount.is_mount():
            raise LabError(f"{mount} is still mounted")
    shutil.rmtree(folder, ignore_errors=True)
    log_path(folder).unlink(missing_ok=True)
