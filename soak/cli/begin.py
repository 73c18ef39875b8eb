"""`soak begin`: begins a run whose daemons systemd starts, or goes on with the one that is there."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def begin(
    plan: Annotated[Path, typer.Argument(help="The plan, a YAML file.")],
    home: Annotated[Path, typer.Option(help="Folder for the runs of this plan.")],
) -> None:
    """Make the folder and the topics of a run; its daemons are started by others.

    A run that was begun there and is not over goes on, by the plan that it was begun with.

    Exit: 0 there is a run, 1 failed, as when the cluster does not answer or a drive is full, 2 bad plan.
    """
    from soak.cli._home import begin_run
    from soak.core.clock import SystemClock
    from soak.store.home import Home

    begin_run(plan, Home(home.absolute()), SystemClock())


command = begin
