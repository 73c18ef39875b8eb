"""`soak consume`: the consumer daemon of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def consume(
    run_dir: Annotated[Path, typer.Option(help="Folder of the run.")],
    index: Annotated[int, typer.Option(help="Number of this consumer.")] = 0,
) -> None:
    """Receive, measure end to end, and audit."""
    from soak.core.clock import SystemClock
    from soak.daemons.consume import run
    from soak.service.signals import stop_event

    raise typer.Exit(run(run_dir, index, stop_event(), SystemClock()))


command = consume
