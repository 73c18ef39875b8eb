"""`soak lab`: real brokers and drills on this machine."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from soak.cli import _lab_standing

command = typer.Typer(
    help="Real brokers and injected faults on this machine.", no_args_is_help=True
)

DRILLS = Path(__file__).resolve().parents[2] / "configs" / "drills"


@command.callback()
def lab() -> None:
    """Real brokers and injected faults on this machine."""


for one in _lab_standing.COMMANDS:
    command.command()(one)


@command.command()
def drill(
    name: Annotated[str, typer.Argument(help="Name of a drill, or its file.")],
    run_dir: Annotated[Path | None, typer.Option(help="Folder for this run; new or empty.")] = None,
) -> None:
    """Inject a fault into a run and see whether it is found and named; exit 0 only then."""
    from rich.console import Console

    from soak.cli import _checks, _outcome
    from soak.cli._session import EXIT_INTERRUPTED, execute
    from soak.core import plugins
    from soak.core.clock import SystemClock
    from soak.core.errors import PlanError
    from soak.lab import drill as drills
    from soak.lab.fault_log import FaultLog
    from soak.lab.lab import Lab
    from soak.lab.ports import Target
    from soak.store.run_folder import RunFolder

    path = Path(name) if name.endswith(".yaml") else DRILLS / f"{name}.yaml"
    if not path.is_file():
        known = sorted(item.stem for item in DRILLS.glob("*.yaml"))
        raise PlanError(f"no drill {name!r}{plugins.nearest(name, known)}")
    found = drills.load(path)
    plan_file = _checks.load_plan(found.plan)
    console, clock = Console(), SystemClock()
    console.print(
        f"DRILL {found.name}: {found.description} The fault `{found.fault_kind}` is injected into this "
        "run; the detector is not told.",
        markup=False,
        highlight=False,
    )
    onset_ns: list[int | None] = []

    def inject(running: Lab | None, stack: ExitStack) -> Callable[[RunFolder], None]:
        if running is None:
            raise PlanError(f"{found.plan}: a drill needs a plan with a lab")
        log = FaultLog(running.broker.data_directory.parent)
        stack.callback(log.close)
        log.record(drills.declaration(found, at_wall_ns=clock.wall_ns()))
        module = plugins.load("soak.lab.faults", found.fault_kind)
        active = module.inject(Target(running.broker, log.record, clock), found.fault)
        stack.callback(active.lift)

        def after(folder: RunFolder) -> None:
            active.lift()
            onset_ns.append(active.onset_wall_ns)
            log.publish(folder.faults)

        return after

    ended = execute(plan_file, run_dir, console, inject)
    _outcome.show(console, ended.folder)
    if ended.code == EXIT_INTERRUPTED:
        raise typer.Exit(EXIT_INTERRUPTED)
    checks = drills.judge(found.expect, _outcome.read(ended.folder), onset_ns[0])
    _outcome.show_checks(
        console,
        f"drill {found.name}",
        [(one.subject, one.expected, one.found, one.is_met) for one in checks],
    )
    raise typer.Exit(0 if all(one.is_met for one in checks) else 1)
