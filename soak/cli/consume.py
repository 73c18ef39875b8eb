"""`soak consume`: the consumer daemon of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def consume(
    run_dir: Annotated[Path, typer.Option(help="Folder of the run.", resolve_path=True)],
    index: Annotated[int, typer.Option(help="Number of this consumer.")] = 0,
    all_: Annotated[
        bool, typer.Option("--all", help="All of them as one service, whatever their number.")
    ] = False,
) -> None:
    """Receive, measure end to end, and audit."""
    from soak.core.clock import SystemClock
    from soak.daemons import crew
    from soak.daemons.consume import run
    from soak.service.signals import stop_event

    stop, clock = stop_event(), SystemClock()
    if all_:
        raise typer.Exit(crew.run(run_dir, "consume", run, stop, clock))
    raise typer.Exit(run(run_dir, index, stop, clock))


command = consume
