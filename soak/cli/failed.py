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
) -> None:
    """Send to each sink that a unit failed, and how, as systemd says in MONITOR_SERVICE_RESULT.

    A run that was refused before it began is not told: who began it has seen it.

    Exit: 0 every sink took it, or none is to hear of it, 1 one did not, 2 bad plan, or one without sinks.
    """
    from soak.cli._alert_test import is_sent, sinks_of
    from soak.cli._failed import is_seen, message
    from soak.core.clock import SystemClock
    from soak.daemons.context import host_name

    if is_seen(unit, os.environ):
        print(f"{unit}: the run was refused, as who began it has been told")
        return
    name, sinks = sinks_of(plans / f"{unit.partition('@')[2]}.yaml", None)
    told = message(name, unit, host_name(), os.environ, SystemClock().wall_ns())
    raise typer.Exit(0 if is_sent(told, sinks) else 1)


command = failed
