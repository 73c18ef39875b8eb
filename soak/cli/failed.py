"""`soak failed`: tells people that systemd has given a unit of a plan up; systemd calls it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer


def failed(plan: Annotated[Path, typer.Argument(help="The plan, whose sinks are told.")]) -> None:
    """Send to each sink which unit failed and how, as systemd says in MONITOR_UNIT and its like.

    Exit: 0 every sink took it, 1 one did not, 2 bad plan, or one without sinks.
    """
    from soak.cli._alert_test import is_sent, sinks_of
    from soak.cli._failed import message
    from soak.core.clock import SystemClock
    from soak.daemons.context import host_name

    name, sinks = sinks_of(plan, None)
    told = message(name, host_name(), os.environ, SystemClock().wall_ns())
    raise typer.Exit(0 if is_sent(told, sinks) else 1)


command = failed
