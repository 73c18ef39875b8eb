"""`soak alert`: the daemon that tells people what was found."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def alert(run_dir: Annotated[Path, typer.Option(help="Folder of the run.")]) -> None:
    """Send what the findings of a run call for, each message once."""
    from soak.core.clock import SystemClock
    from soak.daemons.alert import run
    from soak.service.signals import stop_event

    raise typer.Exit(run(run_dir, stop_event(), SystemClock()))


command = alert
