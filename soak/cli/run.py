"""`soak run`: a whole run in the foreground."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def run(
    plan: Annotated[Path, typer.Argument(help="The plan, a YAML file.")],
    run_dir: Annotated[
        Path | None,
        typer.Option(help="Folder for this run; new or empty. Default: below the plan's runs."),
    ] = None,
) -> None:
    """Run a plan to its end and report.

    Exit: 0 clean, 3 regressed, 4 inconclusive, 1 failed, 2 bad plan, 130 interrupted (data kept).
    """
    from rich.console import Console

    from soak.cli import _checks, _outcome
    from soak.cli._session import execute

    plan_file = _checks.load_plan(plan)
    console = Console()
    ended = execute(plan_file, run_dir, console)
    _outcome.show(console, ended.folder)
    raise typer.Exit(ended.code)


command = run
