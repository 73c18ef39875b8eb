"""`soak conduct`: the conductor of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def conduct(
    run_dir: Annotated[Path, typer.Option(help="Folder of the run.", resolve_path=True)],
    leave: Annotated[
        bool, typer.Option("--leave", help="On SIGTERM leave the run to the next conductor.")
    ] = False,
) -> None:
    """Decide the phases of a run, ahead of time."""
    from soak.core.clock import SystemClock
    from soak.daemons.conduct import run
    from soak.service.signals import stop_event

    raise typer.Exit(run(run_dir, stop_event(), SystemClock(), leaves_on_stop=leave))


command = conduct
