"""`soak detect-stream`: the streaming detector of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def detect_stream(
    run_dir: Annotated[Path, typer.Option(help="Folder of the run.")],
) -> None:
    """Find steps and name their causes while the run goes on."""
    from soak.core.clock import SystemClock
    from soak.service.signals import stop_event
    from spark.detect_stream import run

    raise typer.Exit(run(run_dir, stop_event(), SystemClock()))


command = detect_stream
