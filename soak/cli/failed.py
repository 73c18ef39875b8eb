"""`soak failed`: tells people that systemd has given a unit of a plan up; systemd calls it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer


def failed(
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
    from soak.cli._alert_test import sinks_of
    from soak.cli._failed import is_to_be_told, key_of, message, tell, told_so_far
    from soak.core.clock import SystemClock
    from soak.daemons.context import host_name

    if not is_to_be_told(unit, os.environ):
        print(f"{unit}: not told, as somebody knows or hears of it otherwise")
        return
    name, sinks = sinks_of(plans / f"{unit.partition('@')[2]}.yaml", None)
    now_ns, path = SystemClock().wall_ns(), state / f".{unit}.told.json"
    told = told_so_far(path, key_of(name, os.environ, now_ns), now_ns)
    said = message(name, unit, host_name(), os.environ, told.since_wall_ns)
    raise typer.Exit(0 if tell(said, sinks, told, path) else 1)


command = failed
