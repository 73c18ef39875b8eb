"""`soak lab drill`: one drill as a run, or all of them one after the other."""

from __future__ import annotations

import random
import sys
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:  # a command imports what it needs when it is called
    from rich.console import Console

    from soak.cli._session import Ended, Started
    from soak.lab.drill import Drill, Moments
    from soak.lab.drill_result import Result
    from soak.lab.fault_log import FaultLog
    from soak.lab.injection import Injection
    from soak.store.run_folder import RunFolder

DRILLS = Path(__file__).resolve().parents[2] / "configs" / "drills"
JITTER_SECONDS = 15
"""A seed begins the fault at most this much later."""


def drill(
    name: Annotated[str, typer.Argument(help="Name of a drill, its file, or `all`.")],
    run_dir: Annotated[Path | None, typer.Option(help="Folder for this run; new or empty.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Moves the fault by some seconds; 0: not.")] = 0,
) -> None:
    """Inject a fault into a run and see whether it is found and named; exit 0 only then."""
    from soak.cli._session import EXIT_INTERRUPTED

    if name == "all":
        raise typer.Exit(_all(run_dir))
    result = _run(_found(name), run_dir, seed)
    if result is None:
        raise typer.Exit(EXIT_INTERRUPTED)
    raise typer.Exit(0 if result.is_passed else 1)


def known() -> list[str]:
    """Return the names of the drills that ship."""
    return sorted(item.stem for item in DRILLS.glob("*.yaml"))


def _found(name: str) -> Drill:
    from soak.core import plugins
    from soak.core.errors import PlanError
    from soak.lab import drill as drills

    path = Path(name) if name.endswith(".yaml") else DRILLS / f"{name}.yaml"
    if not path.is_file():
        raise PlanError(f"no drill {name!r}{plugins.nearest(name, known())}")
    return drills.load(path)


def _run(found: Drill, run_dir: Path | None, seed: int) -> Result | None:
    """Run a drill and show how it went; None when it was interrupted."""
    from rich.console import Console

    from soak.cli import _checks, _outcome
    from soak.cli._session import EXIT_INTERRUPTED, execute

    if seed and found.begin_ns:
        later_ns = int(random.Random(seed).uniform(0, JITTER_SECONDS) * 10**9)
        found = replace(found, begin_ns=found.begin_ns + later_ns)
    plan_file = _checks.load_plan(found.plan)
    console = Console()
    console.print(
        f"DRILL {found.name}: {found.description} The fault `{found.fault_kind}` is injected into this "
        "run; the detector is not told.",
        markup=False,
        highlight=False,
    )
    put_in: list[Injected] = []

    def begin(started: Started, stack: ExitStack) -> Injected:
        put_in.append(_injected(found, started, stack))
        put_in[0].poll()
        return put_in[0]

    ended = execute(plan_file, run_dir, console, begin)
    _outcome.show(console, ended.folder)
    if ended.code == EXIT_INTERRUPTED:
        return None
    return _judged(console, found, seed, ended, put_in[0].injection)


@dataclass(frozen=True)
class Injected:
    """What goes on beside a drill's run; implements `soak.cli._session.Beside`."""

    injection: Injection
    log: FaultLog

    def poll(self) -> None:
        self.injection.poll()

    def end(self, folder: RunFolder) -> None:
        self.injection.lift()
        self.log.publish(folder.faults)


def _injected(found: Drill, started: Started, stack: ExitStack) -> Injected:
    from soak.core.clock import SystemClock
    from soak.core.errors import PlanError
    from soak.lab import drill as drills
    from soak.lab.fault_log import FaultLog
    from soak.lab.injection import Injection
    from soak.lab.ports import Target

    lab, clock = started.lab, SystemClock()
    if lab is None:
        raise PlanError(f"{found.plan}: a drill needs a plan with a lab")
    log = FaultLog(lab.folder)
    stack.callback(log.close)
    log.record(drills.declaration(found, at_wall_ns=clock.wall_ns()))
    target = Target(lab.broker, log.record, clock, lab.drives, started.pids)
    injection = Injection(found, target, started.run.start_wall_ns)
    stack.callback(injection.lift)
    return Injected(injection, log)


def _judged(
    console: Console, found: Drill, seed: int, ended: Ended, injection: Injection
) -> Result:
    from soak.cli import _outcome
    from soak.lab import drill as drills
    from soak.lab import drill_result

    summary, moments = _outcome.read(ended.folder), _moments(ended.folder, injection)
    checks = drills.judge(found.expect, summary, moments)
    _outcome.show_checks(
        console,
        f"drill {found.name}",
        [(one.subject, one.expected, one.found, one.is_met) for one in checks],
    )
    result = drill_result.of(found, seed, summary, moments, checks)
    (ended.folder.lab / "drill.json").write_text(drill_result.line(result))
    return result


def _moments(folder: RunFolder, injection: Injection) -> Moments:
    from soak.core.units import SECOND_NS
    from soak.lab.drill import Moments
    from soak.store.findings import FindingsStore
    from soak.store.run_folder import read_run

    if not folder.findings.exists():  # the detector never ran; to look would make one
        return Moments(injection.onset_wall_ns, injection.lifted_wall_ns)
    run = read_run(folder)
    with FindingsStore(folder.findings) as store:
        outbox, findings = store.outbox(run.id), store.findings(run.id)
    return Moments(
        injection.onset_wall_ns,
        injection.lifted_wall_ns,
        {row.key: row.created_wall_ns for row in outbox if row.kind == "confirmed"},
        {
            one.key: run.start_wall_ns + one.gone_k * SECOND_NS
            for one in findings
            if one.gone_k is not None
        },
    )


def _all(run_dir: Path | None) -> int:
    """Run every drill that this machine can, each in a process of its own; show one table."""
    import subprocess

    from rich.console import Console
    from rich.table import Table

    from soak.core.clock import SystemClock
    from soak.lab import drill_result

    console = Console()
    table = Table(title="drills", title_justify="left", box=None, pad_edge=False)
    for heading in ("drill", "injected", "found", "when", "why", ""):
        table.add_column(heading, overflow="fold")
    root = run_dir or Path("runs") / f"drills-{SystemClock().wall_ns() // 10**9}"
    is_passed = True
    for name in known():
        found = _found(name)
        lack = missing(found)
        if lack:
            table.add_row(name, found.fault_kind, "", "", lack, "not here")
            continue
        folder = root / name
        command = [sys.executable, "-m", "soak.cli.main", "lab", "drill", name]
        subprocess.run([*command, "--run-dir", str(folder)], check=False)
        result = result_of(folder)
        if result is None:
            table.add_row(name, found.fault_kind, "the run failed", "", "", "FAILED")
            is_passed = False
            continue
        is_passed = is_passed and result.is_passed
        table.add_row(*drill_result.row(result))
    console.print(table)
    return 0 if is_passed else 1


def missing(found: Drill) -> str:
    """Return what this machine lacks for a drill, or ""."""
    from soak.cli import _checks
    from soak.lab import drive

    lab = _checks.load_plan(found.plan).plan.lab
    if lab is None or lab.drive is None:
        return ""
    return drive.missing(filesystem=lab.drive.filesystem)


def result_of(folder: Path) -> Result | None:
    """Return how a drill's run went; None when it did not come to its end."""
    from soak.lab import drill_result

    path = folder / "lab" / "drill.json"
    return drill_result.parse(path.read_text()) if path.exists() else None
