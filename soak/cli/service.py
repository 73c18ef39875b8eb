"""Commands for systemd: install the units, start and finish a run, notify of a failed unit."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer
from typer.main import get_group

service = typer.Typer(
    help="Called by systemd: start and finish a run, notify of a failed unit.", no_args_is_help=True
)


@service.command()
def start(
    plan: Annotated[Path, typer.Argument(help="The plan, a YAML file.")],
    home: Annotated[Path, typer.Option(help="Folder for the runs of this plan.")],
) -> None:
    """Create the folder and the topics of a run, or resume the run that is there; start no daemon.

    A run that has not ended is resumed with the plan that it was started with.

    Exit: 0 there is a run, 1 failed, for example because the cluster does not answer, 2 bad plan.
    """
    from soak.app.lifecycle import start_run
    from soak.core.clock import SystemClock
    from soak.store.plan_home import PlanHome

    start_run(plan, PlanHome(home.absolute()), SystemClock())


@service.command()
def finish(
    home: Annotated[
        Path, typer.Option(help="Folder for the runs of a plan, see `soak service start`.")
    ],
) -> None:
    """Wait for the last record and the last result of the detector, then mark the run as ended."""
    from soak.app.lifecycle import finish_run
    from soak.core.clock import SystemClock
    from soak.service.signals import stop_event
    from soak.store.plan_home import PlanHome

    finish_run(PlanHome(home.absolute()), stop_event(), SystemClock())


@service.command("notify-failure")
def notify_failure(
    unit: Annotated[str, typer.Argument(help="The unit, such as soak-start@NAME.")],
    plans: Annotated[
        Path, typer.Option(help="Folder of NAME.yaml, whose sinks get the message.")
    ] = Path("/etc/soak"),
    state: Annotated[
        Path, typer.Option(help="Folder that records which sinks have the message.")
    ] = Path("/var/lib/soak"),
) -> None:
    """Notify every sink of a plan that a unit failed, and how, as systemd reports in MONITOR_SERVICE_RESULT.

    Nothing is sent when a person started the run and saw that it was refused, or when the alert daemon is
    restarted anyway. Called again for the same failure, only sinks that have not accepted the message get it.

    Exit: 0 every sink has the message, 1 a sink needs another try, 2 bad plan, or one without sinks.
    """
    from soak.app.direct_messages import notify_of_failed_unit
    from soak.core.clock import SystemClock

    is_done = notify_of_failed_unit(unit, plans, state, SystemClock(), os.environ)
    raise typer.Exit(0 if is_done else 1)


def install_units(
    prefix: Annotated[
        Path, typer.Option(help="Root of the file system to install into; default: this machine.")
    ] = Path("/"),
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be done, and do nothing.")
    ] = False,
    uninstall: Annotated[
        bool, typer.Option("--uninstall", help="Remove what was installed; runs and plans stay.")
    ] = False,
) -> None:
    """Install systemd units that call this `soak`, and check the result.

    Exit: 0 done, 1 a file could not be written, or the check found a problem.
    """
    from soak.app import units
    from soak.cli.main import build
    from soak.cli.man import bash_completion, page

    os.umask(0o022)  # installed files are readable by everyone
    if uninstall:
        steps = units.uninstall(prefix, is_dry=dry_run)
        print("\n".join(steps) or f"nothing is installed below {prefix}")
        return
    documents = {units.MAN: page(get_group(build([]))), units.COMPLETION: bash_completion()}
    for line in units.install(prefix, documents, is_dry=dry_run):
        print(line)
    if dry_run:
        return
    wrong = units.check_installed(prefix, documents)
    for line in wrong:
        print(f"wrong: {line}")
    if wrong:
        raise typer.Exit(1)
    print(
        "checked; to start a run of /etc/soak/NAME.yaml: systemctl start soak@NAME.target"
        if units.is_managed(prefix)
        else "checked"
    )


COMMANDS = {"service": service, "install-units": install_units}
RENAMED = {
    "begin": "service start",
    "finish": "service finish",
    "failed": "service notify-failure",
}
