"""`soak ship`: the daemon that sends this host's records to the topic that the plan names."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def ship(
    run_dir: Annotated[Path, typer.Option(help="Folder of the run.", resolve_path=True)],
    follow: Annotated[
        bool, typer.Option("--follow", help="End the run here when it is said to be over.")
    ] = False,
) -> None:
    """Send what this host's daemons recorded, and wait on disk while the cluster is away."""
    from soak.core.clock import SystemClock
    from soak.daemons.ship import run
    from soak.service.signals import stop_event

    raise typer.Exit(run(run_dir, stop_event(), SystemClock(), is_following=follow))


command = ship
