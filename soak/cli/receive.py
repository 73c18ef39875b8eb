"""`soak receive`: the daemon that takes what other hosts sent of a run into its folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def receive(
    run_dir: Annotated[Path, typer.Option(help="Folder of the run.", resolve_path=True)],
    once: Annotated[
        bool, typer.Option("--once", help="Take what is there, and end: for a run that is over.")
    ] = False,
) -> None:
    """Write the other hosts' records into this run's journal, each once."""
    from soak.core.clock import SystemClock
    from soak.daemons.receive import run
    from soak.service.signals import stop_event

    def tell(records: int) -> None:
        from soak.core.wording import counted

        print(f"{counted(records, 'record')} taken")

    raise typer.Exit(run(run_dir, stop_event(), SystemClock(), is_once=once, tell=tell))


command = receive
