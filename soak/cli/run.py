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
    scale: Annotated[
        str, typer.Option(help="Run at this part of the plan's rate, such as 0.01.")
    ] = "",
    duration: Annotated[
        str, typer.Option(help="Cut the plan's load to this time, such as 2min, in proportion.")
    ] = "",
    run_id: Annotated[str, typer.Option(help="Id of a run over several hosts.")] = "",
    start: Annotated[str, typer.Option(help="When its load begins: 2026-01-31T12:00:00Z.")] = "",
    resume: Annotated[
        bool,
        typer.Option(
            "--resume", help="Go on with the plan's run that was cut short, or --run-dir."
        ),
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", help="Begin although the plan is beyond its `limits`.")
    ] = False,
    only: Annotated[
        str, typer.Option(help="Daemons of this host, such as produce.1,consume.0,probe.")
    ] = "",
) -> None:
    """Run a plan to its end and report.

    Exit: 0 clean, 3 regressed, 4 inconclusive, 1 failed, 2 bad plan, 130 interrupted (data kept).
    """
    from rich.console import Console

    from soak.cli import _checks, _outcome
    from soak.cli._excess import BY_YES, refuse_excess
    from soak.cli._part import names_of, part_of
    from soak.cli._resume import unfinished
    from soak.cli._session import execute, go_on
    from soak.core.errors import PlanError

    console = Console()
    if resume:
        begun = {"--scale": scale, "--duration": duration, "--start": start, "--yes": yes}
        for option, value in begun.items():
            if value:
                raise PlanError(f"{option}: a run goes on as it began, by its own plan.yaml")
        folder = unfinished(_checks.load_plan(plan).plan, run_dir, run_id)
        ended = go_on(folder, console, names_of(only))
    else:
        part = part_of(run_id, start, only)
        plan_file = _checks.cut(_checks.load_plan(plan), scale, duration)
        if not yes:
            refuse_excess(plan_file, or_else=BY_YES)
        ended = execute(plan_file, run_dir, console, part=part)
    if not ended.is_part:
        _outcome.show(console, ended.folder)
    raise typer.Exit(ended.code)


command = run
