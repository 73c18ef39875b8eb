"""Commands for systemd: install the units, start and finish a run, notify of a failed unit."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer


def start(
    plan: Annotated[Path, typer.Argument(help="The plan, a YAML file.")],
    home: Annotated[Path, typer.Option(help="Folder for the runs of this plan.")],
) -> None:
    """Make the folder and the topics of a run; its daemons are started by others.

    A run that was begun there and is not over goes on, by the plan that it was begun with.

    Exit: 0 there is a run, 1 failed, as when the cluster does not answer or a drive is full, 2 bad plan.
    """
    from soak.app.lifecycle import start_run
    from soak.core.clock import SystemClock
    from soak.store.plan_home import PlanHome

    start_run(plan, PlanHome(home.absolute()), SystemClock())


begin_command = start


# --- `soak finish`: the daemon that waits until a run is over and closes it, so that its report can be made.


def finish(
    home: Annotated[Path, typer.Option(help="Folder for the runs of a plan, see `soak begin`.")],
) -> None:
    """Wait for the last record and the last word of the detector, then write down that the run is over."""
    from soak.app.lifecycle import close_run
    from soak.core.clock import SystemClock
    from soak.service.signals import stop_event
    from soak.service.systemd import notifier
    from soak.store.plan_home import PlanHome
    from soak.supervisor.run_end import run

    place = PlanHome(home.absolute())
    folder = place.newest("running")
    if folder is None:  # it may have been killed when all but the last step was done
        notifier().ready()
        place.leave()
        print(f"no run goes on in {home}")
        return
    if run(folder, stop_event(), SystemClock()):
        close_run(place, folder)


finish_command = finish


# --- `soak failed`: tells people that systemd has given a unit of a plan up; systemd calls it.


def notify_failure(
    unit: Annotated[str, typer.Argument(help="The unit, such as soak-begin@NAME.")],
    plans: Annotated[Path, typer.Option(help="Where NAME.yaml is, whose sinks are told.")] = Path(
        "/etc/soak"
    ),
    state: Annotated[Path, typer.Option(help="Folder in which is kept who has been told.")] = Path(
        "/var/lib/soak"
    ),
) -> None:
    """Send to each sink that a unit failed, and how, as systemd says in MONITOR_SERVICE_RESULT.

    A run that was refused before it began is not told: who began it has seen it; nor is an alert daemon that
    is started again. Called again for the same failure, it tells only those who have not got it.

    Exit: 0 nobody waits for it, 1 a sink is to be tried again, 2 bad plan, or one without sinks.
    """
    from soak.app.direct_messages import (
        failure_key,
        failure_message,
        load_sinks,
        read_deliveries,
        send_to_each,
        should_notify,
    )
    from soak.core.clock import SystemClock
    from soak.runtime.context import host_name

    if not should_notify(unit, os.environ):
        print(f"{unit}: not told, as somebody knows or hears of it otherwise")
        return
    name, sinks = load_sinks(plans / f"{unit.partition('@')[2]}.yaml", None)
    now_ns, path = SystemClock().wall_ns(), state / f".{unit}.told.json"
    told = read_deliveries(path, failure_key(name, os.environ, now_ns), now_ns)
    said = failure_message(name, unit, host_name(), os.environ, told.since_wall_ns)
    raise typer.Exit(0 if send_to_each(said, sinks, told, path) else 1)


failed_command = notify_failure


# --- `soak install-units`: has systemd run plans on this machine, or takes that back.


def install_units(
    prefix: Annotated[
        Path, typer.Option(help="Root of the file system to install into; / is this machine's.")
    ] = Path("/"),
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Tell, and do nothing.")] = False,
    uninstall: Annotated[
        bool, typer.Option("--uninstall", help="Remove what was installed; runs and plans stay.")
    ] = False,
) -> None:
    """Install systemd's units for the `soak` that is called, and check what was done.

    Exit: 0 done, 1 a file could not be written, or the check found something wrong.
    """
    from soak.app import units

    os.umask(0o022)  # what is installed is for everybody to read
    if uninstall:
        steps = units.uninstall(prefix, is_dry=dry_run)
        print("\n".join(steps) or f"nothing of ours below {prefix}")
        return
    for line in units.install(prefix, is_dry=dry_run):
        print(line)
    if dry_run:
        return
    wrong = units.check_installed(prefix)
    for line in wrong:
        print(f"wrong: {line}")
    if wrong:
        raise typer.Exit(1)
    print("checked; a run of /etc/soak/NAME.yaml: systemctl start soak@NAME.target")


install_units_command = install_units
